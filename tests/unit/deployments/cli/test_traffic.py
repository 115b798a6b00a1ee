"""`check` and `deploy` while a ramp moves traffic, against a server that answers as Ray's dashboard does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deployments.cli.main import main
from deployments.cli.options import ExitCode
from deployments.local.processes import RUN_DIRECTORY, Run, write_record
from tests.support.processes.servers import serve

EXPERIMENT = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    "ramp": {},
}


def router_config(green: int, plan: dict[str, Any] | None = None) -> dict[str, Any]:
    traffic = {"blue": 100 - green, "green": green}
    endpoint = {"tasks": ["chat"], "traffic": traffic, "sticky": {"by": "conversation"}, "plan": plan or {}}
    return {
        "endpoints": {"chat": endpoint},
        "deployments": {name: {"url": "http://127.0.0.1:9", "model": "m"} for name in traffic},
        "experiments": {"exp": EXPERIMENT},
    }


def serve_file(config: dict[str, Any]) -> dict[str, Any]:
    router = {
        "name": "router",
        "route_prefix": "/",
        "import_path": "deployments.router:build",
        "deployments": [{"name": "Router", "user_config": config}],
    }
    experiments = {"name": "experiments", "route_prefix": "/deployments/experiments"}
    return {"applications": [router, {**experiments, "import_path": "deployments.experiments:build"}]}


class FakeRun:
    """A running application whose ramp has brought green to 25 %, as Ray's dashboard shows it."""

    def __init__(self) -> None:
        self.user_config: Any = router_config(25, {"generation": 3, "by": "experiment exp", "since": 1.0})
        self.deployed: list[Any] = []
        self.app = Starlette(routes=[Route("/api/serve/applications/", self.handle, methods=["GET", "PUT"])])

    async def handle(self, request: Request) -> Response:
        if request.method == "PUT":
            self.deployed.append(json.loads(await request.body()))
            return Response()
        deployments = [{"name": "Router", "user_config": self.user_config}]
        router = {"status": "RUNNING", "deployed_app_config": {"deployments": deployments}}
        return JSONResponse({"applications": {"router": router}})


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRun]:
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path))
    running = FakeRun()
    with serve(running.app) as url:
        write_record(tmp_path, Run(1, "a-run", 8000, url, str(tmp_path)))
        yield running


def written(tmp_path: Path, green: int) -> str:
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(serve_file(router_config(green))))
    return str(file)


WINS = "warning: endpoints.chat.traffic: 'exp' has brought it to blue 75 %, green 25 %; this file says blue 99 %, green"


def test_deploy_warns_about_the_ramp_and_applies_the_file(
    running: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", written(tmp_path, 1)]) == 0
    assert capsys.readouterr().err.startswith(WINS)
    assert len(running.deployed) == 1


def test_check_warns_without_applying_the_file(
    running: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", written(tmp_path, 1)]) == 0
    assert capsys.readouterr().err.startswith(WINS)
    assert running.deployed == []


def test_a_file_with_the_ramps_present_split_gets_no_warning(
    running: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", written(tmp_path, 25)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("applied", [None, {"endpoints": {}}], ids=["no router", "of another version"])
def test_there_is_no_warning_if_the_running_configuration_is_unknown(
    running: FakeRun, applied: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.user_config = applied
    assert main(["check", written(tmp_path, 1)]) == 0
    assert capsys.readouterr().err == ""


def test_an_invalid_file_has_problems_and_no_warnings(
    running: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text("applications: []")
    assert main(["deploy", str(tmp_path / "file.yaml")]) == ExitCode.WRONG
    assert "warning" not in capsys.readouterr().err
    assert running.deployed == []
