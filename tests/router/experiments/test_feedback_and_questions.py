"""Questions and feedback of callers and managers about running traffic, over HTTP and by the command line."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from app.access.keys import append, create
from app.experiments.analysis.feedback import GRACE_S
from app.experiments.contract.report import ArmValue, Report
from deployments.cli.experiments_client import Check
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import USAGE, chunk, stream
from tests.support.processes.load import Lane, Outcome, ask_all, unexplained

SAY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
WHOLE = Lane("openai", "/v1/chat/completions", SAY, b'"usage"', False)
STREAM = replace(WHOLE, body={**SAY, "stream": True}, ends=b"data: [DONE]", streamed=True)
WINDOW_S = 30.0


class FeedbackRig:
    """The experiment scores answers; requests need the key of Ann, of Bob, or of Eve, who is a manager."""

    def __init__(self, live: LiveRig, directory: Path) -> None:
        self.live = live
        self.keys = {name: self._key(name, directory / "keys.yaml") for name in ("ann", "bob", "eve")}
        live.change(access={"keys_file": str(directory / "keys.yaml"), "managers": ["eve"]})
        live.experiment(
            secondary=[{"metric": "thumbs", "minimal_effect": 0.05}],
            feedback={"thumbs": {"type": "boolean", "window_s": WINDOW_S}},
        )
        live.headers = {"authorization": f"Bearer {self.keys['eve']}"}
        numbers = itertools.count()

        def answer(body: dict[str, Any]) -> Response:
            if body.get("stream"):
                frame = chunk("hello", finish_reason="stop")
                return stream([frame.replace("chatcmpl-1", f"chatcmpl-{next(numbers)}"), "data: [DONE]\n\n"])
            choices = [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]
            return JSONResponse({"id": f"chatcmpl-{next(numbers)}", "choices": choices, "usage": USAGE})

        live.blue.answer = live.green.answer = answer

    @staticmethod
    def _key(name: str, file: Path) -> str:
        key, record = create(name)
        append(file, record.line)
        return key

    def client(self, name: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.live.url, headers={"authorization": f"Bearer {self.keys[name]}"}, timeout=30
        )

    async def requests(self, count: int) -> list[Outcome]:
        """Sends Ann's requests, in order, of one user each, alternately whole and streamed."""
        headers = {"authorization": f"Bearer {self.keys['ann']}"}
        lanes = [
            replace((WHOLE, STREAM)[number % 2], headers={**headers, "x-user": f"user-{number}"})
            for number in range(count)
        ]
        outcomes = await ask_all(self.live.url, lanes)
        assert unexplained(outcomes) == []
        return outcomes


@pytest.fixture
def calls(live: LiveRig, tmp_path: Path) -> FeedbackRig:
    return FeedbackRig(live, tmp_path)


def body_id(outcome: Outcome) -> str:
    """The id in the answer's body."""
    text = outcome.body.decode()
    first = text.removeprefix("data: ").partition("\n")[0]
    return str(json.loads(first)["id"])


def request_id(outcome: Outcome) -> str:
    return outcome.headers["x-request-id"]


def thumbs(report: Report) -> Sequence[ArmValue]:
    (compared,) = (comparison for comparison in report.secondary if comparison.metric == "thumbs")
    return compared.values


async def test_only_the_caller_or_a_manager_scores_by_either_id(calls: FeedbackRig) -> None:
    outcomes = await calls.requests(60)
    async with calls.client("ann") as ann, calls.client("bob") as bob, calls.client("eve") as eve:
        early = await ann.post("/api/feedback", json=score(request_id(outcomes[0]), True))
        assert (early.status_code, early.json()["accepted"]) == (202, 1)
        await calls.live.report_of(60)
        ids = [body_id(outcome) if number % 2 else request_id(outcome) for number, outcome in enumerate(outcomes)]
        mine = await ann.post("/api/feedback", json=[score(id, True) for id in ids[:50]])
        assert mine.json() == {"accepted": 50, "pending": 0, "late": 0, "unknown_metric": []}
        others = await bob.post("/api/feedback", json=[score(id, False) for id in ids])
        assert others.json() == {"accepted": 60, "pending": 60, "late": 0, "unknown_metric": []}
        await eve.post("/api/feedback", json=[score(id, False) for id in ids[:10]])
        unknown = await ann.post(
            "/api/feedback", json=[score(ids[0], True), {**score(ids[0], True), "metric": "stars"}]
        )
        assert unknown.json() == {"accepted": 1, "pending": 0, "late": 0, "unknown_metric": ["stars"]}
        wrong = await ann.post("/api/feedback", json={**score(ids[0], True), "value": 3})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "value")
    outcomes += await calls.requests(1)
    await calls.live.report_of(61)  # earlier feedback has arrived, too
    deployments = [outcome.headers["azureml-model-deployment"] for outcome in outcomes]
    calls.live.controller.advance(WINDOW_S + GRACE_S + 1)
    report = await calls.live.report(lambda report: sum(thumb.requests for thumb in thumbs(report)) == 50)
    for value in thumbs(report):
        good = sum(name == value.arm for name in deployments[10:50]) + (deployments[0] == value.arm)
        given = sum(name == value.arm for name in deployments[:50])
        assert value.requests == given
        assert value.value == pytest.approx(good / given)
        assert value.response_rate == pytest.approx(given / deployments.count(value.arm))


def score(id: str, value: bool) -> dict[str, Any]:
    return {"request_id": id, "metric": "thumbs", "value": value}


async def test_a_request_is_shown_to_its_caller_and_to_managers(calls: FeedbackRig) -> None:
    streamed, whole = sorted(await calls.requests(2), key=lambda outcome: outcome.lane.streamed, reverse=True)
    await calls.live.report_of(2)
    async with calls.client("ann") as ann, calls.client("bob") as bob, calls.client("eve") as eve:
        for outcome in (streamed, whole):
            for http, id in itertools.product((ann, eve), (request_id(outcome), body_id(outcome))):
                (exposure,) = (await http.get(f"/api/requests/{id}")).json()["exposures"]
                assert exposure["assigned"] == outcome.headers["azureml-model-deployment"]
                assert (exposure["stream"], exposure["reason"]) == (outcome.lane.streamed, "sticky")
            assert (await bob.get(f"/api/requests/{request_id(outcome)}")).status_code == 404


@pytest.fixture
def shell(calls: FeedbackRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `switchyard experiments` as Eve. Returns the exit code, stdout and stderr."""
    monkeypatch.setenv("SWITCHYARD_API_KEY", calls.keys["eve"])

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["experiments", *arguments, "--url", calls.live.url])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_commands_show_what_happened(calls: FeedbackRig, shell: Any) -> None:
    outcomes = asyncio.run(calls.requests(160))
    report = asyncio.run(calls.live.report_of(160))
    code, listed, _ = shell("list")
    assert (code, listed.splitlines()[1].split()[:2]) == (0, ["first", "chat"])
    text = shell("report", "first")[1]
    assert text.startswith(report.headline)
    assert "160 requests" in text
    assert shell("report", "first", "--check")[0] in (Check.KEEP_GOING, Check.INVALID)
    assert json.loads(shell("report", "first", "--format", "json")[1])["units"] == report.units
    assert shell("report", "first", "--format", "markdown")[1].startswith("#")
    assert "undecided" in shell("history", "first", "--metric", "ttft")[1]
    assert "units" in shell("planner", "first", "--effect", "0.5")[1]
    assert "ttft" in shell("aa", "first", "--runs", "20")[1]
    user = outcomes[0].lane.headers["x-user"]
    assigned = outcomes[0].headers["azureml-model-deployment"]
    assert shell("explain", "chat", user, "--caller", "ann")[1].startswith(f"chat: {assigned}\n")
    (exposure,) = json.loads(shell("request", request_id(outcomes[0]))[1])
    assert exposure["served"] == assigned
    assert shell("feedback", body_id(outcomes[0]), "thumbs", "true")[1] == "Accepted 1.\n"
    assert shell("feedback", body_id(outcomes[0]), "thumbs", "7")[0] == ExitCode.WRONG
