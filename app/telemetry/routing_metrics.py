"""Metrics of failures before the first byte, and of full endpoints and deployments.

They change only in these cases; a request that is served at once costs nothing here.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

_WAIT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RoutingMetrics:
    """Metrics whose labels are names of the configuration, or one of few words."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._retries = Counter(
            "switchyard_retries",
            "Requests whose deployment failed before the first byte, by the retry: on the same deployment, on another "
            "one, or withheld, since the budget of retries was used up, or only the engine that timed out was left",
            ("endpoint", "deployment", "error_type", "outcome"),
            registry=registry,
        )
        self._fallbacks = Counter(
            "switchyard_fallbacks",
            "Requests that were sent to another deployment than the one drawn, which is failing",
            ("endpoint", "deployment", "fallback"),
            registry=registry,
        )
        self._waits = Histogram(
            "switchyard_admission_wait_seconds",
            "The time that requests waited for a slot of their endpoint, if they had to, with or without success",
            ("endpoint",),
            registry=registry,
            buckets=_WAIT,
        )
        self._refused = Counter(
            "switchyard_admission_refused",
            "Requests that got no slot of their endpoint, by cause",
            ("endpoint", "cause"),
            registry=registry,
        )
        self._at_capacity = Counter(
            "switchyard_deployment_refused",
            "Attempts that a deployment refused because it was at capacity",
            ("endpoint", "deployment"),
            registry=registry,
        )

    def retried(self, endpoint: str, deployment: str, error_type: str, outcome: str) -> None:
        """Counts a failure of `deployment` before the first byte. `outcome`: ``same``, ``other`` or ``withheld``."""
        self._retries.labels(endpoint, deployment, error_type, outcome).inc()

    def fell_back(self, endpoint: str, deployment: str, fallback: str) -> None:
        """Counts a request that is sent to `fallback` instead of `deployment`."""
        self._fallbacks.labels(endpoint, deployment, fallback).inc()

    def waited(self, endpoint: str, seconds: float) -> None:
        """Records the wait of a request that has left its endpoint's queue."""
        self._waits.labels(endpoint).observe(seconds)

    def refused(self, endpoint: str, cause: str) -> None:
        """Counts a request that got no slot: ``full`` or ``timeout``."""
        self._refused.labels(endpoint, cause).inc()

    def deployment_refused(self, endpoint: str, deployment: str) -> None:
        """Counts an attempt that `deployment` refused because its replicas' queues were full."""
        self._at_capacity.labels(endpoint, deployment).inc()
