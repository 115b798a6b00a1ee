"""Sampling: which requests are traced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from app.telemetry.request_trace import SAMPLED, Remote
from app.telemetry.tracing import Allowance, Sampler


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def sampler(share: float, per_s: float = 0.0, *, number: int = 2**64 - 1) -> Sampler:
    return Sampler(share, Allowance(per_s, Clock()), lambda: number)


def caller(flags: int) -> Remote:
    return Remote(1, 1, flags, "")


@given(st.integers(1, 2**128 - 1), st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_a_new_trace_is_drawn_as_opentelemetry_does(trace_id: int, share: float) -> None:
    theirs = TraceIdRatioBased(share).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
    assert sampler(share).is_drawn(trace_id) is theirs


def test_a_caller_that_does_not_sample_is_followed_always() -> None:
    assert sampler(1.0, per_s=100).follows(caller(0)) is False


def test_a_caller_that_samples_is_followed_within_the_allowance_and_drawn_beyond_it() -> None:
    followed = sampler(0.5, per_s=2)
    assert [followed.follows(caller(SAMPLED)) for _ in range(4)] == [True, True, False, False]
    lucky = sampler(0.5, per_s=0, number=0)
    assert lucky.follows(caller(SAMPLED)), "by a new random number, whatever trace id the caller has chosen"
    assert not sampler(0.5, per_s=0).follows(caller(SAMPLED))


@pytest.mark.parametrize("per_s", [0.1, 1.0, 7.0])
def test_an_allowance_refills_evenly_and_holds_a_seconds_worth(per_s: float) -> None:
    clock = Clock()
    allowance = Allowance(per_s, clock)

    def left() -> int:
        return sum(allowance.take() for _ in range(20))

    most = max(1, int(per_s))
    assert left() == most
    clock.now += 1 / per_s + 1e-6
    assert left() == 1
    clock.now += 1000
    assert left() == most


def test_without_an_allowance_nothing_is_granted_ever() -> None:
    clock = Clock()
    allowance = Allowance(0, clock)
    clock.now += 1e9
    assert not allowance.take()
