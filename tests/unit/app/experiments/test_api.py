"""The controller's answers, from a read side in memory."""

import json
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from app.experiments.api import MAX_ACTIONS, REPORT_S, ControllerApi
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.report import Report
from tests.support.experiments.reader import FakeReader
from tests.support.experiments.reports import SHIP, START


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


@pytest.fixture
def answers(reader: FakeReader) -> ControllerApi:
    return ControllerApi(reader)


def get(answers: ControllerApi, path: str, **query: str) -> Any:
    answer = answers.answer("GET", path, query, b"")
    assert answer.status == 200, answer.body
    return json.loads(answer.body) if answer.media_type == "application/json" else answer.body.decode()


def refused(
    answers: ControllerApi,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    query: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str, Any]:
    answer = answers.answer(method, path, query, body)
    error = json.loads(answer.body)
    return answer.status, error["message"], error["param"]


def test_every_experiment_is_listed_including_drafts(answers: ControllerApi) -> None:
    listed = get(answers, "/experiments")["experiments"]
    assert [(summary["experiment"], summary["state"], summary["decision"]) for summary in listed] == [
        ("green-float32", "running", "ship"),
        ("next", "draft", None),
    ]
    assert listed[0]["headline"] == SHIP.headline
    assert listed[0]["plan"] == "1-5e6f7a8b"


def test_one_experiment_in_a_line(answers: ControllerApi) -> None:
    assert get(answers, "/experiments/green-float32")["units"] == {"smollm2-blue": 1204, "smollm2-green": 1198}


def test_the_list_as_text(answers: ControllerApi) -> None:
    lines = get(answers, "/experiments", format="text").splitlines()
    assert lines[1].split("  ")[0] == "green-float32"
    assert lines[1].endswith("ship")
    assert SHIP.headline in lines


def test_no_experiments_as_text(reader: FakeReader, answers: ControllerApi) -> None:
    reader.declared.clear()
    assert get(answers, "/experiments", format="text") == "No experiments are declared.\n"
    assert get(answers, "/experiments") == {"experiments": []}


def test_the_report_has_three_formats(answers: ControllerApi) -> None:
    assert msgspec.convert(get(answers, "/experiments/green-float32/report"), Report) == SHIP
    assert get(answers, "/experiments/green-float32/report", format="markdown").startswith(f"# {SHIP.headline}")
    assert get(answers, "/experiments/green-float32/report", format="text").startswith(SHIP.headline)


def test_many_readers_get_one_report(reader: FakeReader, answers: ControllerApi) -> None:
    for path in ("/experiments", "/experiments/green-float32", "/experiments/green-float32/report", "/series"):
        get(answers, path)
    assert reader.judged.reports == 1
    reader.time += REPORT_S
    assert get(answers, "/experiments/green-float32/report")["at"] == reader.time
    assert reader.judged.reports == 2


def test_json_has_former_names_of_fields_too(answers: ControllerApi) -> None:
    report = get(answers, "/experiments/green-float32/report")
    points = get(answers, "/experiments/green-float32/history")["points"]
    for statement in (*report["primary"], *report["secondary"], *report["guardrails"], report["sample_ratio"], *points):
        assert statement["ln_e"] == statement["log_e_value"]
    for compared in (*report["primary"], *report["secondary"]):
        assert compared["not_worse"] == compared["non_inferior"]
    assert any(comparison["non_inferior"] for comparison in report["primary"])


def test_the_history_of_a_metric(answers: ControllerApi) -> None:
    path = "/experiments/green-float32/history"
    history = get(answers, path, metric="ttft", treatment="smollm2-green")
    assert [point["log_e_value"] for point in history["points"]] == [0.0, 0.5, 1.0]
    assert get(answers, path)["metric"] == "ttft"
    shown = get(answers, path, format="text")
    assert "-20.0 % to +6.0 %" in shown
    assert "too early" in shown, "a verdict is worded as in the report"
    assert "No look yet" in get(answers, path, metric="thumbs", format="text")


def test_the_planner_takes_the_minimal_effect_by_default(answers: ControllerApi) -> None:
    path = "/experiments/green-float32/planner"
    assert get(answers, path)["effect"] == 0.05
    assert get(answers, path, metric="ttft.p95", effect="0.2", power="0.9")["power"] == 0.9
    shown = get(answers, path, format="text")
    assert "To find an effect of 5.0 % with 80 % power: 26,002 units in both arms together" in shown
    assert "11 days from now" in shown


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/experiments", {"format": "pdf"}, "format"),
        ("/experiments/green-float32/history", {"metric": "itl"}, "metric"),
        ("/experiments/green-float32/history", {"treatment": "red"}, "treatment"),
        ("/experiments/green-float32/planner", {"effect": "0"}, "effect"),
        ("/experiments/green-float32/planner", {"power": "1"}, "power"),
        ("/experiments/green-float32/planner", {"power": "nan"}, "power"),
        ("/experiments/green-float32/report", {"at": "1"}, "at"),
    ],
)
def test_a_wrong_parameter_is_named(answers: ControllerApi, path: str, query: dict[str, str], param: str) -> None:
    status, message, named = refused(answers, path, query=query)
    assert (status, named) == (400, param)
    assert message.startswith(f"{param}: ")


def test_unknown_names_and_paths(answers: ControllerApi) -> None:
    status, message, _ = refused(answers, "/experiments/red/report")
    assert (status, message) == (404, "No experiment 'red'; declared: green-float32, next")
    status, message, _ = refused(answers, "/experiments/next/report")
    assert (status, message) == (
        404,
        "The experiment 'next' has no evidence: its state is draft; deploy its file with `state: running`",
    )
    assert refused(answers, "/nothing")[0] == 404
    assert refused(answers, "/experiments", method="DELETE")[0] == 405


def test_aa_runs_run_in_the_background(answers: ControllerApi) -> None:
    path = "/experiments/green-float32/aa"
    assert refused(answers, path)[0] == 404
    assert answers.answer("POST", path, {}, b'{"runs": 200}').status == 202
    runs = finished(answers, path)
    assert runs["state"] == "done"
    assert runs["results"][0]["sequences"] == 0.013
    shown = get(answers, path, format="text")
    assert "1.3 %" in shown
    assert "35.4 %" in shown


def finished(answers: ControllerApi, path: str) -> Any:
    while (runs := get(answers, path))["state"] == "running":
        time.sleep(0.01)
    return runs


def test_a_bug_in_aa_runs_is_reported_and_they_can_be_started_again(reader: FakeReader, answers: ControllerApi) -> None:
    path = "/experiments/green-float32/aa"
    reader.judged.failing = True
    answers.answer("POST", path, {}, b'{"runs": 1}')
    assert finished(answers, path)["state"] == "failed"
    assert "They failed" in get(answers, path, format="text")
    reader.judged.failing = False
    answers.answer("POST", path, {}, b'{"runs": 1}')
    assert finished(answers, path)["state"] == "done"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"runs": 0}', b'{"runs": true}', b'{"runs": 1, "salt": 2}'])
def test_wrong_numbers_of_runs(answers: ControllerApi, body: bytes) -> None:
    assert refused(answers, "/experiments/green-float32/aa", "POST", body)[0] == 400


def test_exposures_are_found_by_the_hash_in_the_path(reader: FakeReader, answers: ControllerApi) -> None:
    reader.rows[0xAB] = [{"assigned": "smollm2-blue"}]
    assert get(answers, "/requests/00000000000000ab") == {"exposures": [{"assigned": "smollm2-blue"}]}
    assert get(answers, "/requests/00000000000000ac") == {"exposures": []}
    assert refused(answers, "/requests/xyz")[0] == 404


def test_series_are_those_of_experiments_with_evidence(answers: ControllerApi) -> None:
    series = get(answers, "/series")
    assert {gauge["labels"]["experiment"] for gauge in series} == {"green-float32"}
    assert all(gauge["labels"]["endpoint"] == "chat" for gauge in series)


def test_the_report_lists_the_latest_actions(answers: ControllerApi, reader: FakeReader) -> None:
    reader.journal = [
        JournalEntry(START + n, "decision", "green-float32", {"text": f"step {n}"}) for n in range(MAX_ACTIONS + 2)
    ]
    reader.journal += [
        JournalEntry(START, "done", "next", {"text": "of another one"}),
        JournalEntry(START, "plan", None, {}),
    ]
    shown = get(answers, "/experiments/green-float32/report", format="text")
    assert [line[-7:].strip() for line in shown.splitlines() if "step " in line] == [
        f"step {n}" for n in range(2, MAX_ACTIONS + 2)
    ]
    assert "of another one" not in shown
    assert "The ramp" not in get(answers, "/experiments/green-float32/report", format="markdown")


def test_an_experiment_that_nothing_acts_on_has_no_actions(answers: ControllerApi, reader: FakeReader) -> None:
    assert "What is done about it" in get(answers, "/experiments/green-float32/report", format="text")
    reader.doing = None
    assert "What is done about it" not in get(answers, "/experiments/green-float32/report", format="text")


def test_the_series_have_the_state(answers: ControllerApi) -> None:
    by_state = {
        sample["labels"].get("state"): sample["value"]
        for sample in get(answers, "/series")
        if sample["metric"].endswith("_state")
    }
    assert by_state == {"running": 1.0, "paused": 0.0, "stopped": 0.0}


def test_the_journal_in_pages(answers: ControllerApi, reader: FakeReader) -> None:
    reader.journal = [JournalEntry(START, "alarm", "green-float32", {"text": "errors"}, "w")]
    here = get(answers, "/journal")
    assert (here["events"], here["more"]) == ([], False)
    reader.journal.append(JournalEntry(START + 1, "verdict", "green-float32", {"text": "better"}, "w"))
    (event,) = get(answers, "/journal", position=here["position"])["events"]
    assert (event["kind"], event["endpoint"], event["data"]["text"]) == ("verdict", "chat", "better")
    assert refused(answers, "/journal", query={"since": "yesterday"})[::2] == (400, "since")
