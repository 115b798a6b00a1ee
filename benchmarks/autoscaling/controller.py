"""Runs Ray Serve's own autoscaling code with a simulated clock: its aggregation of metrics, delays, bounds and
policy."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ray.serve import autoscaling_policy
from ray.serve._private import autoscaling_state
from ray.serve._private.common import (
    RUNNING_REQUESTS_KEY,
    DeploymentHandleSource,
    DeploymentID,
    HandleMetricReport,
    ReplicaID,
    ReplicaMetricReport,
    TimeStampedValue,
)
from ray.serve.config import AutoscalingConfig

EPOCH = 1_000_000.0
"""The clock's start, above 0 because Serve compares times with 0."""


class Clock:
    """Replaces the module `time` in Serve's autoscaling, which measures delays with it."""

    now = EPOCH

    def time(self) -> float:
        return self.now

    monotonic = time


class Autoscaler:
    """One deployment's autoscaling in Serve's controller."""

    def __init__(self, settings: Mapping[str, Any], clock: Clock) -> None:
        self._clock, self._id = clock, DeploymentID(name="Engine", app_name="model")
        self._config = AutoscalingConfig(**settings)
        self._state = autoscaling_state.DeploymentAutoscalingState(self._id)
        # The same as `register`, which would need a complete deployment.
        self._state._config = self._config
        self._state._policy = autoscaling_policy._apply_autoscaling_config(self._config.policy.get_policy())
        self._state._policy_state = {}
        self._series: dict[str, dict[str, list[TimeStampedValue]]] = {}

    @property
    def every_s(self) -> float:
        """How often replicas report."""
        return float(self._config.metrics_interval_s)

    def report(self, replica: str, ongoing: int, stats: Mapping[str, float]) -> None:
        """A replica's report: Serve's own count, and `record_autoscaling_stats`."""
        now = self._clock.now
        series = self._series.setdefault(replica, {})
        for name, value in {RUNNING_REQUESTS_KEY: ongoing, **stats}.items():
            points = [
                point for point in series.get(name, ()) if point.timestamp > now - self._config.look_back_period_s
            ]
            series[name] = [*points, TimeStampedValue(now, value)]
        self._state.record_request_metrics_for_replica(ReplicaMetricReport(self._replica(replica), dict(series), now))

    def report_queue(self, requests: int) -> None:
        """Records a router's report of the requests that it has no replica for."""
        now = self._clock.now
        queued = [TimeStampedValue(now, requests)]
        source = DeploymentHandleSource.REPLICA
        self._state.record_request_metrics_for_handle(
            HandleMetricReport(self._id, "router", "router", source, queued, {}, now)
        )

    def decide(self, running: Sequence[str], target: int) -> int:
        """The number of replicas that Serve wants."""
        self._state.update_running_replica_ids([self._replica(replica) for replica in running])
        return int(self._state.get_decision_num_replicas(target))

    def _replica(self, name: str) -> ReplicaID:
        return ReplicaID(unique_id=name, deployment_id=self._id)


@contextmanager
def simulated_time() -> Iterator[Clock]:
    """Serve's autoscaling reads this clock while the block runs."""
    clock = Clock()
    modules: tuple[Any, ...] = (autoscaling_state, autoscaling_policy)
    for module in modules:
        module.time = clock
    try:
        yield clock
    finally:
        for module in modules:
            module.time = time
