"""A slower treatment, in every dialect: the verdict, its history, and the plan for the next experiment."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
from starlette.responses import Response, StreamingResponse

from tests.router.experiments.conftest import LiveRig
from tests.router.experiments.test_no_difference import DIALECTS
from tests.support.engine.fake_engine import Answer, chunk, stream
from tests.support.engine.other_answers import every_route
from tests.support.processes.load import Lane, ask_all, unexplained

CHAT = Lane(
    "openai",
    "/v1/chat/completions",
    {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    b"data: [DONE]",
    True,
)
STREAMS = [lane for lane in DIALECTS if lane.streamed]


def users(count: int, each: int, lanes: Sequence[Lane] = (CHAT,)) -> Iterator[Lane]:
    """That many streams for each of that many users, in one dialect after the other."""
    for number in range(count * each):
        lane = lanes[number % len(lanes)]
        yield replace(lane, headers={**lane.headers, "x-user": f"user-{number % count}"})


def hello(body: dict[str, Any]) -> Response:
    """A streamed chat answer."""
    return stream([chunk("Hel"), chunk("lo", finish_reason="stop"), "data: [DONE]\n\n"])


def after(seconds: float, answers: Answer = hello) -> Answer:
    """Streams whose first token comes after that delay."""

    async def late(parts: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(seconds)
        async for part in parts:
            yield part

    def answer(body: dict[str, Any]) -> Response:
        response = answers(body)
        assert isinstance(response, StreamingResponse)
        response.body_iterator = late(response.body_iterator)
        return response

    return answer


async def test_a_slower_treatment_is_worse(live: LiveRig) -> None:
    live.blue.answer = after(0.01, every_route(live.blue))
    live.green.answer = after(0.08, every_route(live.green))
    outcomes = await ask_all(live.url, users(100, each=2, lanes=STREAMS), at_once=16)
    assert unexplained(outcomes) == []
    report = await live.report_of(len(outcomes))
    (ttft,) = report.primary
    assert (ttft.metric, ttft.verdict, report.decision) == ("ttft", "worse", "do_not_ship")
    assert ttft.effect.lower is not None
    assert ttft.effect.estimate is not None
    assert 0 < ttft.effect.lower < ttft.effect.estimate
    assert report.headline == "first on chat: green is worse than blue."
    assert report.alarms == [], "a slower treatment breaks no guardrail as long as it is not too slow"
    async with httpx.AsyncClient(base_url=live.url) as http:
        history = (await http.get("/api/experiments/first/history", params={"metric": "ttft"})).json()
        assert history["points"][-1]["verdict"] == "worse"
        planned = (await http.get("/api/experiments/first/planner", params={"effect": 0.05})).json()
        assert planned["units_so_far"] == 100
        assert planned["units"] > 0
    live.controller.replaced(killed=True)  # with nothing on disk but the journal and the analysis's state
    after_restart = await live.report_of(len(outcomes))
    assert after_restart.primary[0].verdict == "worse"
    assert after_restart.primary[0].since == ttft.since
