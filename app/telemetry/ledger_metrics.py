"""Metrics of the exposures and recordings that routers send to the controller."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BATCH = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class LedgerMetrics:
    """A part of `app.telemetry.metrics.Telemetry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ledger_rows = Counter(
            "switchyard_ledger_rows",
            "Exposures recorded, by the deployment that was drawn",
            ("endpoint", "deployment"),
            registry=registry,
        )
        self.ledger_rows_lost = Counter(
            "switchyard_ledger_rows_lost",
            "Exposures dropped while the controller of experiments was away",
            ("endpoint", "deployment"),
            registry=registry,
        )
        self.ledger_buffer = Gauge(
            "switchyard_ledger_buffer_bytes",
            "Exposures that are not yet durable at the controller",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.ledger_batch = Histogram(
            "switchyard_ledger_batch_seconds",
            "From sending a batch of exposures to the controller's acknowledgement",
            registry=registry,
            buckets=_BATCH,
        )
        self.recorded_requests = Counter(
            "switchyard_recorded_requests",
            "Requests written down for a replay, by what became of them: recorded, without_text, lost",
            ("endpoint", "outcome"),
            registry=registry,
        )

    def rows_recorded(self, endpoint: str, deployment: str, rows: int) -> None:
        """Counts exposures."""
        self.ledger_rows.labels(endpoint, deployment).inc(rows)

    def rows_lost(self, endpoint: str, deployment: str, rows: int) -> None:
        """Counts exposures that were dropped."""
        self.ledger_rows_lost.labels(endpoint, deployment).inc(rows)

    def ledger_buffered(self, size: int) -> None:
        """Sets the bytes of exposures that wait."""
        self.ledger_buffer.set(size)

    def requests_recorded(self, endpoint: str, outcome: str, requests: int) -> None:
        """Counts requests written down: ``recorded``, ``without_text`` (though it was wanted), or ``lost``."""
        self.recorded_requests.labels(endpoint, outcome).inc(requests)

    def batch_sent(self, seconds: float) -> None:
        """Counts a batch of exposures that was acknowledged."""
        self.ledger_batch.observe(seconds)
