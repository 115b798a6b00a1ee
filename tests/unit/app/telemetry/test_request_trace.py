"""Trace contexts in headers, against the W3C's recommendation and OpenTelemetry's own reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.telemetry.request_trace import RANDOM, SAMPLED, Remote, headers_of, remote

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"

IDS = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.sampled_from([0, SAMPLED, RANDOM, SAMPLED | RANDOM])


@given(*IDS)
def test_a_written_context_is_read_back_here_and_by_opentelemetry(trace: int, span: int, flags: int) -> None:
    headers = headers_of(trace, span, flags, "a=1,b=2")
    assert remote(headers) == Remote(trace, span, flags, "a=1,b=2")
    theirs = get_current_span(TraceContextTextMapPropagator().extract(headers)).get_span_context()
    assert (theirs.trace_id, theirs.span_id, theirs.trace_flags & SAMPLED) == (trace, span, flags & SAMPLED)
    assert dict(theirs.trace_state) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("", id="empty"),
        pytest.param(PARENT[:-1], id="too short"),
        pytest.param(PARENT + "0", id="too long"),
        pytest.param(PARENT.upper(), id="upper case"),
        pytest.param(PARENT + "-more", id="version 00 has no more fields"),
        pytest.param("ff" + PARENT[2:], id="version ff"),
        pytest.param(PARENT.replace(f"{TRACE:032x}", "0" * 32), id="no trace"),
        pytest.param(PARENT.replace(f"{SPAN:016x}", "0" * 16), id="no span"),
        pytest.param(f"{PARENT}, {PARENT}", id="two"),
        pytest.param(PARENT + "\n", id="a line's end"),
    ],
)
def test_an_invalid_context_is_ignored(header: str) -> None:
    assert remote({"traceparent": header}) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert remote({"traceparent": "cc" + PARENT[2:-2] + "ff-more"}) == Remote(TRACE, SPAN, SAMPLED | RANDOM, "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a=1", "a=1"),
        (" a=1 ,\tb@c=2 ,", "a=1,b@c=2"),
        ("a=x y", "a=x y"),
        ("A=1", ""),
        ("a", ""),
        ("a=", ""),
        ("a=1;b\r\nx: y", ""),
        ("a=\N{SNOWMAN}", ""),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("a=" + "x" * 600, ""),
    ],
)
def test_a_malformed_state_is_left_out(given: str, kept: str) -> None:
    parsed = remote({"traceparent": PARENT, "tracestate": given})
    assert parsed is not None
    assert parsed.state == kept


LATIN = st.binary(max_size=80).map(lambda raw: raw.decode("latin-1"))


@given(LATIN, LATIN)
def test_any_text_is_parsed_and_only_ascii_is_passed_on(parent: str, state: str) -> None:
    parsed = remote({"traceparent": parent, "tracestate": state})
    assert parsed is None or parsed.state.isascii()
