"""Requests without valid credentials: their sources, the limit, the bound of the table, and the sum in the log."""

import logging
from collections import Counter
from typing import Any

import pytest

from app.access.refusals import MOST_A_MINUTE, MOST_SOURCES, Refusals, source_of
from app.errors import TooManyRefusals, Unauthorized

WRONG = Unauthorized("The API key is not valid")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counted:
    def __init__(self) -> None:
        self.outcomes = Counter[str]()

    def unauthorized(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def refusals(clock: Clock, counted: Counted) -> Refusals:
    return Refusals(counted, clock)


def test_a_source_is_throttled_until_its_minute_is_over_and_no_other_is(
    refusals: Refusals, clock: Clock, counted: Counted
) -> None:
    assert [refusals.answer_to(WRONG, "a") for _ in range(MOST_A_MINUTE)] == [WRONG] * MOST_A_MINUTE
    clock.now += 50
    throttled = refusals.answer_to(WRONG, "a")
    assert isinstance(throttled, TooManyRefusals)
    assert throttled.retry_after == pytest.approx(10)
    assert refusals.answer_to(WRONG, "b") is WRONG
    clock.now += 10
    assert refusals.answer_to(WRONG, "a") is WRONG
    assert counted.outcomes == {"refused": MOST_A_MINUTE + 2, "throttled": 1}


def test_any_number_of_sources_takes_bounded_memory_and_the_last_ones_are_throttled_together(
    refusals: Refusals, clock: Clock
) -> None:
    first = [refusals.answer_to(WRONG, str(number)) for number in range(MOST_SOURCES)]
    assert first == [WRONG] * MOST_SOURCES
    more = [refusals.answer_to(WRONG, f"more-{number}") for number in range(10 * MOST_SOURCES)]
    assert [answer is WRONG for answer in more[: MOST_A_MINUTE + 1]] == [True] * MOST_A_MINUTE + [False]
    assert all(isinstance(answer, TooManyRefusals) for answer in more[MOST_A_MINUTE:])
    assert len(refusals.windows) <= MOST_SOURCES + 1
    assert len(refusals.sources) <= MOST_SOURCES + 1
    assert refusals.answer_to(WRONG, "0") is WRONG, "a source that was seen before has its own count"
    clock.now += 60
    assert refusals.answer_to(WRONG, "more-0") is WRONG
    assert len(refusals.windows) == 1, "windows that are over make room"


def test_the_log_has_one_bounded_line_for_any_number_of_refusals(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3000):
        refusals.answer_to(Unauthorized(f"reason {number % 100}"), f"source {number % 50}")
    for _ in range(70):
        refusals.answer_to(WRONG, "busy")
    with caplog.at_level(logging.WARNING, logger="switchyard"):
        refusals.log_sum()
        refusals.log_sum()
    (line,) = caplog.records
    fields: dict[str, Any] = line.__dict__["fields"]
    assert line.__dict__["event"] == "requests_unauthorized"
    assert (fields["requests"], fields["throttled"]) == (3070, 50 * (60 - MOST_A_MINUTE) + 70 - MOST_A_MINUTE)
    assert fields["sources"][0] == {"source": "busy", "requests": 70}
    assert len(fields["sources"]) == 10
    assert fields["other_sources"] == 3070 - sum(source["requests"] for source in fields["sources"])
    assert len(fields["reasons"]) <= 11
    assert sum(reason["requests"] for reason in fields["reasons"]) == 3070


@pytest.mark.parametrize(
    ("peer", "forwarded", "behind_ingress", "source"),
    [
        (("198.51.100.7", 1), None, False, "198.51.100.7"),
        (("198.51.100.7", 1), "203.0.113.9", False, "198.51.100.7"),
        (("10.0.0.3", 1), "203.0.113.9", True, "203.0.113.9"),
        (("10.0.0.3", 1), "192.0.2.1, 203.0.113.9", True, "203.0.113.9"),
        (("127.0.0.1", 1), "192.0.2.1, 203.0.113.9, 127.0.0.1", True, "127.0.0.1"),
        (("10.0.0.3", 1), "192.0.2.1, nonsense", True, "10.0.0.3"),
        (("10.0.0.3", 1), None, True, "10.0.0.3"),
        (("127.0.0.1", 1), "127.0.0.1", True, "127.0.0.1"),
        (("10.0.0.3", 1), "2001:db8:1:2:3:4:5:6", True, "2001:db8:1:2::/64"),
        (("::ffff:198.51.100.7", 1), None, False, "198.51.100.7"),
        (None, None, False, "unknown"),
        (["/a/socket", None], None, False, "unknown"),
    ],
)
def test_the_source_is_the_peer_or_what_the_ingress_has_added(
    peer: Any, forwarded: str | None, behind_ingress: bool, source: str
) -> None:
    headers = {"x-forwarded-for": forwarded} if forwarded is not None else {}
    assert source_of(headers, peer, behind_ingress=behind_ingress) == source
