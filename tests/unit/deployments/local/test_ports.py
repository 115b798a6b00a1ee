import os
import subprocess
import sys
from itertools import pairwise

import pytest

from deployments import haproxy
from deployments.local import processes as module
from deployments.local.processes import _REPLICA_RANGES, REPLICA_PORTS, free_ports
from tests.support.processes.project import ROOT

QUICKEST_START_S = 5.0
"""The start of the project's smallest engine on an idle machine."""


def test_a_crash_loop_does_not_use_up_the_ports() -> None:
    quarantine_s = int(haproxy.SETTINGS["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) + 30
    assert quarantine_s / QUICKEST_START_S < REPLICA_PORTS


def test_the_ranges_of_two_runs_do_not_overlap_nor_meet_outgoing_connections() -> None:
    starts = list(_REPLICA_RANGES)
    assert all(later - earlier >= REPLICA_PORTS for earlier, later in pairwise(starts))
    assert starts[-1] + _REPLICA_RANGES.step <= 32768


def test_a_run_takes_its_ports_from_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_claims", claims := list[int]())
    try:
        ports = free_ports(8000)
    finally:
        for descriptor in claims:
            os.close(descriptor)
    assert ports.replicas in _REPLICA_RANGES
    others = [ports.stats, ports.metrics, ports.fallback_http, ports.fallback_grpc]
    others += [ports.dashboard_metrics, ports.autoscaler_metrics]
    assert len(set(others)) == len(others)
    assert all(ports.replicas + REPLICA_PORTS <= it < ports.replicas + _REPLICA_RANGES.step for it in others)


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
