"""Signals stop waiting at once, and interrupt nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from deployments import haproxy
from deployments.local.processes import (
    REPLICA_PORTS,
    REPLICA_RANGES,
    Stopped,
    free_ports,
    raise_if_stopped,
    run_in_background,
    stop_event,
)
from tests.support.processes.project import ROOT

QUICKEST_START_S = 5.0
"""The start of the project's smallest engine on an idle machine."""


def test_a_crash_loop_does_not_use_up_the_ports() -> None:
    quarantine_s = int(haproxy.SETTINGS["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) + 30
    assert quarantine_s / QUICKEST_START_S < REPLICA_PORTS


def test_the_ranges_of_two_runs_do_not_overlap_nor_meet_outgoing_connections() -> None:
    starts = list(REPLICA_RANGES)
    assert all(later - earlier >= REPLICA_PORTS for earlier, later in pairwise(starts))
    assert starts[-1] + REPLICA_RANGES.step <= 32768


def test_a_run_takes_its_ports_from_one_range() -> None:
    claims: list[int] = []
    try:
        ports = free_ports(8000, claims)
    finally:
        for descriptor in claims:
            os.close(descriptor)
    assert ports.replicas in REPLICA_RANGES
    others = [ports.stats, ports.metrics, ports.fallback_http, ports.fallback_grpc]
    others += [ports.dashboard_metrics, ports.autoscaler_metrics]
    assert len(set(others)) == len(others)
    assert all(ports.replicas + REPLICA_PORTS <= other < ports.replicas + REPLICA_RANGES.step for other in others)


def test_runs_that_start_at_the_same_moment_get_other_ports() -> None:
    """Ports on which nothing listens yet."""
    code = "import sys; from deployments.local.processes import free_ports; p = free_ports(8000); "
    code += "print(p.dashboard, p.replicas, flush=True); sys.stdin.read()"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        lines = [run.stdout.readline().split() for run in runs if run.stdout is not None]
    finally:
        for run in runs:
            run.communicate(timeout=30)
    one, other = lines
    assert one[0] != other[0]
    assert one[1] != other[1]


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
