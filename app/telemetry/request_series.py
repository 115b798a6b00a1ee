"""The series that count the requests of one endpoint, deployment, dialect, status and reason."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from app.telemetry.access_log import Record

Labelled = TypeVar("Labelled", Counter, Gauge, Histogram)

# The bucket boundaries that the conventions recommend, in seconds and tokens.
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

_MAX_OBSERVED = 2**63
"""JSON integers are unbounded: a client may request more tokens than a histogram's float can hold."""


class RequestMetrics(Protocol):
    """The metrics of requests."""

    requests: Counter
    duration: Histogram
    first_token: Histogram
    per_token: Histogram
    tokens: Histogram
    max_tokens: Histogram

    def child(self, metric: Labelled, *labels: str) -> Labelled:
        """The metric's series with these labels."""


class RequestSeries:
    """Keeps a request's series in one object: with many endpoints they are in no processor cache, and each further
    lookup waits for memory. A series is created when it first counts something."""

    def __init__(self, metrics: RequestMetrics, record: Record) -> None:
        self._metrics, self._labels = metrics, record.labels
        self._requests = metrics.child(metrics.requests, *record.labels, record.reason)
        self._duration = metrics.child(metrics.duration, *record.labels)

    def count(self, record: Record, elapsed: float) -> None:
        """Counts a request that has ended, after `elapsed` seconds."""
        self._requests._value.inc(1)
        _observe(self._duration, DURATION, elapsed)
        usage = record.usage
        if record.streamed and record.first_byte is not None:
            _observe(self._first_token, FIRST_TOKEN, record.first_byte - record.started)
            if usage is not None and usage.completion_tokens > 1:
                rest = record.started + elapsed - record.first_byte
                _observe(self._per_token, PER_TOKEN, rest / (usage.completion_tokens - 1))
        if usage is not None:
            _observe(self._input, TOKENS, usage.prompt_tokens)
            _observe(self._output, TOKENS, usage.completion_tokens)
        if record.max_tokens is not None:
            _observe(self._max_tokens, TOKENS, min(record.max_tokens, _MAX_OBSERVED))

    @cached_property
    def _first_token(self) -> Histogram:
        return self._metrics.child(self._metrics.first_token, *self._labels)

    @cached_property
    def _per_token(self) -> Histogram:
        return self._metrics.child(self._metrics.per_token, *self._labels)

    @cached_property
    def _input(self) -> Histogram:
        return self._metrics.child(self._metrics.tokens, *self._labels, "input")

    @cached_property
    def _output(self) -> Histogram:
        return self._metrics.child(self._metrics.tokens, *self._labels, "output")

    @cached_property
    def _max_tokens(self) -> Histogram:
        return self._metrics.child(self._metrics.max_tokens, *self._labels)


def _observe(histogram: Histogram, bounds: Sequence[float], amount: float) -> None:
    """`histogram.observe(amount)`, which tries one bucket after the other. `bounds`: its own."""
    histogram._sum.inc(amount)
    histogram._buckets[bisect_left(bounds, amount)].inc(1)
