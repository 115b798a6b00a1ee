"""The source of the configuration: a file, otherwise what Serve has deployed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deployments.doctor.finding import Installation, Level, installation
from deployments.doctor.host_checks import configuration
from deployments.invocation import command
from deployments.kubernetes.manifests import ray_service
from tests.support.kubernetes.overlays import rendered
from tests.support.processes.installations import default, levels, the_problem
from tests.support.processes.servers import free_port, serve

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@dataclass
class Pod:
    """Where a pod finds the node's logs, and the port of Ray's dashboard."""

    directory: Path
    port: int

    def installation(self, file: Path | None, environment: Mapping[str, str] = IN_A_POD) -> Installation:
        return installation(file, environment, cluster_logs=self.directory / "logs", dashboard_port=self.port)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A container's working directory, without a configuration, on a node that Ray was started on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "logs").mkdir()
    return Pod(tmp_path, free_port())


@pytest.fixture
def head(pod: Pod) -> Iterator[dict[str, Any]]:
    """Serve's answer, as the head gives it: each application with the configuration that was deployed."""
    document = yaml.safe_load(ray_service(rendered("cpu-demo"))["spec"]["serveConfigV2"])

    async def handle(request: Request) -> JSONResponse:
        applications = {
            application["name"]: {"status": "RUNNING", "deployed_app_config": application}
            for application in document["applications"]
        }
        return JSONResponse({"http_options": document["http_options"], "applications": applications})

    with serve(Starlette(routes=[Route("/api/serve/applications/", handle)])) as url:
        pod.port = int(url.rpartition(":")[2])
        yield document


def test_without_a_file_the_deployed_configuration_is_checked(pod: Pod, head: dict[str, Any]) -> None:
    examined = pod.installation(None)
    (finding,) = configuration(examined)
    assert (finding.level, finding.message) == (Level.OK, "the deployed configuration is valid")
    assert examined.document == head
    assert str(examined.config.access.keys_file if examined.config else None) == "/etc/switchyard/keys.yaml"
    head["applications"][0]["deployments"][0]["user_config"]["endpoints"]["chat"]["traffic"] = {"nobody": 100}
    broken = the_problem(configuration(pod.installation(None, {**IN_A_POD, "RAY_ADDRESS": "127.0.0.1:6379"})))
    assert broken.startswith("the deployed configuration: applications[0].deployments[0].user_config.endpoints.chat")


def test_a_file_comes_before_the_deployed_configuration(pod: Pod, head: dict[str, Any]) -> None:
    (pod.directory / "serve_config.yaml").write_text(yaml.safe_dump(default()))
    (finding,) = configuration(pod.installation(None))
    assert (finding.level, finding.message) == (Level.OK, "serve_config.yaml is valid")
    assert "other.yaml" in the_problem(configuration(pod.installation(Path("other.yaml"))))


@pytest.mark.parametrize("text", [None, "endpoints: [", "- 1", "endpoints: {}"])
def test_a_problem_of_a_file_names_it_once(pod: Pod, text: str | None) -> None:
    if text is not None:
        (pod.directory / "other.yaml").write_text(text)
    for finding in configuration(pod.installation(Path("other.yaml"), {})):
        assert finding.message.count("other.yaml") == 1
        fix = f"correct it; `{command('check other.yaml')}` checks it"
        assert finding.fix == (fix if text is not None else f"name the file: {command('doctor FILE')}")


def test_neither_a_file_nor_serve_is_one_problem(pod: Pod) -> None:
    for environment in (IN_A_POD, {}):
        findings = list(configuration(pod.installation(None, environment)))
        assert levels(findings) == [Level.PROBLEM]
        assert findings[0].message.startswith("serve_config.yaml is missing and no running Serve answers")
        assert findings[0].fix == f"name the file: {command('doctor FILE')}"


def test_other_nodes_ask_the_dashboard_of_the_head(pod: Pod) -> None:
    worker = pod.installation(None, {**IN_A_POD, "RAY_ADDRESS": "head.invalid:6379"})
    assert worker.run is not None
    assert worker.run.dashboard == f"http://head.invalid:{pod.port}"
