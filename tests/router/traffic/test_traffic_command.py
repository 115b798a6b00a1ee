"""`switchyard traffic` with plans: dry runs, temporary changes, the history and rollbacks, against real routers."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config.schema import parse
from app.control_plane import Delivery
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.router.conftest import Rig
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool


class TrafficCommand:
    """A router with a control plane and a controller, and `switchyard traffic chat` against it."""

    def __init__(self, rig: Rig, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rig.chat_endpoint(traffic={"blue": 90, "green": 10}, sticky={"by": "user"})
        self.control = MemoryControl(rig.config, self.take)
        self.control.delivers_at_once = True
        self.controller = LiveController(directory)
        environment = RuntimeEnvironment(internal_key="internal")
        self.router = Router(environment, control=self.control, controller=self.controller)
        self.take(rig.config)
        self.url, self._capsys = "", capsys

    def take(self, config: Any) -> None:
        self.router.reconfigure(config)
        self.controller.configure(parse(config))

    def traffic(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        code = main(["traffic", "chat", *arguments, "--url", self.url])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = httpx.get(f"{self.url}/api/endpoints/chat/traffic").json()
        return plan


@pytest.fixture
def commanded(
    rig: Rig, servers: ServerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[TrafficCommand]:
    commanded = TrafficCommand(rig, tmp_path, capsys)
    with servers.host(commanded.router.app) as commanded.url:
        yield commanded
    commanded.controller.close()


def test_a_dry_run_reports_which_keys_would_move(commanded: TrafficCommand) -> None:
    code, out, err = commanded.traffic("blue=40", "green=60", "--dry-run")
    split, made_up, recent = out.rsplit("\n", 3)[:3]
    assert (code, split) == (0, "chat\n  blue   90 % → 40 %\n  green  10 % → 60 %")
    assert made_up.startswith("of 20,000 made-up keys, ")
    assert "blue → green" in made_up
    assert recent == "of 0 keys that this router saw last, 0.0 % would move"
    assert err == "Dry run: nothing is changed.\n"
    assert commanded.control.replaced == 0


def test_a_temporary_change_shows_when_it_ends(commanded: TrafficCommand) -> None:
    code, out, err = commanded.traffic("green=100", "--ttl", "90m", "--reason", "load test")
    assert (code, out) == (0, "chat\n  blue   90 % → 0 %\n  green  10 % → 100 %\n")
    assert "After 90m, the previous split is restored." in err
    plan = commanded.plan()
    assert (plan["weights"], plan["reason"]) == ({"blue": 0, "green": 100}, "load test")
    assert plan["expires"]["at"] == plan["since"] + 5400
    _, out, err = commanded.traffic()
    assert out == "chat\n  blue   0 %\n  green  100 %\n"
    assert err.startswith("Generation 1, since ")
    assert ", until " in err
    assert err.endswith(": load test\n")


def test_a_change_waits_for_the_one_before(commanded: TrafficCommand) -> None:
    commanded.control.delivery = Delivery.DELIVERING
    delivery = threading.Timer(0.5, commanded.control.deliver)
    delivery.start()
    code, _, err = commanded.traffic("green=100")
    delivery.join()
    assert (code, commanded.plan()["weights"]) == (0, {"blue": 0, "green": 100}), err


def test_a_change_of_weights_keeps_the_overrides(commanded: TrafficCommand) -> None:
    override = {"unit": "00000000000000ab", "deployment": "green", "until": time.time() + 3600}
    document = {"weights": {"blue": 90, "green": 10}, "overrides": [override]}
    url = f"{commanded.url}/api/endpoints/chat/traffic"
    assert httpx.put(url, json=document, headers={"if-match": "*"}).status_code == 200
    for arguments in (["green=100"], ["blue=100", "--reason", "back"], ["--rollback", "2"]):
        assert commanded.traffic(*arguments)[0] == 0
        assert commanded.plan()["overrides"] == [override]
    assert ", 1 override:" in commanded.traffic()[2]


def test_the_history_is_a_table_and_leads_back(commanded: TrafficCommand) -> None:
    commanded.traffic("blue=50", "green=50")
    commanded.traffic("green=100", "--reason", "all of it")
    code, out, err = commanded.traffic("--rollback", "1", "--reason", "too slow")
    assert (code, out) == (0, "chat\n  blue   0 % → 50 %\n  green  100 % → 50 %\n")
    assert "Every router has it." in err
    code, out, _ = commanded.traffic("--history")
    header, *rows = out.splitlines()
    assert (code, header.split()) == (0, ["GENERATION", "SINCE", "BY", "SPLIT", "REASON"])
    assert [row.split()[0] for row in rows] == ["3", "2", "1", "0"]
    assert [row.endswith(words) for row, words in zip(rows, ("too slow", "all of it"), strict=False)] == [True, True]
    assert "a file" in rows[3]
    assert "blue 90 %, green 10 %" in rows[3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["green=100", "--history"], "one at a time"),
        (["--rollback", "1", "--history"], "one at a time"),
        (["--dry-run"], "one at a time"),
        (["--ttl", "1h"], "one at a time"),
        (["--reason", "x"], "one at a time"),
        (["green=100", "--ttl", "soon"], "--ttl 'soon': expected a number and s, m, h or d, such as 30m"),
        (["--rollback", "-1"], "--rollback"),
    ],
)
def test_contradictory_options_are_refused(arguments: list[str], said: str, commanded: TrafficCommand) -> None:
    code, out, err = commanded.traffic(*arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert said in err
    assert commanded.control.replaced == 0


def test_an_unknown_generation_is_an_error(commanded: TrafficCommand) -> None:
    code, _, err = commanded.traffic("--rollback", "7")
    assert code == ExitCode.WRONG
    assert "no generation 7; the latest: 0" in err


def test_without_the_controller_the_history_is_unavailable(commanded: TrafficCommand) -> None:
    commanded.controller.absent = True
    assert commanded.traffic("--history")[0] == ExitCode.UNREACHABLE
    assert commanded.traffic("green=100")[0] == 0
