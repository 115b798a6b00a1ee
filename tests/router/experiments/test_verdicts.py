"""A treatment that is slower: the verdict, its history, and the plan for the next experiment."""

from collections.abc import Iterator
from dataclasses import replace

import httpx

from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import Answer, chunk, stream
from tests.support.processes.load import Lane, ask_all, unexplained

CHAT = Lane(
    "openai",
    "/v1/chat/completions",
    {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    b"data: [DONE]",
    True,
)


def users(count: int, each: int) -> Iterator[Lane]:
    """So many users, with so many streams each."""
    for number in range(count * each):
        yield replace(CHAT, headers={"x-user": f"user-{number % count}"})


def after(seconds: float) -> Answer:
    """A stream whose first token comes after so long."""
    frames = [chunk("Hel"), chunk("lo", finish_reason="stop"), "data: [DONE]\n\n"]
    return lambda body: stream([seconds, *frames])


async def test_a_slower_treatment_is_worse(live: LiveRig) -> None:
    live.blue.answer, live.green.answer = after(0.01), after(0.08)
    outcomes = await ask_all(live.url, users(100, each=4), at_once=16)
    assert unexplained(outcomes) == []
    report = await live.report_of(len(outcomes))
    (ttft,) = report.primary
    assert (ttft.metric, ttft.verdict, report.decision) == ("ttft", "worse", "do_not_ship")
    assert ttft.effect.lower is not None
    assert ttft.effect.estimate is not None
    assert 0 < ttft.effect.lower < ttft.effect.estimate
    assert report.headline == "first on chat: green is worse than blue."
    assert report.alarms == [], "slower is no guardrail's business as long as it is not too slow"
    async with httpx.AsyncClient(base_url=live.url) as http:
        history = (await http.get("/api/experiments/first/history", params={"metric": "ttft"})).json()
        assert history["points"][-1]["verdict"] == "worse"
        planned = (await http.get("/api/experiments/first/planner", params={"effect": 0.05})).json()
        assert planned["units_so_far"] == 100
        assert planned["units"] > 0
    live.controller.replaced()
    after_restart = await live.report_of(len(outcomes))
    assert after_restart.primary[0].verdict == "worse"
    assert after_restart.primary[0].since == ttft.since
