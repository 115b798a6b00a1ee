"""A replica's report of its load, for the autoscaling policy (`deployments.autoscaling`): vLLM's own metrics."""

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv",
}
"""vLLM's name to ours. With several engine cores in a replica, requests add up, and `kv` is the fullest one's."""

QUEUE_TIME = "vllm:request_queue_time_seconds"
"""vLLM's histogram of the time that requests waited before they began, in seconds."""

SERVICE_TIME = "vllm:request_inference_time_seconds"
"""vLLM's histogram of the time that requests ran, in seconds."""


class LoadReport:
    """Reads the metrics of this process. `held`: requests that wait in Serve, before vLLM. `clock`: seconds."""

    def __init__(
        self,
        held: Callable[[], int],
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [*GAUGES, *(f"{name}_{part}" for name in (QUEUE_TIME, SERVICE_TIME) for part in ("sum", "count"))]
        self._collect, self._held, self._clock = registry.restricted_registry(names).collect, held, clock
        self._ready_at = clock()
        self._before: dict[str, tuple[float, float]] = {}
        self._service_s = 0.0

    def read(self) -> dict[str, float]:
        """`ReplicaLoad` as a dict. `queue_s` is the mean of the requests that began since the last call, 0 if none did;
        `service_s` of those that ended, or the last one that is known.

        Values that vLLM does not report are left out: the policy then has only Serve's own count.
        """
        found: dict[str, float] = {"held": float(self._held()), "age_s": self._clock() - self._ready_at}
        for family in self._collect():
            values = [sample.value for sample in family.samples]
            if family.name == QUEUE_TIME:
                found["queue_s"] = self._mean_since(family) or 0.0
            elif family.name == SERVICE_TIME:
                found["service_s"] = self._service_s = self._mean_since(family) or self._service_s
            elif (name := GAUGES.get(family.name)) is not None and values:
                found[name] = max(values) if name == "kv" else sum(values)
        return found

    def _mean_since(self, family: Any) -> float | None:
        """The mean of a histogram's observations since the last call; None without any."""
        total = sum(it.value for it in family.samples if it.name.endswith("_sum"))
        count = sum(it.value for it in family.samples if it.name.endswith("_count"))
        total_before, count_before = self._before.get(family.name, (0.0, 0.0))
        self._before[family.name] = (total, count)
        return (total - total_before) / (count - count_before) if count > count_before else None


def held_by_serve() -> int:
    """Requests that this replica has accepted and that wait for one of its `max_ongoing_requests`.

    Ray 2.60 counts them and does not publish them; 0 where it does not count.
    """
    import ray

    for actor in getattr(ray._private.worker.global_worker, "actors", {}).values():
        replica = getattr(actor, "_replica_impl", None)
        return int(getattr(replica, "_num_queued_requests", 0))
    return 0
