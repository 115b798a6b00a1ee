"""`GET /api/exposures`, and `switchyard experiments export` on a running server."""

import csv
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.access.keys import append, create
from app.config.schema import Config, parse
from app.errors import Unavailable
from app.experiments.host import ControllerHost, host_controller
from app.exposures.controller_client import Answer, ExportStream
from app.internal_api import APP_PREFIX, EXPERIMENTS
from app.internal_keys import Purpose, derived
from app.server.application import Router
from app.server.experiments_host import experiments_app
from app.upstream.controller_client import HttpController
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from deployments.engine.internal_key import InternalKeyMiddleware
from tests.router.conftest import Rig
from tests.support.experiments.recorded_ledger import recorded_ledger
from tests.support.experiments.world import START, World, config
from tests.support.processes.servers import ServerPool

NAME, REQUESTS, KEY = "green-float32", 3000, "internal"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of traffic, recorded by a controller that has ended."""
    return Path(recorded_ledger(tmp_path_factory.mktemp("recorded"), World(), config(), REQUESTS))


class ExportRig:
    """A router with a manager and a team, and a controller on a recorded ledger."""

    def __init__(self, section: Mapping[str, Any], directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.keys: dict[str, str] = {}
        for name in ("boss", "team"):
            self.keys[name], record = create(name, endpoints=["chat"])
            append(directory / "keys.yaml", record.line)
        access = {"keys_file": str(directory / "keys.yaml"), "managers": ["boss"]}
        self.config: Config = parse({**section, "access": access})
        self.url, self._capsys = "", capsys

    async def read(self) -> Config:
        """The configuration, as the controller reads it."""
        return self.config

    def get(self, key: str = "boss", **query: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return httpx.get(f"{self.url}/api/exposures", params=query, headers=headers)

    def export(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of the manager's command."""
        code = main(["experiments", "export", *arguments, "--url", self.url, "--key", self.keys["boss"]])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture(params=["over HTTP", "in the same process"])
def exporting(
    request: pytest.FixtureRequest,
    rig: Rig,
    ledger: Path,
    servers: ServerPool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[ExportRig]:
    exporting = ExportRig({**rig.config, "ledger": {"url": str(ledger)}}, tmp_path, capsys)
    host = host_controller(exporting.read, tmp_path)
    with ExitStack() as stack:
        controller: HttpController | ControllerHost = host
        environment = RuntimeEnvironment()
        if request.param == "over HTTP":
            hosted = experiments_app(host)
            app = InternalKeyMiddleware(hosted, keys=[derived(KEY, Purpose.CONTROLLER)])
            mounted = Starlette(
                routes=[Mount(f"{APP_PREFIX}{EXPERIMENTS}", app)], lifespan=hosted.router.lifespan_context
            )
            environment = RuntimeEnvironment(stack.enter_context(servers.host(mounted)), KEY)
            controller = HttpController(environment)
        router = Router(environment, controller=controller, exports=controller)
        router.reconfigure(exporting.config)
        exporting.url = stack.enter_context(servers.host(router.app))
        yield exporting


def test_a_server_exports_what_its_directory_has(
    exporting: ExportRig, ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("csv", "jsonl", "parquet"):
        files = [tmp_path / f"{name}.{form}" for name in ("server", "directory")]
        status = exporting.export("--format", form, "--output", str(files[0]))
        assert status == (0, "", f"{REQUESTS} exposures.\n")
        assert (
            main(["experiments", "export", "--ledger", str(ledger), "--format", form, "--output", str(files[1])]) == 0
        )
        assert capsys.readouterr().err == status[2]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert pq.read_table(tmp_path / "server.parquet").num_rows == REQUESTS


def test_a_part_is_exported(exporting: ExportRig) -> None:
    answer = exporting.get(experiment=NAME, since=str(START + 3600), until="2027-01-15T10:00", format="csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    times = [float(row["at"]) for row in csv.DictReader(io.StringIO(answer.text))]
    assert 0 < len(times) < REQUESTS / 12
    assert all(START + 3600 <= at < START + 7200 for at in times)
    assert exporting.get(endpoint="embed").text == ""


def test_a_trace_is_made_of_an_experiments_exposures(exporting: ExportRig) -> None:
    code, out, error = exporting.export(NAME, "--format", "vllm-bench")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, error.splitlines()[0]) == (0, f"{len(lines)} requests.")
    assert len(lines) > 0.9 * REQUESTS
    assert lines[0]["timestamp"] == 0
    code, _, error = exporting.export("--format", "vllm-bench")
    assert (code, error.startswith("Recordings are read from a directory: --ledger")) == (ExitCode.USAGE, True)


def test_only_managers_export(exporting: ExportRig) -> None:
    answer = exporting.get("team")
    assert answer.status_code == 403
    assert answer.json()["error"]["message"].endswith("nor in `access.viewers`")


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"experiment": "red"}, 404, "experiment"),
        ({"since": "yesterday"}, 400, "since"),
        ({"until": "nan"}, 400, "until"),
        ({"format": "xlsx"}, 400, "format"),
        ({"limit": "3"}, 400, "limit"),
    ],
)
def test_a_wrong_parameter_is_named(exporting: ExportRig, query: dict[str, str], status: int, param: str) -> None:
    answer = exporting.get(**query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_an_unknown_experiment_is_one_line(exporting: ExportRig) -> None:
    assert exporting.export("red") == (ExitCode.WRONG, "", f"The ledger has no run of 'red'; it has {NAME}\n")


class BreakingExportClient:
    """An `ExportClient` whose controller disappears in the middle."""

    @asynccontextmanager
    async def export(self, query: Mapping[str, str]) -> AsyncIterator[ExportStream | Answer]:
        yield ExportStream("text/csv", self._pieces())

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield b"router,batch\n" * 10_000
        raise Unavailable("The controller of experiments is not available")


def test_an_export_that_ends_early_is_no_export(
    rig: Rig, servers: ServerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporting = ExportRig(rig.config, tmp_path, capsys)
    router = Router(RuntimeEnvironment(), exports=BreakingExportClient())
    router.reconfigure(exporting.config)
    with servers.host(router.app) as exporting.url:
        code, _, error = exporting.export("--output", str(tmp_path / "exposures.csv"))
    assert code == ExitCode.UNREACHABLE
    assert error.splitlines()[-1] == f"{exporting.url} ended its answer early. Ask again"


def test_a_router_without_a_controller_says_so(
    rig: Rig, servers: ServerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporting = ExportRig(rig.config, tmp_path, capsys)
    router = Router(RuntimeEnvironment())
    router.reconfigure(exporting.config)
    with servers.host(router.app) as exporting.url:
        assert exporting.export()[0] == ExitCode.UNREACHABLE
        assert exporting.get().status_code == 503
