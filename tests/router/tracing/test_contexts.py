"""Callers' traces: which are continued, which contexts deployments get, and which requests are traced."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.router.conftest import Rig
from tests.support.telemetry.otlp_receiver import OtlpReceiver

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


def ask(rig: Rig, **headers: str) -> httpx.Response:
    answer = httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 200
    return answer


def given(rig: Rig) -> tuple[str, str, str]:
    """The trace, parent and flags of the last context that the deployment got."""
    version, trace, parent, flags = rig.blue.headers[-1]["traceparent"].split("-")
    assert version == "00"
    return trace, parent, flags


def sent(rig: Rig) -> Iterator[str]:
    """The trace headers that the deployment got last."""
    return (name for name in rig.blue.headers[-1] if name.startswith("trace"))


def tracing(rig: Rig, **fields: Any) -> None:
    rig.change(tracing=fields)


def test_a_callers_trace_is_continued_and_handed_to_the_deployment(traced: Rig, collector: OtlpReceiver) -> None:
    tracing(traced, percent=0)
    answer = ask(traced, traceparent=SAMPLED, tracestate="vendor=1, other=x:y")
    span, call = collector.of(answer.headers["x-request-id"])
    assert (span.trace, span.parent, call.trace, call.parent) == (TRACE, CALLER, TRACE, span.id)
    assert (span.wire.trace_state, span.wire.flags & 0x300) == ("vendor=1,other=x:y", 0x300), "its parent is remote"
    assert given(traced) == (TRACE, call.id, "01")
    assert traced.blue.headers[-1]["tracestate"] == "vendor=1,other=x:y"


@pytest.mark.parametrize("sender", [None, UNSAMPLED], ids=["no caller's trace", "a caller that does not sample"])
def test_deployments_get_the_context_of_unsampled_requests(
    traced: Rig, collector: OtlpReceiver, sender: str | None
) -> None:
    """Otherwise an engine that traces would start a separate trace for each of them."""
    tracing(traced, percent=0 if sender is None else 100)
    ask(traced, **({"traceparent": sender} if sender else {}))
    trace, parent, flags = given(traced)
    assert int(flags, 16) & 1 == 0
    assert (trace == TRACE) is (sender is not None)
    assert parent != CALLER
    traced_one = ask(traced, traceparent=SAMPLED)
    collector.of(traced_one.headers["x-request-id"])
    assert [span.kind for span in collector.spans] == ["SERVER", "CLIENT"], "the first request has no span"


def test_callers_cannot_have_more_requests_traced_than_are_followed(traced: Rig, collector: OtlpReceiver) -> None:
    tracing(traced, percent=0, follow_per_s=0.001)
    ids = [ask(traced, traceparent=SAMPLED).headers["x-request-id"] for _ in range(20)]
    collector.of(ids[0])
    tracing(traced, percent=100, follow_per_s=0)
    last = ask(traced).headers["x-request-id"]
    collector.of(last)
    assert {span.attributes["switchyard.request_id"] for span in collector.spans if span.kind == "SERVER"} == {
        ids[0],
        last,
    }
    flags = [headers["traceparent"].split("-")[3] for headers in traced.blue.headers[:20]]
    assert flags == ["01", *["00"] * 19], "engines trace what the router traces"


@pytest.mark.parametrize(
    "malformed",
    ["", "00", SAMPLED.upper(), SAMPLED + "-x", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", "a\tb"],
)
def test_a_malformed_context_begins_a_new_trace(traced: Rig, collector: OtlpReceiver, malformed: str) -> None:
    answer = ask(traced, traceparent=malformed, tracestate="vendor=1")
    span, _ = collector.of(answer.headers["x-request-id"])
    assert (span.parent, span.trace != TRACE, span.wire.trace_state) == ("", True, "")


def test_without_tracing_a_callers_context_reaches_the_engines_as_it_is(rig: Rig) -> None:
    deployment = rig.config["deployments"]["blue"]
    rig.change(deployments={"blue": {**deployment, "trace_context": True}})
    ask(rig, traceparent=SAMPLED, tracestate="vendor=1")
    assert given(rig) == (TRACE, CALLER, "01")
    assert rig.blue.headers[-1]["tracestate"] == "vendor=1"
    ask(rig)
    ask(rig, traceparent="my words")
    assert [[*sent(rig)], [*sent(rig)]] == [[], []]


def test_a_server_elsewhere_gets_no_context_unless_it_is_configured(traced: Rig) -> None:
    deployment = {**traced.config["deployments"]["blue"], "trace_context": False}
    traced.change(deployments={"blue": deployment})
    ask(traced, traceparent=SAMPLED, tracestate="vendor=1")
    assert [*sent(traced)] == []


def test_about_the_given_percentage_is_traced(traced: Rig, collector: OtlpReceiver) -> None:
    tracing(traced, percent=50)
    with httpx.Client() as client:
        for _ in range(60):
            client.post(f"{traced.url}/v1/chat/completions", json=CHAT)
    flags = [int(headers["traceparent"].split("-")[3], 16) & 1 for headers in traced.blue.headers]
    low = [int(headers["traceparent"][19:35], 16) for headers in traced.blue.headers]
    assert flags == [int(number < 2**63) for number in low], "as OpenTelemetry's TraceIdRatioBased decides"
    assert 5 < sum(flags) < 55
