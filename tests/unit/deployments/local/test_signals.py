"""Signals stop waiting at once, and interrupt nothing."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from deployments.local.processes import Stopped, raise_if_stopped, run_in_background, stop_event


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event(number: int) -> None:
    with stop_event() as stop:
        raise_if_stopped(stop)
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped):
            raise_if_stopped(stop, wait_s=5)


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_event():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_result_of_background_work_is_returned_and_its_error_raised() -> None:
    stop = threading.Event()
    assert run_in_background(lambda: 42, stop) == 42
    with pytest.raises(ZeroDivisionError):
        run_in_background(lambda: 1 / 0, stop)


def test_a_signal_does_not_wait_for_background_work() -> None:
    stop, release = threading.Event(), threading.Event()
    stop.set()
    started = time.monotonic()
    with pytest.raises(Stopped):
        run_in_background(lambda: release.wait(60), stop)
    release.set()
    assert time.monotonic() - started < 30
