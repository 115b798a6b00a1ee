"""`switchyard experiments decide` and `watch` against the real router, with a controller in memory."""

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer

from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.query import Action
from app.experiments.contract.report import AutomationStatus
from deployments.cli import experiments_decisions
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from deployments.invocation import command
from tests.router.conftest import Rig
from tests.support.experiments.command import NAME, ExperimentsCommand
from tests.support.experiments.deciding_controller import DecidingController
from tests.support.experiments.reader import FixedEvidence
from tests.support.experiments.reports import SHIP
from tests.support.processes.servers import ServerPool


class DecidingCommand(ExperimentsCommand):
    """A controller that takes decisions."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self.controller = DecidingController()
        super().__init__(self.controller, rig.config, capsys)

    def decide(self, action: str, *more: str) -> tuple[int, str, str]:
        return self.switchyard("decide", NAME, action, "--reason", "as agreed", *more)


@pytest.fixture
def running(
    rig: Rig, servers: ServerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[DecidingCommand]:
    monkeypatch.chdir(tmp_path)  # the ledger's directory, with the units' secret
    running = DecidingCommand(rig, capsys)
    with servers.host(running.router.app) as running.url:
        yield running


def test_a_decision_shows_what_holds_and_what_it_does(running: DecidingCommand) -> None:
    code, out, shown = running.decide("advance", "--yes")
    assert code == 0
    assert "Now: running, smollm2-green has 5 % of the traffic (step 2).\n" in shown
    assert "advance: smollm2-green gets 25 % of the traffic, without waiting.\n" in shown
    assert "  smollm2-blue  95 % → 75 %\n  smollm2-green  5 % → 25 %\n" in shown
    assert "Now: running" in out
    (decision,) = running.controller.decisions
    assert decision == {"action": "advance", "reason": "as agreed", "by": decision["by"], "revision": 7}


def test_a_treatment_can_be_named(running: DecidingCommand) -> None:
    assert running.decide("promote", "--treatment", "green", "--yes")[0] == 0
    assert running.controller.decisions[0]["treatment"] == "green"


@pytest.mark.parametrize("decision", ["do_not_ship", "keep_going", "invalid"])
def test_to_promote_what_is_not_to_ship_its_name_must_be_typed(
    running: DecidingCommand, monkeypatch: pytest.MonkeyPatch, decision: Any
) -> None:
    running.controller.reader.judged = FixedEvidence(msgspec.structs.replace(SHIP, decision=decision, decisions={}))
    code, _, shown = running.decide("promote", "--yes")
    assert (code, running.controller.decisions) == (ExitCode.WRONG, [])
    assert shown.endswith("To promote it all the same: add --treatment smollm2-green\n")
    for typed, decided in (("y", 0), ("smollm2-blue", 0), ("smollm2-green", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{typed}\n"))
        shown = running.decide("promote")[2]
        assert f"smollm2-green {experiments_decisions.DOUBTS[decision]}\n" in shown
        assert len(running.controller.decisions) == decided, typed
    assert running.decide("promote", "--yes", "--treatment", "smollm2-green")[0] != ExitCode.USAGE


def test_what_is_to_ship_is_promoted_without_its_name(running: DecidingCommand) -> None:
    code, _, shown = running.decide("promote", "--yes")
    assert (code, "is not known" in shown) == (0, False)


def test_without_confirmation_no_decision_is_made(running: DecidingCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # no one answers the prompt
    code, out, shown = running.decide("stop")
    assert (code, out.strip()) == (ExitCode.WRONG, "")
    assert shown.endswith("No decision was made. Without a terminal: add --yes\n")
    for answer, decided in (("n", 0), ("y", 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
        running.decide("pause")
        assert len(running.controller.decisions) == decided


def test_a_decision_on_a_stale_state_is_refused(running: DecidingCommand) -> None:
    running.controller.overtaken = True
    code, out, shown = running.decide("advance", "--yes")
    assert (code, out) == (ExitCode.WRONG, "")
    assert "the experiment has gone on since" in shown
    assert running.decide("pause", "--yes")[0] == 0, "correct regardless of what happens meanwhile"


@pytest.mark.parametrize(("action", "code"), [("rollback", 0), ("advance", ExitCode.WRONG)])
def test_a_step_of_the_ramp_in_between_does_not_hold_up_a_rollback(
    running: DecidingCommand, action: str, code: int
) -> None:
    running.controller.steps_when_foreseen = True
    assert running.decide(action, "--yes")[0] == code
    assert len(running.controller.decisions) == (1 if code == 0 else 0)


def test_inapplicable_decisions_are_refused(running: DecidingCommand) -> None:
    running.controller.refuse("The experiment runs: there is nothing to resume")
    code, out, shown = running.decide("resume", "--yes")
    assert (code, out, shown.splitlines()[-1]) == (1, "", "The experiment runs: there is nothing to resume")
    assert running.switchyard("decide", "red", "stop", "--reason", "x")[0] == ExitCode.WRONG
    assert running.switchyard("decide", NAME, "explode", "--reason", "x")[0] == ExitCode.USAGE
    assert running.switchyard("decide", NAME, "stop")[0] == ExitCode.USAGE
    running.controller.acting = None
    assert "Nothing acts on" in running.decide("stop", "--yes")[2]
    running.controller.absent = True
    assert running.decide("stop", "--yes")[0] == ExitCode.UNREACHABLE


class InterruptingOutput(list[str]):
    """Records printed lines; raises Ctrl-C at the `last`."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def print(self, message: Any, err: bool = False) -> None:
        if err:
            return
        self.append(str(message))
        if len(self) == self._last:
            raise KeyboardInterrupt


def happened(running: DecidingCommand, at: float, what: str, experiment: str | None, **detail: Any) -> None:
    running.controller.reader.journal.append(JournalEntry(at, what, experiment, detail, "w"))


def test_events_are_followed_until_ctrl_c(running: DecidingCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    happened(running, 1762956300.0, "controller_started", None)
    happened(running, 1762956301.0, "alarm", NAME, text="Too many errors.")
    plan = {"endpoint": "elsewhere", "generation": 2, "weights": {"blue": 100}}
    happened(running, 1762956302.0, "plan", None, **plan)
    printed = InterruptingOutput(3)
    monkeypatch.setattr(typer, "echo", printed.print)
    later = threading.Timer(0.2, happened, (running, 1762956303.0, "verdict", NAME), {"text": "green is better"})
    later.start()
    assert main(["experiments", "watch", NAME, "--since", "2025-11-12", "--url", running.url]) == 0
    later.join()
    assert printed == [
        "2025-11-12 14:05:00 UTC  The controller of experiments started",
        "2025-11-12 14:05:01 UTC  green-float32: Too many errors.",
        "2025-11-12 14:05:03 UTC  green-float32: green is better",
    ]


def test_events_as_json(running: DecidingCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    happened(running, 1762956301.0, "alarm", NAME, text="Too many errors.", kind="guardrail")
    printed = InterruptingOutput(1)
    monkeypatch.setattr(typer, "echo", printed.print)
    assert main(["experiments", "watch", "--since", "0", "--json", "--url", running.url]) == 0
    assert json.loads(printed[0]) == {
        "at": 1762956301.0,
        "experiment": NAME,
        "endpoint": "chat",
        "text": "Too many errors.",
        "kind": "guardrail",
    }


def test_watch_without_an_experiment_a_time_or_a_server_fails(running: DecidingCommand) -> None:
    assert running.switchyard("watch", "red")[0] == ExitCode.WRONG
    assert running.switchyard("watch", "--since", "yesterday")[0] == ExitCode.USAGE
    assert main(["experiments", "watch", "--url", "http://127.0.0.1:9"]) == ExitCode.UNREACHABLE


def test_the_command_knows_every_action(running: DecidingCommand) -> None:
    for action in get_args(Action):
        assert running.decide(action, "--yes")[0] == 0, action
        assert running.controller.acting is not None
        running.controller.acting = msgspec.structs.replace(running.controller.acting, revision=7)


def test_a_split_by_hand_says_that_it_pauses_a_ramp(
    running: DecidingCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> str:
        main(["traffic", "chat", *arguments, "--url", running.url])
        return capsys.readouterr().err

    warning = "warning: the ramp of 'green-float32' moves this traffic; a change by hand pauses it\n"
    assert shown("blue=50", "green=50", "--dry-run").startswith(warning)
    assert not shown().startswith("warning")
    acting = running.controller.acting
    assert acting is not None
    for still in (
        msgspec.structs.replace(acting, state="paused"),
        AutomationStatus(state="running", revision=1, share=40),
    ):
        running.controller.acting = still
        assert not shown("blue=50", "green=50", "--dry-run").startswith("warning")
    running.controller.absent = True
    assert not shown("blue=50", "green=50", "--dry-run").startswith("warning")


def test_the_list_has_the_state(running: DecidingCommand) -> None:
    acting = running.controller.acting
    assert acting is not None
    running.controller.acting = msgspec.structs.replace(acting, state="paused", stopped=["green"])
    out = running.switchyard("list")[1]
    assert "paused at 5 %, no traffic for green" in " ".join(out.split())


def test_the_way_on_can_be_pasted_from_a_terminal_and_names_the_program_elsewhere(running: DecidingCommand) -> None:
    running.controller.acting = AutomationStatus(state="paused", revision=7, step=1, share=5, cause="decision")
    resume = f"experiments decide {NAME} resume --reason TEXT"
    assert f"To go on: {command(resume, running.url)}\n" in running.switchyard("report", NAME)[1]
    assert f"To go on: switchyard {resume}\n" in running.switchyard("report", NAME, "--format", "markdown")[1]
