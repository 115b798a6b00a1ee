"""What docs/internals/performance.md says about the policies, in fewer runs: the default keeps conversations on their
replica at any load."""

from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.affinity.model import simulate
from benchmarks.affinity.policies import POLICIES, order
from benchmarks.affinity.workloads import WORKLOADS, Workload

OURS, LEAST = "2 roots more, first turns half (ours)", "least connections"


@pytest.mark.parametrize(
    "workload", [workload for workload in WORKLOADS if workload.conversations == 64], ids=lambda workload: workload.name
)
def test_conversations_find_their_prefix_and_no_replica_is_overloaded(workload: Workload) -> None:
    ours = [simulate(workload, POLICIES[OURS](), seed) for seed in range(5)]
    least = simulate(workload, POLICIES[LEAST](), 0)
    assert mean(outcome.hits for outcome in ours) >= 0.9
    assert mean(outcome.busiest for outcome in ours) <= 1.4
    assert mean(outcome.first_ms for outcome in ours) < least.first_ms


def test_a_beginning_that_all_share_is_spread_over_the_replicas() -> None:
    (workload,) = (workload for workload in WORKLOADS if workload.keys == 1)
    assert simulate(workload, POLICIES[OURS](), 0).busiest <= 1.4


def test_routers_that_remember_conversations_do_not_find_each_others() -> None:
    remembers = POLICIES["answers soonest, cached where it was sent (has state)"]
    for workload in (workload for workload in WORKLOADS if workload.routers > 1):
        alone = replace(workload, routers=1)
        assert simulate(alone, remembers(), 0).hits > 0.95
        assert simulate(workload, remembers(), 0).hits < 0.8 < simulate(workload, POLICIES[OURS](), 0).hits


def test_a_new_replica_takes_its_share_and_no_other_keys_move() -> None:
    keys = range(1000)
    before, after = ({key: order(key, replicas)[0] for key in keys} for replicas in (4, 5))
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {4}
    assert len(moved) <= len(keys) * (1 / 5 + 0.1)
