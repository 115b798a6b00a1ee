"""A treatment that fails, answers nothing or hangs raises an alarm; problems of both deployments do not."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from starlette.responses import Response

from app.experiments.contract.report import GuardrailStatus, Report
from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import Answer, chat, chunk, refuse, stream
from tests.support.processes.load import Lane, Outcome, ask, ask_all

CHAT = Lane(
    "openai",
    "/v1/chat/completions",
    {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    b"data: [DONE]",
    True,
)
BATCH = 120
MOST_BATCHES = 12


def requests(count: int, first: int = 0, headers: Mapping[str, str] = {}) -> Iterator[Lane]:
    """Streams, each of another user."""
    for number in range(first, first + count):
        yield replace(CHAT, headers={"x-user": f"user-{number}", **headers})


def some(share: float, first: Answer, other: Answer) -> Answer:
    """Answers with `first` for a share of the requests, spread evenly."""
    calls = 0

    def answer(body: dict[str, Any]) -> Response:
        nonlocal calls
        calls += 1
        return (first if int(calls * share) > int((calls - 1) * share) else other)(body)

    return answer


def guardrail(report: Report, event: str) -> GuardrailStatus:
    return next(guardrail for guardrail in report.guardrails if guardrail.event == event)


async def until_alarm(live: LiveRig, event: str) -> tuple[Report, list[Outcome]]:
    """Sends requests of new users until the guardrail's alarm."""
    outcomes: list[Outcome] = []
    for batch in range(MOST_BATCHES):
        outcomes += await ask_all(live.url, requests(BATCH, first=batch * BATCH))
        report = await live.report_of(len(outcomes))
        if guardrail(report, event).alarm:
            return report, outcomes
    raise AssertionError(report.guardrails)


def only_alarm(report: Report, event: str) -> str:
    """The text of the only guardrail that is alarmed."""
    (alarm,) = [alarm for alarm in report.alarms if alarm.kind == "guardrail"]
    assert [guardrail.event for guardrail in report.guardrails if guardrail.alarm] == [event]
    assert report.decision == "do_not_ship"
    return alarm.text


async def test_failures_count_for_the_treatment_even_if_control_answered(live: LiveRig) -> None:
    live.experiment(guardrails=[{"event": event, "action": "rollback"} for event in ("error", "empty", "stalled")])
    live.chat_endpoint(fallback=["blue"])
    live.green.answer = some(0.2, refuse(500, "broken", kind="InternalServerError"), chat)
    report, outcomes = await until_alarm(live, "error")
    assert only_alarm(report, "error").startswith("Guardrail error: green was found above the limit, at most 1.5 times")
    status = guardrail(report, "error")
    assert status.events["blue"] == 0
    assert status.events["green"] >= 3
    assert report.served["green"]["blue"] > 0
    assert sum(outcome.status == 200 for outcome in outcomes) > sum(report.requests.values()) - status.events["green"]


async def test_empty_answers_of_a_treatment_raise_an_alarm(live: LiveRig) -> None:
    live.experiment(guardrails=[{"event": event, "action": "rollback"} for event in ("error", "empty", "stalled")])
    live.green.answer = lambda body: stream([chunk(" \n"), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])
    report, _ = await until_alarm(live, "empty")
    assert only_alarm(report, "empty").startswith("Guardrail empty: green was found above the limit")
    assert guardrail(report, "error").events == {"blue": 0, "green": 0}


@pytest.mark.parametrize("streamed", [True, False], ids=["streams", "whole answers"])
async def test_a_treatment_that_hangs_is_found_while_it_hangs(live: LiveRig, streamed: bool) -> None:
    live.experiment(guardrails=[{"event": "slow", "ttft_above_s": 1.0, "answer_above_s": 1.0, "action": "rollback"}])
    live.green.answer = lambda body: stream([3600.0])
    async with aiohttp.ClientSession() as session:
        tasks = []
        for request in requests(60):
            lane = replace(request, body={**CHAT.body, "stream": streamed}, streamed=streamed)
            tasks.append(asyncio.create_task(ask(session, live.url, lane)))
            await asyncio.sleep(0.01)  # all at once, control would be slow, too
        await live.report(lambda report: guardrail(report, "slow").alarm)
        hanging = [task for task in tasks if not task.done()]
        report = await live.report(lambda report: guardrail(report, "slow").events["green"] == len(hanging))
        assert report.requests["green"] == 0, "no request has ended"
        assert only_alarm(report, "slow").startswith("Guardrail slow: green was found above the limit")
        for task in hanging:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_outage_of_both_raises_no_alarm(live: LiveRig) -> None:
    await ask_all(live.url, requests(100))
    live.blue.answer = live.green.answer = refuse(500, "broken", kind="InternalServerError")
    outage = await ask_all(live.url, requests(200, first=100))
    assert {answer.status for answer in outage} == {502}
    report = await live.report_of(300)
    events = guardrail(report, "error").events
    assert sum(events.values()) == 200
    assert report.alarms == []


async def test_requests_that_name_their_deployment_never_count(live: LiveRig) -> None:
    live.green.answer = refuse(500, "broken", kind="InternalServerError")
    live.chat_endpoint(fallback=[])
    forced = await ask_all(live.url, requests(100, headers={"azureml-model-deployment": "green"}))
    assert {answer.status for answer in forced} == {502}
    live.green.answer = chat
    await ask_all(live.url, requests(60))
    report = await live.report(lambda report: sum(report.requests.values()) >= 60 and report.forced["green"] == 100)
    assert sum(report.requests.values()) == 60
    assert guardrail(report, "error").events == {"blue": 0, "green": 0}
    assert report.alarms == []
