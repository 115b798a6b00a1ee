"""`switchyard k8s render`, and `check` of a cluster."""

from pathlib import Path

import pytest
import yaml

from deployments.cli.main import main
from deployments.invocation import command
from deployments.kubernetes.generated import GENERATED, SERVED
from tests.support.kubernetes.overlays import rendered
from tests.support.processes.project import ROOT

DEMO = ROOT / "k8s/overlays/cpu-demo"


def test_render_writes_files_that_are_not_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / SERVED).write_text((DEMO / SERVED).read_text())
    assert main(["k8s", "render", str(tmp_path), "--check"]) == 1
    assert f"run: {command(f'k8s render {tmp_path}')}\n" in capsys.readouterr().err
    assert not (tmp_path / GENERATED).exists()
    assert main(["k8s", "render", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"Wrote {tmp_path / GENERATED}\n"
    assert (tmp_path / GENERATED).read_text() == (DEMO / GENERATED).read_text()
    assert main(["k8s", "render", str(tmp_path), "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_render_finds_the_overlays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    overlay = tmp_path / "k8s/overlays/mine"
    overlay.mkdir(parents=True)
    (overlay / SERVED).write_text((DEMO / SERVED).read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["k8s", "render"]) == 0
    assert (overlay / GENERATED).is_file()


def test_render_names_the_mistakes_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / SERVED).write_text("applications: []\n")
    assert main(["k8s", "render", str(tmp_path)]) == 1
    assert "no application is named 'router'" in capsys.readouterr().err


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
