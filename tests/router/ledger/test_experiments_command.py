"""`switchyard experiments` against the real router, with a controller in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.exposures.identity import request_hash
from deployments.cli.experiments_client import Check
from deployments.cli.options import ExitCode
from tests.router.conftest import Rig
from tests.support.experiments.command import NAME, ExperimentsCommand
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reports import SHIP
from tests.support.processes.servers import ServerPool


class ReportingCommand(ExperimentsCommand):
    """A controller that has a report."""

    def __init__(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        self.controller = FakeController()
        super().__init__(self.controller, rig.config, capsys)


@pytest.fixture
def running(
    rig: Rig, servers: ServerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[ReportingCommand]:
    monkeypatch.chdir(tmp_path)  # the ledger's directory, with the units' secret
    running = ReportingCommand(rig, capsys)
    with servers.host(running.router.app) as running.url:
        yield running


def test_the_list_and_the_report(running: ReportingCommand) -> None:
    code, out, _ = running.switchyard("list")
    assert code == 0
    assert out.splitlines()[1].startswith(NAME)
    assert running.switchyard("report", NAME) == (0, running.switchyard("report", NAME, "--check")[1], "")
    assert json.loads(running.switchyard("report", NAME, "--format", "json")[1])["headline"] == SHIP.headline


def test_the_check_exits_by_the_decision(running: ReportingCommand) -> None:
    assert running.switchyard("report", NAME, "--check")[0] == Check.SHIP
    running.controller.absent = True
    code, out, error = running.switchyard("report", NAME, "--check")
    assert (code, out, error) == (ExitCode.UNREACHABLE, "", "The controller of experiments cannot be reached\n")


def test_history_planner_and_aa_runs(running: ReportingCommand) -> None:
    assert "-20.0 % to +6.0 %" in running.switchyard("history", NAME, "--metric", "ttft")[1]
    assert "26,002 units" in running.switchyard("planner", NAME, "--effect", "0.05")[1]
    assert "35.4 %" in running.switchyard("aa", NAME, "--runs", "20")[1]


def test_a_name_that_does_not_exist(running: ReportingCommand) -> None:
    code, out, error = running.switchyard("report", "red")
    assert (code, out, error) == (ExitCode.WRONG, "", f"No experiment 'red'; known: {NAME}\n")


def test_a_key_is_explained(running: ReportingCommand) -> None:
    code, out, _ = running.switchyard("explain", "chat", "session-1")
    assert code == 0
    first, why = out.splitlines()[:2]
    assert first in ("chat: blue", "chat: green")
    assert why.startswith("Of all deployments, ")
    code, _, error = running.switchyard("explain", "chat")
    assert (code, error.startswith("key: name a conversation")) == (ExitCode.WRONG, True)
    assert "drawn for each request" in running.switchyard("explain", "embed")[1]


def test_the_explained_deployment_is_the_one_that_answers(running: ReportingCommand) -> None:
    chat = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    sessions = [f"session-{number}" for number in range(8)]
    explained = [
        json.loads(running.switchyard("explain", "chat", session, "--json")[1])["deployment"] for session in sessions
    ]
    answers = [
        httpx.post(f"{running.url}/v1/chat/completions", json=chat, headers={"x-session-id": session})
        for session in sessions
    ]
    assert [answer.headers["azureml-model-deployment"] for answer in answers] == explained
    assert set(explained) == {"blue", "green"}


def test_a_request_is_shown_as_json(running: ReportingCommand) -> None:
    running.controller.reader.rows[request_hash("r1")] = [{"assigned": "blue", "caller": "00"}]
    assert json.loads(running.switchyard("request", "r1")[1]) == [{"assigned": "blue"}]
    assert running.switchyard("request", "r2")[0] == ExitCode.WRONG


def test_feedback_is_sent_one_by_one_or_from_a_file(running: ReportingCommand, tmp_path: Path) -> None:
    code, out, _ = running.switchyard("feedback", "r1", "thumbs", "true")
    assert code == 0
    kept = "those of answers under way are kept for a minute"
    assert out == f"Accepted 1; 1 of them match no answer; {kept}.\n"
    scores = [{"request_id": f"r{number}", "metric": "stars", "value": 4} for number in range(1500)]
    file = tmp_path / "scores.jsonl"
    file.write_text("".join(f"{json.dumps(score)}\n" for score in [*scores, {**scores[0], "metric": "stras"}]) + "\n")
    _, out, _ = running.switchyard("feedback", "--file", str(file))
    assert out.startswith("Accepted 1500; ")
    assert out.endswith("no running experiment declares stras.\n")
    code, _, error = running.switchyard("feedback", "r1", "stars", "9")
    assert (code, error) == (ExitCode.WRONG, "value: must be a number from 1 to 5, not 9.0\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r1", "thumbs"], "Name either ID, METRIC and VALUE, or --file"),
        (["r1", "thumbs", "yes"], "'yes': expected true, false or a number"),
    ],
)
def test_an_invalid_score_is_refused(running: ReportingCommand, arguments: list[str], message: str) -> None:
    code, _, error = running.switchyard("feedback", *arguments)
    assert (code, error) == (ExitCode.USAGE, f"{message}\n")


def test_a_file_of_scores_with_a_mistake_names_the_line(running: ReportingCommand, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    file.write_text("{}\n\nno json\n")
    assert running.switchyard("feedback", "--file", str(file))[2] == f"{file}:3: is not a JSON object\n"
    assert running.switchyard("feedback", "--file", str(tmp_path))[2].startswith(f"{tmp_path}: ")


def test_metrics_show_the_experiment_and_the_plans(running: ReportingCommand) -> None:
    shown = httpx.get(f"{running.url}/metrics").text
    assert 'switchyard_experiment_units{arm="smollm2-green",endpoint="chat",experiment="green-float32"} 1198.0' in shown
    assert shown.count("\nswitchyard_plan_info{") == 2
    assert shown.count("# TYPE switchyard_experiment_lift gauge") == 1


def test_metrics_are_shown_while_the_controller_is_away(running: ReportingCommand) -> None:
    running.controller.absent = True
    shown = httpx.get(f"{running.url}/metrics")
    assert shown.status_code == 200
    assert "switchyard_experiment_lift" not in shown.text
    assert "switchyard_plan_info" in shown.text
