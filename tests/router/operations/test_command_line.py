"""`switchyard status` and `switchyard traffic` against the real router, with a control plane in memory."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.control_plane import Delivery
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.router.conftest import Rig
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import serve


class Control(MemoryControl):
    """Delivers at once, or reports that the routers could not apply the change."""

    rejected = False

    async def replace(self, expected: Any, wanted: Any) -> None:
        await super().replace(expected, wanted)
        if self.rejected:
            self.delivery = Delivery.FAILED
        else:
            self.deliver()


class Managed:
    """A router whose traffic can be changed: `switchyard` runs a command against it."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self.control = Control(rig.config, lambda config: self.router.reconfigure(config))
        self.router = Router(RuntimeEnvironment(), control=self.control)
        self.router.reconfigure(rig.config)
        self.rig, self.url, self._capsys = rig, "", capsys

    def switchyard(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        code = main([*arguments, "--url", self.url])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def split(self) -> dict[str, int]:
        traffic: dict[str, int] = self.control.config["endpoints"]["chat"]["traffic"]
        return traffic


@pytest.fixture
def managed(rig: Rig, capsys: pytest.CaptureFixture[str]) -> Iterator[Managed]:
    managed = Managed(rig, capsys)
    with serve(managed.router.app) as managed.url:
        yield managed


def test_status_is_a_table_of_endpoints_split_and_health(managed: Managed) -> None:
    code, out, _ = managed.switchyard("status")
    assert code == 0
    assert out.splitlines()[0] == f"{managed.url}: ready"
    rows = [line.split("  ") for line in out.splitlines()[2:]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["ENDPOINT", "TASKS", "DEPLOYMENT", "SHARE", "HEALTH", "REPLICAS", "MODEL"],
        ["chat", "llm/v1/chat", "blue", "100 %", "healthy", "-", "blue-model"],
        ["green", "0 %", "healthy", "-", "green-model"],
        ["embed", "llm/v1/embeddings", "mini", "100 %", "healthy", "-", "mini-model"],
    ]


def test_status_as_json_is_for_scripts(managed: Managed) -> None:
    code, out, _ = managed.switchyard("status", "--json")
    status = json.loads(out)
    assert code == 0
    assert status["ready"] is True
    assert status["endpoints"]["chat"]["traffic"] == {"blue": 100, "green": 0}
    mini = {"model": "mini-model", "parent": None, "healthy": True, "application": None}
    assert status["deployments"]["mini"] == mini


def test_an_endpoint_without_a_healthy_deployment_is_exit_code_1(managed: Managed) -> None:
    managed.rig.blue.healthy = False
    code, out, _ = managed.switchyard("status")
    assert code == ExitCode.WRONG
    assert "NOT READY" in out
    assert "UNHEALTHY" in out


def test_traffic_without_shares_shows_the_split(managed: Managed) -> None:
    assert managed.switchyard("traffic", "chat") == (0, "chat\n  blue   100 %\n  green  0 %\n", "")


def test_traffic_with_shares_changes_it_and_prints_before_and_after(managed: Managed) -> None:
    code, out, err = managed.switchyard("traffic", "chat", "blue=25", "green=75%")
    assert (code, out) == (0, "chat\n  blue   100 % → 25 %\n  green  0 % → 75 %\n")
    assert "The next deploy restores the split of the configuration file." in err
    assert managed.split() == {"blue": 25, "green": 75}


def test_a_deployment_that_is_left_out_gets_nothing(managed: Managed) -> None:
    assert managed.switchyard("traffic", "chat", "green=100")[0] == 0
    assert managed.split() == {"blue": 0, "green": 100}


def test_a_dry_run_prints_the_change_without_making_it(managed: Managed) -> None:
    code, out, err = managed.switchyard("traffic", "chat", "green=100", "--dry-run")
    assert (code, out) == (0, "chat\n  blue   100 % → 0 %\n  green  0 % → 100 %\n")
    assert err == "Dry run: nothing is changed.\n"
    assert managed.control.replaced == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["gone"], "There is no endpoint 'gone'; known: chat, embed"),
        (["chat", "bleu=100"], "no deployment 'bleu' is declared; did you mean blue?"),
        (["chat", "bleu=100", "--dry-run"], "No endpoint has a deployment 'bleu'; known: blue, green, mini"),
    ],
)
def test_unknown_names_get_one_line_with_the_known_ones(arguments: list[str], expected: str, managed: Managed) -> None:
    code, out, err = managed.switchyard("traffic", *arguments)
    assert (code, out) == (ExitCode.WRONG, "")
    assert expected in err
    assert err.count("\n") == 1
    assert managed.control.replaced == 0


def test_a_change_that_the_routers_reject_is_exit_code_1(managed: Managed) -> None:
    managed.control.rejected = True
    code, _, err = managed.switchyard("traffic", "chat", "green=100")
    assert code == ExitCode.WRONG
    assert "The routers rejected the change and keep the old split" in err


def test_missing_credentials_have_an_exit_code_of_their_own(managed: Managed, rig: Rig) -> None:
    managed.router.reconfigure({**rig.config, "access": {"keys_file": "/dev/null"}})
    code, _, err = managed.switchyard("traffic", "chat")
    assert code == ExitCode.DENIED
    assert "--key KEY, or the variable SWITCHYARD_API_KEY" in err
