"""`switchyard k8s`, and `check` of a cluster.

`switchyard keys`.
"""

from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.access.keys import KeyRing
from app.config.access import Limits
from app.errors import Unauthorized
from app.internal_keys import Purpose, derived
from deployments.cli.main import main
from deployments.invocation import command
from deployments.kubernetes import chart, manifests
from deployments.kubernetes.manifests import ray_service
from tests.support.kubernetes.overlays import rendered
from tests.support.processes.project import ROOT

DEMO = ROOT / "k8s/chart/ci/cpu-demo-values.yaml"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory that `k8s new` has made, of the demonstration."""
    directory = tmp_path / "made"
    assert main(["k8s", "new", str(directory), "--values", str(DEMO)]) == 0
    return directory


def test_new_writes_a_directory_for_kustomize(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (made / chart.VALUES).read_text() == DEMO.read_text()
    assert sorted(path.name for path in made.iterdir()) == ["kustomization.yaml", "objects", "values.yaml"]
    assert main(["check", str(made)]) == 0
    assert main(["k8s", "render", str(made), "--check"]) == 0
    assert main(["k8s", "new", str(made), "--values", str(DEMO)]) == 1
    assert f"k8s render {made}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("replica: 1, source: package:SmolLM2-135M-Instruct", "replica: unknown key; did you mean replicas?"),
        ("replicas: 1, source: Qwen/Qwen3-8B", "source: 'Qwen/Qwen3-8B': write hf:Qwen/Qwen3-8B"),
        (
            "replicas: one, source: package:SmolLM2-135M-Instruct",
            "replicas: 'one': write a number, or the least and the most, as 1-8",
        ),
    ],
)
def test_a_wrong_value_of_a_cluster_is_one_line_with_its_place(
    line: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"cloud: gke\nmodels:\n  - {{name: q, gpu: L4, share: 100, {line}}}\n")
    assert main(["check", str(file)]) == 1
    assert fnmatch(capsys.readouterr().err, f"{file}:3: models[[]0].{problem}\n")


@pytest.mark.parametrize("line", ["image: {repository: a b}", "nodes: {l4: {}}", "redis: {size: 1GB}"])
def test_a_file_with_any_value_of_the_chart_is_checked_as_a_clusters(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(f"{line}\n")
    assert main(["check", str(tmp_path / "mine.yaml")]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'mine.yaml'}:1: {line.partition(':')[0]}.")


def test_new_leaves_nothing_behind_for_wrong_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "values.yaml").write_text("clod: gke\n")
    assert main(["k8s", "new", str(tmp_path / "made"), "--values", str(tmp_path / "values.yaml")]) == 1
    assert "clod: unknown key; did you mean cloud?" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    assert main(["k8s", "new", str(tmp_path / "made"), "--values", str(tmp_path / "gone")]) == 1


def test_render_writes_what_is_not_current(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "kustomization.yaml").write_text("resources: [objects]\nnamePrefix: a-\n")
    with (made / chart.VALUES).open("a") as values:
        values.write("host: models.example.com\n")
    assert main(["k8s", "render", str(made), "--check"]) == 1
    assert f"run: {command(f'k8s render {made}')}\n" in capsys.readouterr().err
    assert not (made / "objects/entrance.yaml").exists()
    assert main(["k8s", "render", str(made)]) == 0
    assert f"Wrote {made / 'objects/entrance.yaml'}\n" in capsys.readouterr().out
    assert main(["k8s", "render", str(made), "--check"]) == 0
    assert "namePrefix" in (made / "kustomization.yaml").read_text(), "its owner's"
    (made / chart.VALUES).write_text(DEMO.read_text())
    assert main(["k8s", "render", str(made)]) == 0
    assert f"Removed {made / 'objects/entrance.yaml'}\n" in capsys.readouterr().out


def test_render_keeps_a_clusters_name_and_namespace(tmp_path: Path) -> None:
    made = tmp_path / "made"
    options = ["--values", str(DEMO), "--name", "blue", "--namespace", "team"]
    assert main(["k8s", "new", str(made), *options]) == 0
    assert main(["k8s", "render", str(made), "--check"]) == 0


def test_a_whole_serve_configuration_takes_the_place_of_models(made: Path, tmp_path: Path) -> None:
    served = ray_service(manifests.read(made / "objects"))["spec"]["serveConfigV2"]
    (tmp_path / "mine.yaml").write_text(served.replace("max_replicas: 2", "max_replicas: 4"))
    options = ["--values", str(DEMO), "--serve-config", str(tmp_path / "mine.yaml")]
    assert main(["k8s", "new", str(tmp_path / "own"), *options]) == 0
    own = ray_service(manifests.read(tmp_path / "own/objects"))["spec"]
    assert yaml.safe_load(own["serveConfigV2"]) == yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert [it["maxReplicas"] for it in own["rayClusterConfig"]["workerGroupSpecs"]] == [5, 7]


def test_check_of_a_cluster_finds_deployments_that_fit_no_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(DEMO)]) == 0
    assert capsys.readouterr().out == f"{DEMO}: OK\n"
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(rendered("cpu-demo")).replace("maxReplicas: 4", "maxReplicas: 2"))
    assert main(["check", str(file)]) == 1
    assert "group engines: at most 2 pods" in capsys.readouterr().err


def test_check_passes_on_errors_of_kustomize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [gone.yaml]\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "gone.yaml" in capsys.readouterr().err


def test_the_command_prints_the_key_once_and_appends_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    options = ["--endpoint", "chat", "--endpoint", "embed", "--expires", "90d", "--tokens-per-minute", "9"]
    assert main(["keys", "create", "--name", "team", "--file", str(path), "--prefix", "dapi", *options]) == 0
    printed = capsys.readouterr()
    key = printed.out.strip()
    assert key.startswith("dapi")
    assert key not in printed.err + path.read_text()
    caller = KeyRing.parse(path.read_text()).caller(key, datetime.now(UTC).timestamp())
    assert (caller.name, caller.endpoints) == ("team", frozenset({"chat", "embed"}))
    assert caller.limits == Limits(tokens_per_minute=9)
    with pytest.raises(Unauthorized, match="expired"):
        KeyRing.parse(path.read_text()).caller(key, (datetime.now(UTC) + timedelta(days=91)).timestamp())


def test_without_a_file_the_command_prints_the_record_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "--name", "team"]) == 0
    key, record, _ = capsys.readouterr().out.split("\n")
    assert key.startswith("sk-sy-")
    assert KeyRing.parse(record).caller(key, 0).endpoints is None


@pytest.mark.parametrize(
    "options",
    [["--name", "anonymous"], ["--name", "a\tb"], ["--name", "x", "--prefix", "a b"], ["--name", "x", "--file", "/"]],
)
def test_a_key_that_could_not_be_used_is_rejected(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", *options]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


@pytest.mark.parametrize(
    "options", [["--expires", "2020-01-01"], ["--expires", "soon"], ["--requests-per-minute", "0"], []]
)
def test_wrong_options_are_rejected(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", *(["--name", "x", *options] if options else [])]) == 2
    assert capsys.readouterr().out == ""


def test_a_name_that_the_file_has_is_refused_in_a_sentence_that_offers_a_rotation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    create = ["keys", "create", "--name", "boss", "--file", str(path)]
    assert main(create) == 0
    before = path.read_text()
    capsys.readouterr()
    assert main(create) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"switchyard keys rotate --name boss --file {path}" in printed.err
    assert path.read_text() == before


def test_a_rotated_key_is_printed_once_and_the_old_one_works_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    main(["keys", "create", "--name", "team", "--endpoint", "chat", "--file", str(path)])
    old = capsys.readouterr().out.strip()
    rotate = ["keys", "rotate", "--name", "team", "--file", str(path)]
    assert main([*rotate, "--overlap", "3d", "--prefix", "dapi"]) == 0
    printed = capsys.readouterr()
    new = printed.out.strip()
    assert new.startswith("dapi")
    assert new not in printed.err + path.read_text()
    assert "the old key works until" in printed.err
    ring, now = KeyRing.parse(path.read_text()), datetime.now(UTC)
    assert ring.caller(old, now.timestamp()) == ring.caller(new, now.timestamp())
    with pytest.raises(Unauthorized, match="expired"):
        ring.caller(old, (now + timedelta(days=4)).timestamp())
    assert main(rotate) == 1
    assert "has two valid keys" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "code"), [(["--overlap", "soon"], 2), (["--expires", "2020-01-01"], 2), ([], 1)])
def test_a_rotation_that_cannot_be_made_changes_nothing(
    tmp_path: Path, options: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    main(["keys", "create", "--name", "team", "--file", str(path)])
    before = path.read_text()
    capsys.readouterr()
    assert main(["keys", "rotate", "--name", "team" if options else "nobody", "--file", str(path), *options]) == code
    assert capsys.readouterr().out == ""
    assert path.read_text() == before


def test_the_entries_of_a_clusters_secret_follow_from_the_masters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWITCHYARD_INTERNAL_KEY", raising=False)
    assert main(["keys", "internal"]) == 0
    made = dict(line.split("=") for line in capsys.readouterr().out.splitlines())
    monkeypatch.setenv("SWITCHYARD_INTERNAL_KEY", f"{made['internal-key']},next")
    assert main(["keys", "internal"]) == 0
    both = dict(line.split("=") for line in capsys.readouterr().out.splitlines())
    assert both["internal-key"] == f"{made['internal-key']},next"
    assert both["engine-key"] == f"{made['engine-key']},{derived('next', Purpose.ENGINE)}"
    monkeypatch.setenv("SWITCHYARD_INTERNAL_KEY", "")
    assert main(["keys", "internal"]) == 2
