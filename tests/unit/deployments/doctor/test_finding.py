"""The source of the configuration: a file, otherwise what Serve has deployed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deployments.doctor import finding as module
from deployments.doctor.finding import DASHBOARD_PORT, Level, installation
from deployments.doctor.host_checks import configuration
from deployments.invocation import command
from tests.support.processes.installations import default, levels, the_problem
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port, serve

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container's working directory, without a configuration, on a node that Ray was started on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(module, "CLUSTER_LOGS", tmp_path / "logs")
    monkeypatch.setattr(module, "DASHBOARD_PORT", free_port())
    return tmp_path


@pytest.fixture
def head(pod: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Serve's answer, as the head gives it: each application with the configuration that was deployed."""
    document = yaml.safe_load((ROOT / "k8s/overlays/cpu-demo/serve_config.yaml").read_text())

    async def handle(request: Request) -> JSONResponse:
        applications = {it["name"]: {"status": "RUNNING", "deployed_app_config": it} for it in document["applications"]}
        return JSONResponse({"http_options": document["http_options"], "applications": applications})

    with serve(Starlette(routes=[Route("/api/serve/applications/", handle)])) as url:
        monkeypatch.setattr(module, "DASHBOARD_PORT", int(url.rpartition(":")[2]))
        yield document


def test_without_a_file_the_deployed_configuration_is_checked(head: dict[str, Any]) -> None:
    found = installation(None, IN_A_POD)
    (finding,) = configuration(found)
    assert (finding.level, finding.message) == (Level.OK, "the deployed configuration is valid")
    assert found.document == head
    assert str(found.config.access.keys_file if found.config else None) == "/etc/switchyard/keys.yaml"
    head["applications"][0]["deployments"][0]["user_config"]["endpoints"]["chat"]["traffic"] = {"nobody": 100}
    broken = the_problem(configuration(installation(None, {**IN_A_POD, "RAY_ADDRESS": "127.0.0.1:6379"})))
    assert broken.startswith("the deployed configuration: applications[0].deployments[0].user_config.endpoints.chat")


def test_a_file_comes_before_the_deployed_configuration(pod: Path, head: dict[str, Any]) -> None:
    (pod / "serve_config.yaml").write_text(yaml.safe_dump(default()))
    (finding,) = configuration(installation(None, IN_A_POD))
    assert (finding.level, finding.message) == (Level.OK, "serve_config.yaml is valid")
    assert "other.yaml" in the_problem(configuration(installation(Path("other.yaml"), IN_A_POD)))


@pytest.mark.parametrize("text", [None, "endpoints: [", "- 1", "endpoints: {}"])
def test_a_problem_of_a_file_names_it_once(pod: Path, text: str | None) -> None:
    if text is not None:
        (pod / "other.yaml").write_text(text)
    for finding in configuration(installation(Path("other.yaml"), {})):
        assert finding.message.count("other.yaml") == 1
        fix = f"correct it; `{command('check other.yaml')}` checks it"
        assert finding.fix == (fix if text is not None else f"name the file: {command('doctor FILE')}")


def test_neither_a_file_nor_serve_is_one_problem(pod: Path) -> None:
    for environment in (IN_A_POD, {}):
        found = list(configuration(installation(None, environment)))
        assert levels(found) == [Level.PROBLEM]
        assert found[0].message.startswith("serve_config.yaml is missing and no running Serve answers")
        assert found[0].fix == f"name the file: {command('doctor FILE')}"


def test_other_nodes_ask_the_dashboard_of_the_head(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DASHBOARD_PORT", DASHBOARD_PORT)
    monkeypatch.setattr(module, "_deployed", lambda run: {})
    worker = installation(None, {**IN_A_POD, "RAY_ADDRESS": "head.switchyard.svc.cluster.local:6379"})
    assert worker.run is not None
    assert worker.run.dashboard == "http://head.switchyard.svc.cluster.local:8265"
