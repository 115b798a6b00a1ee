"""The number of replicas that a model needs: an autoscaling policy for vLLM on Ray Serve.

    autoscaling_config:
      policy: {policy_function: "deployments.autoscaling:replicas_needed"}

Serve's own policy divides the requests at the replicas by `target_ongoing_requests`. That misses what matters
for LLMs: long prompts fill the KV cache long before the target is reached, and the mean over the look-back period
comes late. This one counts waiting requests, wherever they wait, and a replica's capacity is the lowest of three
bounds: the target, the KV cache, and the number of requests at which others began to wait. It returns the number that
is needed, not one more. Serve applies `upscale_delay_s`, `downscale_delay_s` and the bounds to it.

The function runs in Serve's controller, ten times a second for each application. So this module imports neither vLLM
nor torch nor Ray, and does a handful of divisions. Contract: `ray.serve.config.AutoscalingContext` (Ray 2.60), and the
metrics of `deployments.engine.server`. Without a running replica Serve does not call the policy: the first
request starts one, and the policy decides from then on.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

KV_FULL = 0.9
"""The share of its KV cache that a replica should use at most: above it vLLM begins to recompute evicted blocks."""

LATE_S = 1.0
"""If requests wait longer than this in vLLM before they begin, the replica is full, regardless of its load. In a
healthy engine they wait for one step, some tens of milliseconds.
"""

DRAIN_S = 60.0
"""Waiting requests in vLLM may take this long to be worked off: about as long as a new replica takes to start. If 60
wait that take 6 s each, they need room for 6: the others follow in the same slots."""

YOUNG_S = 60.0
"""A replica's first steps take seconds (kernels are compiled, caches are empty): waiting then proves nothing."""

REMEMBERED_S = 1800.0
"""The time for which the policy uses what it has learned from late requests. It forgets sooner if a replica runs more.
"""

LEAST_OF_TARGET = 0.25
"""The lower bound of a learned capacity, as a share of the target: one long prompt makes others late."""


class ReplicaLoad(NamedTuple):
    """One replica's load, as it reports it. `running` and `waiting` are vLLM's, `held` wait in Serve before it.

    `kv`: the share of the KV cache in use, 0 to 1. `queue_s`: the time that recently started requests had waited in
    vLLM, the mean over the look-back period. `service_s`: the run time of requests, without their wait; 0: not known.
    `age_s`: the time since its engine was ready.
    """

    running: float = 0.0
    waiting: float = 0.0
    held: float = 0.0
    kv: float = 0.0
    queue_s: float = 0.0
    service_s: float = 0.0
    age_s: float = math.inf


class Load(NamedTuple):
    """A deployment's load.

    `replicas`: those that run and report, without those that start or drain. `ongoing`: requests that Serve
    counts at running replicas. `queued`: requests without a replica: they wait at a router or proxy, or were refused.
    """

    replicas: Sequence[ReplicaLoad] = ()
    ongoing: float = 0.0
    queued: float = 0.0


class LearnedLimit(NamedTuple):
    """Requests were late while a replica ran `full_at` of them. True until `until`, in Unix seconds."""

    full_at: float
    until: float


class Context(Protocol):
    """The part of `ray.serve.config.AutoscalingContext` that the policy reads. Metrics: by name and replica."""

    current_time: float | None
    config: Any
    policy_state: dict[str, Any]

    @property
    def total_running_requests(self) -> float: ...
    @property
    def total_queued_requests(self) -> float: ...
    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Any]]] | None: ...


def replicas_needed(ctx: Context) -> tuple[int, dict[str, Any]]:
    """The policy: returns the number of replicas that the deployment needs, and the state to keep for the next call."""
    now = ctx.current_time or 0.0
    load, target = load_of(ctx), float(ctx.config.get_target_ongoing_requests())
    known = ctx.policy_state.get("learned")
    learned = learn(LearnedLimit(*known) if known is not None else None, load.replicas, target, now)
    state = {"learned": tuple(learned)} if learned is not None else {}
    return needed(load, target, learned), state


def needed(load: Load, target: float, learned: LearnedLimit | None = None) -> int:
    """The number of replicas for `load`, at `target` requests each at most; without bounds."""
    running = sum(replica.running for replica in load.replicas)
    waiting = sum(replica.waiting for replica in load.replicas)
    # Serve's count includes requests that the engine has not seen yet; the engine's is more recent. Take the larger.
    waiting = max(waiting, load.ongoing - running) + sum(replica.held for replica in load.replicas)
    demand = running + waiting * room_of_one(load.replicas) + load.queued
    return math.ceil(round(demand / capacity(load.replicas, target, learned), 6))


def capacity(replicas: Sequence[ReplicaLoad], target: float, learned: LearnedLimit | None = None) -> float:
    """The number of requests that one replica should hold, at least 1. Waiting ones are assumed to be as long as
    running ones.

    A replica that runs nothing yet does not count.
    """
    per_replica = target if learned is None else min(target, learned.full_at)
    running, kv = sum(replica.running for replica in replicas), sum(replica.kv for replica in replicas)
    if running > 0 and kv > 0:
        per_replica = min(per_replica, KV_FULL * running / kv)
    return max(per_replica, 1.0)


def room_of_one(replicas: Sequence[ReplicaLoad]) -> float:
    """The room that a waiting request needs, as a share of a running one's: it may wait `DRAIN_S` before it begins."""
    known = [replica.service_s for replica in replicas if replica.service_s > 0]
    return min(1.0, sum(known) / len(known) / DRAIN_S) if known else 1.0


def learn(
    known: LearnedLimit | None, replicas: Sequence[ReplicaLoad], target: float, now: float
) -> LearnedLimit | None:
    """Updates the learned capacity: if requests were late while replicas ran fewer than the target, that number is
    full.
    """
    if known is not None and (known.until <= now or _disproved(known, replicas)):
        known = None
    late = [replica.running for replica in replicas if replica.queue_s > LATE_S and replica.age_s >= YOUNG_S]
    if not late:
        return known
    seen = max(sum(late) / len(late), LEAST_OF_TARGET * target)
    if seen >= target:
        return known
    return LearnedLimit(min(seen, known.full_at) if known is not None else seen, now + REMEMBERED_S)


def _disproved(known: LearnedLimit, replicas: Sequence[ReplicaLoad]) -> bool:
    return any(replica.running >= known.full_at + 1 and replica.queue_s <= LATE_S for replica in replicas)


def load_of(ctx: Context) -> Load:
    """The load as Serve has collected it: the latest values, but lateness as the mean over the look-back period.

    Not from `aggregated_metrics`: Serve would merge the series of every metric of every replica for it, at each call.
    """
    metrics: dict[Any, dict[str, float]] = {}
    for name, series in (ctx.raw_metrics or {}).items():
        if name in ReplicaLoad._fields:
            for replica, points in series.items():
                if points:
                    metrics.setdefault(replica, {})[name] = _mean(points) if name == "queue_s" else points[-1].value
    loads = [ReplicaLoad(**values) for values in metrics.values()]
    return Load(loads, ctx.total_running_requests, ctx.total_queued_requests)


def _mean(points: Sequence[Any]) -> float:
    return math.fsum(point.value for point in points) / len(points)
