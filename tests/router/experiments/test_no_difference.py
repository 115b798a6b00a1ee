"""Two equal deployments, live traffic through every dialect: no difference is found, and no request is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai

from app.experiments.contract.report import Report
from tests.router.experiments.conftest import LiveRig
from tests.support.processes.load import Lane, ask_all, lanes, unexplained

DIALECTS: Sequence[Lane] = [
    *lanes(tokens=50),
    Lane("openai", "/v1/completions", {"model": "chat", "prompt": "Say.", "max_tokens": 50}, b'"usage"', False),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say."}, b"output_text", False),
    Lane("openai", "/v1/responses", {"model": "chat", "input": "Say.", "stream": True}, b"response.completed", True),
]
USERS = 91
REQUESTS = 360
CERTAIN = 1e-6
"""A verdict by chance must not fail the suite."""


def traffic() -> Iterator[Lane]:
    """Requests of every dialect in turn, whole and streamed, from every user in turn."""
    for number in range(REQUESTS):
        lane = DIALECTS[number % len(DIALECTS)]
        yield replace(lane, headers={**lane.headers, "x-user": f"user-{number % USERS}"})


def nothing_is_missing(report: Report, requests: int) -> bool:
    """True if every request is counted for the deployment that it was drawn for, and was answered by it."""
    return (
        sum(report.requests.values()) == requests
        and all(served == {arm: report.requests[arm]} for arm, served in report.served.items())
        and sum(report.units.values()) == USERS
        and not any((*report.forced.values(), *report.carried.values(), *report.rows_lost.values()))
        and report.alarms == []
    )


async def test_equal_deployments_do_not_differ_and_no_request_is_missing(live: LiveRig) -> None:
    live.experiment(alpha=CERTAIN)
    outcomes = await ask_all(live.url, traffic())
    assert unexplained(outcomes) == []
    report = await live.report_of(len(outcomes))
    assert nothing_is_missing(report, len(outcomes)), report
    assert all(report.requests.values()), "both arms have requests"
    assert {comparison.verdict for comparison in report.primary} <= {"undecided", "equivalent"}
    assert not report.sample_ratio.alarm
    (plan,) = report.sample_ratio.plans
    assert plan.units == report.units
    assert {guardrail.alarm for guardrail in report.guardrails} == {False}


async def test_every_request_is_stored_once(live: LiveRig) -> None:
    outcomes = await ask_all(live.url, traffic())
    before = await live.report_of(len(outcomes))
    live.controller.replaced()
    after = await live.report_of(len(outcomes))
    assert nothing_is_missing(after, len(outcomes)), after
    assert (after.requests, after.units) == (before.requests, before.units)


async def test_labels_on_controls_own_traffic_do_not_differ(live: LiveRig) -> None:
    live.experiment(mode="aa", treatments=["label"], alpha=CERTAIN)
    live.chat_endpoint(traffic={"blue": 100})
    outcomes = await ask_all(live.url, traffic())
    report = await live.report_of(len(outcomes))
    assert sum(report.requests.values()) == len(outcomes)
    assert report.requests.keys() == {"blue", "label"}
    assert [comparison.verdict for comparison in report.primary] in (["undecided"], ["equivalent"])
    assert not report.sample_ratio.alarm
    assert report.alarms == []
    assert {served for of in report.served.values() for served in of} == {"blue"}


async def test_official_clients_are_recorded_like_any_other(live: LiveRig) -> None:
    say = [{"role": "user", "content": "hi"}]
    sdk: Any = openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0)
    other: Any = anthropic.AsyncAnthropic(base_url=live.url, api_key="unused", max_retries=0)
    async with sdk, other, httpx.AsyncClient(base_url=live.url) as http:
        async with sdk.chat.completions.with_streaming_response.create(
            model="chat", messages=say, stream=True, extra_headers={"x-user": "ann"}
        ) as streamed:
            await streamed.read()
        whole = await other.messages.with_raw_response.create(
            model="chat", messages=say, max_tokens=50, extra_headers={"x-user": "ann"}
        )
        await live.report_of(2)
        seen = [
            (await http.get(f"/api/requests/{answer.headers['x-request-id']}")).json()["exposures"]
            for answer in (streamed, whole)
        ]
    (one,), (two,) = seen
    assert [(record["dialect"], record["stream"], record["status"]) for record in (one, two)] == [
        ("openai", True, 200),
        ("anthropic", False, 200),
    ]
    assert (one["unit"], one["assigned"], one["served"]) == (two["unit"], two["assigned"], two["assigned"])
