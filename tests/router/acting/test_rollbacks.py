"""A bad treatment loses its traffic on every router, for the right reason; problems of both arms move nothing."""

import asyncio
import re
from typing import Any

import pytest

from app.control_plane import Delivery
from tests.router.acting.conftest import ActingRig, after, empty, failed, failing, some
from tests.support.engine.fake_engine import Answer, chunk, stream

GUARDRAILS = [
    {"event": "error", "action": "rollback"},
    {"event": "empty", "action": "rollback"},
    {"event": "truncated", "tolerance": 1.25, "action": "rollback"},
    {"event": "slow", "ttft_above_s": 0.5, "action": "rollback"},
]


def truncated(body: dict[str, Any]) -> Any:
    return stream([chunk("Hel"), chunk("lo", finish_reason="length"), "data: [DONE]\n\n"])


@pytest.mark.parametrize(
    ("green", "event"),
    [
        (some(0.2, failing), "error"),
        (empty, "empty"),
        (some(0.5, truncated), "truncated"),
        (after(0.6), "slow"),
    ],
    ids=["failing", "empty", "truncated", "slow"],
)
async def test_a_failing_treatment_is_rolled_back_for_the_right_reason(
    acting: ActingRig, green: Answer, event: str
) -> None:
    acting.green.answer = green
    acting.deploy(green=50, guardrails=GUARDRAILS)
    served = acting.plans()
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    await acting.until(lambda: acting.weight == 0 and bool(acting.kinds("stop_lifted")))
    shown = await acting.acting()
    assert (shown.state, shown.cause, shown.stopped) == ("paused", "alarm", [])
    assert shown.text.startswith(f"green exceeds the guardrail {event}")
    assert [guardrail.event for guardrail in (await acting.report()).guardrails if guardrail.alarm] == [event]
    assert [kind.partition(":")[0] for kind in acting.kinds("stop", "done", "stop_lifted")] == [
        "stop",
        "done",
        "stop_lifted",
    ]
    delivered, rolled_back = (await acting.history(3))[1:]
    assert (delivered["weights"]["green"], rolled_back["weights"]["green"]) == (50, 0)
    assert rolled_back["reason"] == shown.text
    of_green = [outcome for outcome in failed(acting.outcomes) if outcome.headers["x-switchyard-plan"] in served]
    assert failed(acting.outcomes) == of_green, "only green's own failures, before the stop"
    calls = len(acting.green.requests)
    assert failed(await acting.send(60)) == []
    assert len(acting.green.requests) == calls


async def test_a_treatment_that_hangs_is_stopped_while_it_hangs(acting: ActingRig) -> None:
    acting.green.answer = lambda body: stream([3600.0])
    acting.deploy(green=50, guardrails=[{"event": "slow", "ttft_above_s": 1.0, "action": "rollback"}])
    requests = [asyncio.create_task(acting.send(3)) for _ in range(20)]
    await acting.until(lambda: acting.shares() == [0, 0, 0])
    assert (await acting.acting()).text.startswith("green exceeds the guardrail slow")
    assert failed(await acting.send(30)) == [], "new requests do not hang"
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


@pytest.mark.parametrize("on_worse", ["pause", "rollback"])
async def test_a_slower_treatment_is_worse_and_is_treated_as_configured(acting: ActingRig, on_worse: str) -> None:
    acting.blue.answer, acting.green.answer = after(0.01), after(0.05)
    acting.deploy(green=50, on_worse=on_worse)
    await acting.drive(lambda: bool(acting.kinds("paused", "stop")))
    shown = await acting.acting()
    assert (shown.state, shown.cause) == ("paused", "worse")
    assert re.fullmatch(r"green was worse than blue in ttft at .* \(\+.* % to \+.* %\)", shown.text)
    if on_worse == "rollback":
        await acting.until(lambda: acting.weight == 0)
        assert acting.shares() == [0, 0, 0]
    else:
        await acting.drive(lambda: acting.controller.ahead_s > 3000, seconds=700)
        assert acting.shares() == [50, 50, 50]
        assert acting.control.replaced == 0
    assert failed(acting.outcomes) == []


async def test_equal_failures_of_both_arms_move_nothing(acting: ActingRig) -> None:
    acting.deploy(green=50, guardrails=GUARDRAILS, ramp={"steps": [50, 100], "min_step_s": 600, "min_units": 10})
    await acting.send(60)
    acting.blue.answer, acting.green.answer = (some(0.5, failing, some(0.5, empty)) for _ in "bg")
    await acting.send(300)
    await acting.let_routers_report()
    report = await acting.report()
    events = {guardrail.event: guardrail.events for guardrail in report.guardrails}
    assert min(*events["error"].values(), *events["empty"].values()) >= 20
    assert acting.kinds("stop", "paused", "intent") == []
    assert acting.shares() == [50, 50, 50]
    assert (await acting.acting()).state == "running"


async def test_a_router_that_cannot_reach_control_does_not_apply_the_stop(acting: ActingRig) -> None:
    acting.cut_off = 0
    acting.deploy(green=50, guardrails=GUARDRAILS)
    await acting.send(90, 0)
    assert (await acting.get("/ready")).json()["open_breakers"] == ["blue"]
    acting.green.answer = empty
    acting.control.delivery = Delivery.DELIVERING  # the plan does not follow yet
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    answered = [await acting.send(30, number) for number in range(3)]
    by = [{outcome.headers["azureml-model-deployment"] for outcome in outcomes} for outcomes in answered]
    assert by == [{"green"}, {"blue"}, {"blue"}], "a stopped deployment is better than none"
    assert [len(failed(outcomes)) for outcomes in answered] == [0, 0, 0]


async def test_the_report_has_the_present_traffic_without_new_requests(acting: ActingRig) -> None:
    acting.green.answer = empty
    acting.deploy(green=50, guardrails=GUARDRAILS)
    acting.control.delivery = Delivery.DELIVERING
    await acting.drive(lambda: bool(acting.kinds("stop")))
    assert (await acting.report()).weights == {"blue": 100, "green": 0}, "stopped"
    acting.control.delivery = Delivery.SETTLED
    acting.advance(5)
    await acting.until(lambda: bool(acting.kinds("stop_lifted")))
    assert (await acting.report()).weights == {"blue": 100, "green": 0}, "planned"
    assert (await acting.put_traffic(30)).status_code == 200
    await acting.until(lambda: bool(acting.kinds("paused")))
    acting.advance(5)  # a report is a second old at most
    assert (await acting.report()).weights == {"blue": 70, "green": 30}
