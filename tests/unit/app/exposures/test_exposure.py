"""The exposure that results from the exchange's events."""

import time
from typing import Any

import pytest

from app.errors import (
    Broken,
    DeadlinePassed,
    Incomplete,
    InternalError,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unavailable,
    Unreachable,
    UpstreamError,
)
from app.exposures.exposure import MOST_CHECKED, Arrival, Exposure
from app.exposures.identity import request_hash
from app.exposures.plans import RecordingScope
from app.exposures.wire import Failure, FinishCode, LateKind, Plan

PLAN = Plan("chat", "0-1", {"blue": 50, "green": 50})
PATH = "/v1/chat/completions"
ROLE = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
THOUGHT = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"reasoning":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'


def exposure(*, stream: bool = True, slow: Any = (), answers: Any = (), unfinished: Any = ()) -> Exposure:
    scope = RecordingScope(PLAN, slow, answers, unfinished)
    arrival = Arrival("req", None, "ann", "blue", "traffic", "openai", "chat", stream, 10, {}, time.perf_counter())
    return Exposure(scope, arrival, 1, 0, scope.first_due[stream])


def streamed(
    *chunks: tuple[float, bytes], body: Any = None, in_order: bool = True, end: float | None = None
) -> Exposure:
    """An exposure after chunks at these times."""
    made = exposure()
    made.sent(PATH, body or {})
    for now, chunk in chunks:
        made.chunk(now, chunk)
    made.stream_ended("blue", chunks[-1][0] if end is None else end, in_order=in_order)
    made.conclude()
    made.conclude()
    return made


def test_a_stream_gives_its_times_and_finish_reason() -> None:
    seen = streamed((1.0, ROLE), (1.5, TOKEN), (1.6, TOKEN), (2.1, TOKEN), (2.2, LAST), (2.2, USAGE), (2.3, DONE))
    assert (seen.finish, seen.is_visible, seen.failure) == (FinishCode.LENGTH, True, Failure.NONE)
    assert seen.answer_id == request_hash("chatcmpl-1")
    assert seen.first_token is not None
    assert seen.itl_max == pytest.approx(0.5)
    assert seen.itl_mean(5) == pytest.approx((2.3 - 1.5) / 4)
    assert seen.itl_mean(None) == pytest.approx((2.3 - 1.5) / 5)
    assert seen.itl_mean(1) is None


def test_the_time_before_the_first_token_is_no_gap() -> None:
    assert streamed((1.0, ROLE), (9.0, TOKEN), (9.1, DONE)).itl_max == pytest.approx(0.1)


def test_thoughts_are_tokens_and_not_visible() -> None:
    seen = streamed((1.0, ROLE), (2.0, THOUGHT), (2.5, THOUGHT), (2.6, LAST))
    assert (seen.first_token is not None, seen.is_visible) == (True, False)
    assert seen.itl_max == pytest.approx(0.5)


def test_a_stream_without_tokens_has_no_times() -> None:
    seen = streamed((1.0, ROLE), (2.0, LAST), (2.1, DONE))
    assert (seen.first_token, seen.itl_mean(0), seen.is_visible) == (None, None, False)


@pytest.mark.parametrize(("in_order", "gap"), [(True, 0.5), (False, 120.0)])
def test_the_silence_before_a_stream_breaks_is_a_gap(in_order: bool, gap: float) -> None:
    seen = streamed((1.0, TOKEN), (1.5, TOKEN), end=121.5, in_order=in_order)
    assert seen.itl_max == pytest.approx(gap)


def test_the_engines_error_event_is_a_failure() -> None:
    seen = streamed((1.0, TOKEN), (1.1, ERROR), (1.1, DONE))
    assert (seen.failure, seen.is_broken) == (Failure.BROKEN, True)
    talk = TOKEN.replace(b'"x"', b'"{\\"error\\": 1}"')
    assert streamed((1.0, talk), (1.1, DONE)).failure == Failure.NONE


def test_a_whole_answer_gives_its_finish_reason_and_id() -> None:
    seen = exposure(stream=False)
    seen.sent(PATH, {})
    seen.answer(b'{"id":"chatcmpl-2","choices":[{"message":{"content":"Hi"},"finish_reason":"tool_calls"}]}')
    assert (seen.finish, seen.is_visible, seen.first_token) == (FinishCode.TOOL_CALLS, True, None)
    assert seen.answer_id == request_hash("chatcmpl-2")
    seen.answer(b'{"id":"chatcmpl-2","choices":[{"message":{"content":""},"finish_reason":"odd"}]}')
    assert (seen.finish, seen.is_visible) == (FinishCode.NONE, False)


def test_embeddings_are_never_empty_and_have_no_finish_reason() -> None:
    seen = exposure(stream=False)
    seen.sent("/v1/embeddings", {})
    seen.answer(b'{"id":"embd-1","data":[{"embedding":[0.5]}]}')
    assert (seen.finish, seen.is_visible) == (FinishCode.NONE, True)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (Unreachable("x"), Failure.UNREACHABLE),
        (Unavailable("x"), Failure.UNAVAILABLE),
        (Unavailable("busy", retry_after=1), Failure.UNAVAILABLE),
        (TimedOut("x"), Failure.TIMEOUT),
        (DeadlinePassed("x"), Failure.TIMEOUT),
        (Incomplete("x"), Failure.INCOMPLETE),
        (Broken("x"), Failure.BROKEN),
        (UpstreamError("x"), Failure.OTHER),
        (Rejected("x", status=400), Failure.NONE),
        (InternalError("x"), Failure.NONE),
    ],
)
def test_only_failures_of_the_assigned_deployment_count(error: SwitchyardError, failure: Failure) -> None:
    seen = exposure()
    seen.failed("green", error)
    assert seen.failure == Failure.NONE
    seen.failed("blue", error)
    assert seen.failure == failure
    seen.failed("blue", Broken("x"))
    assert seen.failure == (failure if failure else Failure.BROKEN)


def test_a_deployment_that_is_passed_over_was_unavailable() -> None:
    seen = exposure()
    seen.diverted()
    seen.failed("green", Broken("x"))
    assert seen.failure == Failure.UNAVAILABLE


def test_only_answers_with_a_promise_are_kept_and_only_short_ones() -> None:
    json = {"response_format": {"type": "json_object"}}
    assert streamed((1.0, TOKEN), (1.1, DONE)).kept is None
    kept = streamed((1.0, TOKEN), (1.1, TOKEN), (1.2, DONE), body=json)
    assert bytes(kept.kept or b"") == TOKEN + TOKEN + DONE
    long = streamed((1.0, TOKEN), (1.1, b"x" * MOST_CHECKED), (1.2, TOKEN), (1.7, DONE), body=json)
    assert (long.kept, long.promise) == (None, None)
    assert long.itl_max == pytest.approx(0.5)


def test_each_limit_is_reported_once() -> None:
    seen = exposure(slow=(1.0, 3.0), unfinished=(2.0, 4.0))
    assert seen.due == 1.0
    assert list(seen.late(0.9)) == []
    assert list(seen.late(1.5)) == [(LateKind.SLOW, 1.0)]
    assert (list(seen.late(1.6)), seen.due) == ([], 2.0)
    assert list(seen.late(9.0)) == [(LateKind.SLOW, 3.0), (LateKind.UNFINISHED, 2.0), (LateKind.UNFINISHED, 4.0)]
    assert (list(seen.late(99.0)), seen.due) == ([], float("inf"))


def test_a_late_first_token_between_two_checks_is_slow() -> None:
    seen = exposure(slow=(1.0, 3.0))
    seen.first_token = 2.0
    assert list(seen.late(9.0)) == [(LateKind.SLOW, 1.0)]


def test_whole_answers_have_limits_of_their_own() -> None:
    seen = exposure(stream=False, slow=(1.0,), answers=(3.0, 5.0), unfinished=(2.0,))
    assert (seen.due, list(seen.late(2.5)), seen.due) == (2.0, [(LateKind.UNFINISHED, 2.0)], 3.0)
    assert (list(seen.late(4.0)), seen.due) == ([(LateKind.SLOW_ANSWER, 3.0)], 5.0)
    assert (list(seen.late(9.0)), seen.due) == ([(LateKind.SLOW_ANSWER, 5.0)], float("inf"))
    assert list(exposure(answers=(3.0,)).late(9.0)) == [], "a stream has none of them"
