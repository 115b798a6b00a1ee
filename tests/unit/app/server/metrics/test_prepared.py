"""Metrics that are prepared in a thread."""

import threading
from collections.abc import Collection

import pytest

from app.server.fleet import FRESH_S, PreparedMetrics
from tests.support.waiting import wait_until


class PreparedRig:
    """Makes metrics once the test allows it."""

    def __init__(self) -> None:
        self.made = 0
        self.now = 1000.0
        self.may = threading.Event()
        self.prepared = PreparedMetrics(self.make, lambda: self.now)

    def make(self, endpoints: Collection[str] | None) -> bytes:
        self.may.wait(10)
        self.made += 1
        return f"{self.made} of {sorted(endpoints) if endpoints is not None else None}".encode()

    def until_ready(self, endpoints: Collection[str] | None = None) -> bytes:
        return wait_until(lambda: self.prepared.look(endpoints))


def test_a_reader_does_not_wait() -> None:
    maker = PreparedRig()
    assert maker.prepared.look(None) is None
    assert maker.prepared.look(None) is None
    maker.may.set()
    assert maker.until_ready() == b"1 of None"


def test_concurrent_readers_share_a_result_for_a_moment() -> None:
    maker = PreparedRig()
    maker.may.set()
    assert maker.until_ready() == b"1 of None"
    assert maker.prepared.look(None) == b"1 of None"
    maker.now += FRESH_S
    assert maker.prepared.look(None) is None
    assert maker.until_ready() == b"2 of None"


def test_a_slow_result_is_still_used() -> None:
    maker = PreparedRig()
    assert maker.prepared.look(None) is None
    maker.now += 10 * FRESH_S
    maker.may.set()
    assert maker.until_ready() == b"1 of None"


def test_readers_of_different_endpoints_get_their_own() -> None:
    maker = PreparedRig()
    maker.may.set()
    assert maker.until_ready(["b", "a"]) == b"1 of ['a', 'b']"
    assert maker.until_ready() == b"2 of None"


def test_a_failure_is_raised() -> None:
    def fail(endpoints: Collection[str] | None) -> bytes:
        raise ValueError("no metrics")

    prepared = PreparedMetrics(fail)

    with pytest.raises(ValueError, match="no metrics"):
        wait_until(lambda: prepared.look(None))
