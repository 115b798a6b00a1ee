"""Patterns run in a separate process, which is killed when a pattern takes too long."""

from collections.abc import Iterator

import pytest

from app.request_recordings.redactor import Redactor

CATASTROPHIC = "(a+)+$"
BODY = {"messages": [{"role": "user", "content": "call 555-1234"}]}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def redactor(clock: Clock) -> Iterator[Redactor]:
    redactor = Redactor(rest_s=10, clock=clock)
    yield redactor
    redactor.close()


def test_bodies_are_redacted_one_after_the_other(redactor: Redactor) -> None:
    for _ in range(3):
        running = redactor.redacted(BODY, [r"\d{3}-\d{4}"])
        assert running == {"messages": [{"role": "user", "content": "call [redacted]"}]}


def test_a_body_that_cannot_be_redacted_has_no_text_and_stops_nothing(redactor: Redactor) -> None:
    assert redactor.redacted({"prompt": [1, 2]}, ["x"]) is None
    assert redactor.redacted({"prompt": "\ud800"}, ["x"]) is None
    assert redactor.redacted({"prompt": "x", "n": 10**30}, ["x"]) is None
    assert redactor.redacted({"prompt": "x"}, ["x"]) == {"prompt": "[redacted]"}


def test_a_pattern_that_takes_too_long_is_ended_and_no_text_is_recorded_for_a_while(
    redactor: Redactor, clock: Clock
) -> None:
    assert redactor.redacted({"prompt": "a" * 64 + "b"}, [CATASTROPHIC]) is None
    assert redactor.redacted(BODY, ["x"]) is None, "recording of text is paused"
    clock.now += 10
    assert redactor.redacted(BODY, ["x"]) == BODY
