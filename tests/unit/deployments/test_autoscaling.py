import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.autoscaling import (
    DRAIN_S,
    LATE_S,
    REMEMBERED_S,
    LearnedLimit,
    Load,
    ReplicaLoad,
    capacity,
    learn,
    load_of,
    needed,
    replicas_needed,
    room_of_one,
)

TARGET = 12.0

counts = st.integers(0, 300).map(float)
shares = st.integers(0, 100).map(lambda percent: percent / 100)
replica_loads = st.builds(
    ReplicaLoad, running=counts, waiting=counts, held=counts, kv=shares, service_s=st.integers(0, 200).map(float)
)
loads = st.builds(Load, st.lists(replica_loads, max_size=6), ongoing=counts, queued=counts)


@given(loads, st.integers(1, 100), st.sampled_from(["ongoing", "queued"]))
def test_more_requests_never_need_fewer_replicas(load: Load, more: int, where: str) -> None:
    assert needed(load._replace(**{where: getattr(load, where) + more}), TARGET) >= needed(load, TARGET)


@given(loads, st.integers(1, 100), st.sampled_from(["waiting", "held"]), st.integers(0, 5))
def test_more_waiting_requests_never_need_fewer_replicas(load: Load, more: int, where: str, place: int) -> None:
    replicas = list(load.replicas) or [ReplicaLoad()]
    number = place % len(replicas)
    changed = [*replicas]
    changed[number] = replicas[number]._replace(**{where: getattr(replicas[number], where) + more})
    assert needed(load._replace(replicas=changed), TARGET) >= needed(load._replace(replicas=replicas), TARGET)


@given(loads, st.integers(0, 5), shares)
def test_a_fuller_cache_never_needs_fewer_replicas(load: Load, place: int, kv: float) -> None:
    replicas = list(load.replicas) or [ReplicaLoad()]
    number = place % len(replicas)
    fuller = [*replicas]
    fuller[number] = replicas[number]._replace(kv=max(kv, replicas[number].kv))
    assert needed(load._replace(replicas=fuller), TARGET) >= needed(load._replace(replicas=replicas), TARGET)


@given(loads)
def test_a_load_that_is_twice_as_large_needs_at_least_as_many(load: Load) -> None:
    twice = Load([*load.replicas, *load.replicas], 2 * load.ongoing, 2 * load.queued)
    assert needed(load, TARGET) <= needed(twice, TARGET) <= 2 * needed(load, TARGET)


@given(loads)
def test_the_replicas_that_are_needed_hold_the_load(load: Load) -> None:
    """Each replica gets at most its capacity, and one replica less would not be enough."""
    room, count = capacity(load.replicas, TARGET), needed(load, TARGET)
    running = sum(replica.running for replica in load.replicas)
    waiting = max(sum(replica.waiting for replica in load.replicas), load.ongoing - running)
    waiting += sum(replica.held for replica in load.replicas)
    demand = running + waiting * room_of_one(load.replicas) + load.queued
    assert demand <= count * room + 0.001
    assert count == 0 or demand > (count - 1) * room


@given(loads)
def test_a_new_idle_replica_changes_nothing(load: Load) -> None:
    fresh = load._replace(replicas=[*load.replicas, ReplicaLoad(age_s=1.0)])
    assert needed(fresh, TARGET) == needed(load, TARGET)


def test_no_load_needs_no_replica() -> None:
    assert needed(Load(), TARGET) == 0
    assert needed(Load([ReplicaLoad(), ReplicaLoad()]), TARGET) == 0


def test_with_no_replica_the_queue_is_the_demand() -> None:
    assert needed(Load(queued=60), TARGET) == 5


def test_requests_that_were_refused_are_demand() -> None:
    """60 requests at once at a replica that runs 16 and queues 16: 28 are refused. They once added only one replica."""
    replica = ReplicaLoad(running=16, held=16)
    assert needed(Load([replica], ongoing=16, queued=28), TARGET) == 5


def test_the_smallest_sufficient_number_is_returned() -> None:
    assert needed(Load([ReplicaLoad(running=16, waiting=80)]), TARGET) == 8


def test_long_prompts_need_more_replicas_than_their_number_says() -> None:
    """4 requests fill a cache; 4 more wait for it."""
    assert needed(Load([ReplicaLoad(running=4, waiting=4, kv=1.0)]), TARGET) == 3


def test_a_cache_that_is_nearly_full_needs_room_before_requests_wait() -> None:
    assert needed(Load([ReplicaLoad(running=4, kv=0.85)]), TARGET) == 1
    assert needed(Load([ReplicaLoad(running=4, kv=0.95)]), TARGET) == 2


def test_one_request_needs_one_replica_however_long_it_is() -> None:
    assert needed(Load([ReplicaLoad(running=1, kv=0.99)]), TARGET) == 1


def test_requests_that_the_engine_has_not_seen_yet_count() -> None:
    assert needed(Load([ReplicaLoad()], ongoing=30), TARGET) == 3


def test_a_queue_of_short_requests_is_worked_off_before_a_replica_would_start() -> None:
    """The same slots serve one after the other: 120 waiting requests of 6 s need room for 12."""
    assert needed(Load([ReplicaLoad(running=12, waiting=120, service_s=6.0)]), TARGET) == 2
    assert needed(Load([ReplicaLoad(running=12, waiting=120, service_s=60.0)]), TARGET) == 11
    assert needed(Load([ReplicaLoad(running=12, waiting=120, service_s=600.0)]), TARGET) == 11


def test_requests_without_a_replica_count_in_full() -> None:
    assert needed(Load([ReplicaLoad(running=12, service_s=6.0)], queued=120), TARGET) == 11


def test_a_replica_that_was_late_below_the_target_is_full_there() -> None:
    late = [ReplicaLoad(running=6, waiting=6, queue_s=LATE_S + 1)]
    learned = learn(None, late, TARGET, now=100.0)
    assert learned == LearnedLimit(6, 100.0 + REMEMBERED_S)
    assert needed(Load(late), TARGET) == 1
    assert needed(Load(late), TARGET, learned) == 2


@pytest.mark.parametrize(
    "late",
    [
        ReplicaLoad(running=6, waiting=6, queue_s=LATE_S + 1, age_s=10.0),
        ReplicaLoad(running=16, waiting=6, queue_s=LATE_S + 1),
        ReplicaLoad(running=6, waiting=6, queue_s=LATE_S),
    ],
    ids=["a replica that has just started", "above the target", "not late"],
)
def test_no_limit_is_learned_from_such_a_replica(late: ReplicaLoad) -> None:
    assert learn(None, [late], TARGET, now=0.0) is None


def test_one_long_prompt_lowers_the_limit_only_so_far() -> None:
    assert learn(None, [ReplicaLoad(running=1, waiting=9, queue_s=30.0)], TARGET, now=0.0) == LearnedLimit(
        3, REMEMBERED_S
    )


def test_a_learned_limit_is_forgotten() -> None:
    known = LearnedLimit(6, until=100.0)
    assert learn(known, [ReplicaLoad(running=6)], TARGET, now=99.0) == known
    assert learn(known, [ReplicaLoad(running=6)], TARGET, now=100.0) is None
    assert learn(known, [ReplicaLoad(running=7)], TARGET, now=99.0) is None
    assert learn(known, [ReplicaLoad(running=9, queue_s=LATE_S + 1)], TARGET, now=99.0) == LearnedLimit(
        6, 99 + REMEMBERED_S
    )


SLOTS, SERVICE_S = 16, 6.0


def at_constant_load(requests: int, kv_each: float, replicas: int) -> Load:
    """The reports of `replicas` replicas with a constant number of requests, each of which fills a share of a cache."""
    fits = min(SLOTS, int(1 / kv_each))
    share, more = divmod(requests, replicas)
    each = [share + (number < more) for number in range(replicas)]
    loads = [
        ReplicaLoad(min(requests, fits), max(0, requests - fits), kv=min(requests, fits) * kv_each, service_s=SERVICE_S)
        for requests in each
    ]
    return Load(loads, ongoing=requests)


@given(st.integers(0, 500), st.integers(1, 50).map(lambda percent: percent / 100), st.integers(1, 40))
def test_the_policy_does_not_oscillate_at_constant_load(requests: int, kv_each: float, replicas: int) -> None:
    seen = [replicas]
    for _ in range(40):
        seen.append(max(1, needed(at_constant_load(requests, kv_each, seen[-1]), TARGET)))
    settled = seen[-1]
    assert needed(at_constant_load(requests, kv_each, settled), TARGET) in (0, settled)
    if replicas < settled:
        assert seen == sorted(seen), "it only grows"
    loads = at_constant_load(requests, kv_each, settled).replicas
    running, waiting = sum(load.running for load in loads), sum(load.waiting for load in loads)
    assert waiting * SERVICE_S <= DRAIN_S * running, "the queue is worked off in time"


@dataclass
class FakeContext:
    """The context that the controller passes to a policy."""

    raw_metrics: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    total_running_requests: float = 0.0
    total_queued_requests: float = 0.0
    current_time: float | None = 1000.0
    config: Any = field(default_factory=lambda: SimpleNamespace(get_target_ongoing_requests=lambda: TARGET))
    policy_state: dict[str, Any] = field(default_factory=dict)


def series(*values: float) -> list[Any]:
    return [SimpleNamespace(timestamp=float(at), value=value) for at, value in enumerate(values)]


def test_the_load_is_the_latest_and_lateness_the_mean() -> None:
    ctx = FakeContext(
        {
            "running": {"a": series(1, 2, 9), "b": []},
            "waiting": {"a": series(3)},
            "ongoing": {"a": series(99)},
            "queue_s": {"a": series(1, 4)},
        },
        total_running_requests=11,
        total_queued_requests=7,
    )
    assert load_of(ctx) == Load([ReplicaLoad(running=9, waiting=3, queue_s=2.5)], ongoing=11, queued=7)


def test_without_metrics_serves_own_counts_decide() -> None:
    assert replicas_needed(FakeContext(total_running_requests=20, total_queued_requests=5)) == (3, {})


def test_the_policy_remembers_what_it_has_learned() -> None:
    metrics = {"running": {"a": series(6)}, "waiting": {"a": series(6)}, "queue_s": {"a": series(3.0)}}
    ctx = FakeContext(metrics)
    count, state = replicas_needed(ctx)
    assert (count, state) == (2, {"learned": (6, 1000.0 + REMEMBERED_S)})
    del metrics["queue_s"]
    assert replicas_needed(FakeContext(metrics, policy_state=state)) == (2, state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_serve_loads_the_policy_by_its_name() -> None:
    """Serve runs it from the pickled module, as in the controller."""
    from ray.serve.config import AutoscalingConfig

    config = AutoscalingConfig(
        max_replicas=8,
        target_ongoing_requests=TARGET,
        policy={"policy_function": "deployments.autoscaling:replicas_needed"},
    )
    assert config.policy.get_policy()(FakeContext(total_running_requests=20, config=config)) == (2, {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_draining_replica_does_not_count() -> None:
    """A draining replica reports its load while its streams run, but the load is not counted.

    Its work will not go to other replicas: in Serve's own code it adds no replica, and no limit is learned from it.
    Requests that it can no longer take wait at a router, and count there.
    """
    from benchmarks.autoscaling.controller import Autoscaler, simulated_time

    settings = {
        "min_replicas": 1,
        "max_replicas": 8,
        "target_ongoing_requests": TARGET,
        "upscale_delay_s": 0,
        "downscale_delay_s": 10,
        "metrics_interval_s": 1,
        "look_back_period_s": 2,
        "policy": {"policy_function": "deployments.autoscaling:replicas_needed"},
    }
    with simulated_time() as clock:
        autoscaler = Autoscaler(settings, clock)

        def decided(running: list[str], queued: int = 0) -> int:
            clock.now += 1
            autoscaler.report("stays", 10, {"running": 10, "waiting": 0, "age_s": 300})
            autoscaler.report("drains", 60, {"running": 8, "waiting": 52, "queue_s": 30, "age_s": 300})
            autoscaler.report_queue(queued)
            return autoscaler.decide(running, target=2)

        assert decided(["stays", "drains"]) > 2
        autoscaler = Autoscaler(settings, clock)
        assert {decided(["stays"]) for _ in range(5)} == {2}
        assert {decided(["stays"]) for _ in range(10)} == {2, 1}, "after the delay, its own load is all that counts"
        autoscaler = Autoscaler(settings, clock)
        assert decided(["stays"], queued=30) == 4


def test_the_policy_imports_neither_vllm_nor_torch_nor_ray() -> None:
    """The controller would take three times its memory."""
    check = "import sys, deployments.autoscaling; print(sorted({'ray', 'torch', 'vllm', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, check=True).stdout == b"[]\n"
