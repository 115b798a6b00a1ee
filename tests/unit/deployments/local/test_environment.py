from itertools import pairwise

from deployments import haproxy
from deployments.local.environment import _REPLICA_RANGES, REPLICA_PORTS, free_ports

QUICKEST_START_S = 5.0
"""Of the smallest engine of this project, on an idle machine."""


def test_a_crash_loop_does_not_use_up_the_ports() -> None:
    quarantine_s = int(haproxy.SETTINGS["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) + 30
    assert quarantine_s / QUICKEST_START_S < REPLICA_PORTS


def test_the_ranges_of_two_runs_do_not_overlap_nor_meet_outgoing_connections() -> None:
    starts = list(_REPLICA_RANGES)
    assert all(later - earlier >= REPLICA_PORTS for earlier, later in pairwise(starts))
    assert starts[-1] + REPLICA_PORTS <= 32768


def test_a_run_has_a_range() -> None:
    assert free_ports(8000).replicas in _REPLICA_RANGES
