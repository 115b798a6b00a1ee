"""`switchyard k8s`, and `check` of a cluster."""

from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

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
    assert [group["maxReplicas"] for group in own["rayClusterConfig"]["workerGroupSpecs"]] == [5, 7]


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
