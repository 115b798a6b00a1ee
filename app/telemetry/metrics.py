"""The router's metrics. They hold neither prompts nor keys.

Metric names follow OpenTelemetry's GenAI conventions where one exists
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/), dots as underscores.

- Metrics of the exposures and recordings that routers send to the controller.
- Metrics of failures before the first byte, and of full endpoints and deployments.
- The series that count the requests of one endpoint, deployment, dialect, status and reason.
- The histograms of requests in what a scrape reads, where many endpoints share theirs.
- Samples of event-loop lag and the number of tasks.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import add
from typing import Any, Final, Protocol, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app.aio import run_in_background
from app.telemetry.logs import Record, log_request
from app.telemetry.periods import Period, StreamTimes

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
            "Exposures that the controller of experiments has not stored yet",
            registry=registry,
        )
        self.ledger_batch = Histogram(
            "switchyard_ledger_batch_seconds",
            "From sending a batch of exposures to the controller's acknowledgement",
            registry=registry,
            buckets=_BATCH,
        )
        self.recorded_requests = Counter(
            "switchyard_recorded_requests",
            "Requests recorded for a replay, by outcome: recorded, without_text (although it was configured), lost",
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


# They change only in these cases; a request that is served at once costs nothing here.

_WAIT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class RoutingMetrics:
    """Metrics whose labels are names of the configuration, or one of few words."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._retries = Counter(
            "switchyard_retries",
            "Requests whose deployment failed before the first byte, by the retry: same or other (deployment), "
            "withheld (retries may add a tenth to the load, and an engine that timed out gets none)",
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
            "Requests that got no slot of their endpoint, by cause: full, timeout",
            ("endpoint", "cause"),
            registry=registry,
        )
        self._at_capacity = Counter(
            "switchyard_deployment_refused",
            "Attempts that a deployment refused since its replicas' queues were full; a fallback may have answered",
            ("endpoint", "deployment"),
            registry=registry,
        )
        self.lost: dict[tuple[str, str], int] = {}
        """Streams whose engine has died, by endpoint and deployment."""
        self._continued = Counter(
            "switchyard_continued_streams",
            "Streams that lost their engine: its connection was closed, it failed (error), or it handed them over; and "
            "what became of them: another replica continued them, they ended with an error, their deadline passed, or "
            "the client left",
            ("endpoint", "deployment", "reason", "outcome"),
            registry=registry,
        )
        self._pauses = Histogram(
            "switchyard_continuation_pause_seconds",
            "The time from a lost engine's last token to its successor's first one, or the stream's end",
            ("endpoint", "deployment"),
            registry=registry,
            buckets=_WAIT,
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

    def continued(self, endpoint: str, deployment: str, reason: str, outcome: str, pause_s: float) -> None:
        """Counts a stream of the deployment that lost its engine: ``closed``, ``error`` or ``handover``; and then was
        ``continued``, ``ended`` with an error, over its ``deadline``, or had lost its client (``client_gone``)."""
        self._continued.labels(endpoint, deployment, reason, outcome).inc()
        arm = (endpoint, deployment)
        self.lost[arm] = self.lost.get(arm, 0) + (reason != "handover")
        self._pauses.labels(endpoint, deployment).observe(pause_s)


Labelled = TypeVar("Labelled", Counter, Gauge, Histogram)

# The bucket boundaries that the conventions recommend, in seconds and tokens; for the first token and the time between
# tokens also those of engines that hang or are replaced, up to the default limits on both.
DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_LONG = (10.0, 20.0, 40.0, 80.0, 160.0)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, *_LONG, 320.0)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, *_LONG)
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
    period: Period

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
        self._requests._value._value += 1
        _observe(self._duration, DURATION, elapsed)
        usage = record.usage
        if record.streamed and record.first_byte is not None:
            first_token, per_token = record.first_byte - record.started, None
            _observe(self._first_token, FIRST_TOKEN, first_token)
            if usage is not None and usage.completion_tokens > 1:
                per_token = (record.started + elapsed - record.first_byte) / (usage.completion_tokens - 1)
                _observe(self._per_token, PER_TOKEN, per_token)
            self._metrics.period.streamed(StreamTimes((self._labels[0], self._labels[1]), first_token, per_token))
        if usage is not None:
            _observe(self._input, TOKENS, usage.prompt_tokens)
        if (used := record.used) is not None:
            _observe(self._output, TOKENS, used.completion_tokens)
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
    """`histogram.observe(amount)`, which tries one bucket after the other, and takes a lock for each number: only the
    event loop's thread changes those of requests. `bounds`: its own."""
    histogram._sum._value += amount
    histogram._buckets[bisect_left(bounds, amount)]._value += 1


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ("endpoint", "deployment", "dialect", "status")


OWN_HISTOGRAMS = 50
"""Endpoints that have histograms of their own in what a scrape reads."""

TOGETHER = "_others"
"""The labels `endpoint` and `deployment` of the histograms that all further endpoints share. No endpoint has this
name."""


class _Endpoints:
    """Which endpoints have histograms of their own: the first of the configuration, so that it is the same ones on
    every router. For each it is decided once, since a series that joined another would look like new requests."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._sharing: set[str] = set()

    def configure(self, names: Iterable[str]) -> None:
        """Decides for the names that are new."""
        for name in names:
            if name not in self._own and name not in self._sharing:
                (self._own if len(self._own) < OWN_HISTOGRAMS else self._sharing).add(name)

    def shown(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels of the series in which those of these labels are shown."""
        return (TOGETHER, TOGETHER, *labels[2:]) if labels[0] in self._sharing else labels


_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.999)
"""Bucket bounds; above the last one nothing is left."""


class Telemetry(LedgerMetrics):
    """The process's metrics."""

    def __init__(self) -> None:
        disable_created_metrics()  # they would double the series of every counter and histogram
        self.registry = registry = CollectorRegistry()
        super().__init__(registry)
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._series: dict[tuple[str, ...], RequestSeries] = {}
        self.period = Period()
        self.in_flight = Gauge(
            "http_server_active_requests",
            "Requests that a deployment is working on",
            _LABELS[:3],
            registry=registry,
        )
        self.requests = Counter(
            "switchyard_requests",
            "Requests answered, by the rule that chose the deployment, as in the access log",
            (*_LABELS, "reason"),
            registry=registry,
        )
        self.breaker_open = Gauge(
            "switchyard_breaker_open",
            "1 while a deployment's circuit breaker is open: it gets no traffic that another one can take",
            ("deployment",),
            registry=registry,
        )
        self.errors = Counter(
            "switchyard_errors", "Requests that failed, by kind", (*_LABELS, "error_type"), registry=registry
        )
        self._endpoints = _Endpoints()
        self.duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From the request's arrival to the answer's last byte",
            _LABELS,
            registry=None,
            buckets=DURATION,
        )
        self.first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the request's arrival to a stream's first chunk",
            _LABELS,
            registry=None,
            buckets=FIRST_TOKEN,
        )
        self.per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "The rest of a stream after its first token, divided by its tokens",
            _LABELS,
            registry=None,
            buckets=PER_TOKEN,
        )
        self.tokens = Histogram(
            "gen_ai_client_token_usage_tokens",
            "Tokens per request: input is the prompt, output the completion",
            (*_LABELS, "gen_ai_token_type"),
            registry=None,
            buckets=TOKENS,
        )
        self.max_tokens = Histogram(
            "gen_ai_request_max_tokens",
            "max_tokens of requests that set it",
            _LABELS,
            registry=None,
            buckets=TOKENS,
        )
        self.histograms = (self.duration, self.first_token, self.per_token, self.tokens, self.max_tokens)
        self.reloads = Counter(
            "switchyard_config_reloads",
            "Configurations received, by outcome: applied, refused",
            ("outcome",),
            registry=registry,
        )
        self.last_reload = Gauge(
            "switchyard_config_last_reload_successful",
            "1 if the configuration that was delivered last is in force, 0 if it was refused",
            registry=registry,
        )
        self.key_reloads = Counter(
            "switchyard_key_reloads",
            "Reads of a changed keys file, by outcome: applied, refused",
            ("outcome",),
            registry=registry,
        )
        self.last_key_reload = Gauge(
            "switchyard_keys_last_reload_successful",
            "1 if the keys file that was read last is in force, 0 if it was refused",
            registry=registry,
        )
        self.last_key_reload.set(1)
        self.unauthorized_requests = Counter(
            "switchyard_unauthorized_requests",
            "Requests without valid credentials, by the answer: refused (401), throttled (429)",
            ("outcome",),
            registry=registry,
        )
        self.unknown_routes = Counter(
            "switchyard_unknown_routes",
            "Requests for paths and methods that this server has not",
            ("status",),
            registry=registry,
        )
        self.limits = Counter(
            "switchyard_limited_requests",
            "Requests over a caller's limit: requests, tokens, concurrent",
            ("endpoint", "limit"),
            registry=registry,
        )
        self.limit_shares = Histogram(
            "switchyard_limit_used_ratio",
            "The share of its limit that a caller has used after a request; above 0.999 nothing is left",
            ("endpoint", "limit"),
            registry=registry,
            buckets=_SHARES,
        )
        self.store_failures = Counter(
            "switchyard_limit_store_failures", "Times that the store of limits did not answer", registry=registry
        )
        self.stops = Gauge(
            "switchyard_stops",
            "1 while an experiment's stop keeps the endpoint's traffic from the deployment",
            ("endpoint", "deployment"),
            registry=registry,
        )
        self._stopped: set[tuple[str, str]] = set()
        self.pins = Gauge(
            "switchyard_pins",
            "Conversations that keep the deployment on which they began after a change of traffic",
            ("endpoint",),
            registry=registry,
        )
        self._pinned: set[str] = set()
        self.pin_misses = Counter(
            "switchyard_pin_misses",
            "Requests of running conversations that did not get their deployment after a change of traffic, by cause: "
            "stopped, gone, failing, late (the pin came after the request)",
            ("endpoint", "cause"),
            registry=registry,
        )
        self.routing = RoutingMetrics(registry)
        self.mirrored_requests = Counter(
            "switchyard_mirrored_requests",
            "Requests drawn for a mirror, by what became of their copy: compared, failed, skipped_…",
            ("endpoint", "deployment", "outcome"),
            registry=registry,
        )
        self.mirror_waiting = Gauge(
            "switchyard_mirror_waiting",
            "Copies that wait for one of the shadow's slots",
            ("endpoint", "deployment"),
            registry=registry,
        )
        self.traces = Counter(
            "switchyard_traced_requests",
            "Traced requests, by the outcome of their spans: exported, failed, dropped",
            ("outcome",),
            registry=registry,
        )
        self.loop_lag = Gauge(
            "switchyard_event_loop_lag_seconds",
            "The delay of a one-second timer when it last fired",
            registry=registry,
        )
        self.tasks = Gauge("switchyard_asyncio_tasks", "Tasks of the event loop", registry=registry)
        ProcessCollector(registry=registry)

    def keys_read(self, outcome: str) -> None:
        """Counts a reload of the keys file: ``applied`` or ``refused``."""
        self.key_reloads.labels(outcome).inc()
        self.last_key_reload.set(int(outcome == "applied"))

    def unauthorized(self, outcome: str) -> None:
        """Counts a request without valid credentials: ``refused`` (401) or ``throttled`` (429)."""
        self.unauthorized_requests.labels(outcome).inc()

    def unknown_route(self, status: int) -> None:
        """Counts a request that no route serves: 404, or 405."""
        self.unknown_routes.labels(str(status)).inc()

    def configured(self, outcome: str) -> None:
        """Counts a configuration that was delivered: ``applied`` or ``refused``."""
        self.reloads.labels(outcome).inc()
        self.last_reload.set(int(outcome == "applied"))

    def show(self, endpoints: Iterable[str]) -> None:
        """Decides which of these endpoints have histograms of their own."""
        self._endpoints.configure(endpoints)

    def limited(self, endpoint: str, limit: str) -> None:
        """Counts a request over a limit of ``requests``, ``tokens`` or ``concurrent`` requests."""
        self.limits.labels(endpoint, limit).inc()

    def limit_used(self, endpoint: str, limit: str, share: float) -> None:
        """Records the share of a caller's limit that is used when a request arrives."""
        self.limit_shares.labels(endpoint, limit).observe(share)

    def store_failed(self) -> None:
        """Counts a failure of the limit store."""
        self.store_failures.inc()

    def stops_applied(self, stops: Mapping[str, Collection[str]]) -> None:
        """Sets the stopped deployments, by endpoint."""
        stopped = {(endpoint, deployment) for endpoint, them in stops.items() for deployment in them}
        for arm in self._stopped | stopped:
            self.stops.labels(*arm).set(int(arm in stopped))
        self._stopped = stopped

    def pinned(self, sizes: Mapping[str, int]) -> None:
        """Sets the number of pinned conversations, by endpoint."""
        for endpoint in self._pinned | sizes.keys():
            self.pins.labels(endpoint).set(sizes.get(endpoint, 0))
        self._pinned = set(sizes)

    def pin_missed(self, endpoint: str, cause: str) -> None:
        """Counts a running conversation that changed its deployment, which was ``stopped``, ``gone`` or ``failing``, or
        whose pin came ``late``."""
        self.pin_misses.labels(endpoint, cause).inc()

    def mirrored(self, endpoint: str, deployment: str, outcome: str) -> None:
        """Counts a request that was drawn for a mirror."""
        self.mirrored_requests.labels(endpoint, deployment, outcome).inc()

    def mirror_queued(self, endpoint: str, deployment: str, waiting: int) -> None:
        """Sets the number of waiting copies."""
        self.mirror_waiting.labels(endpoint, deployment).set(waiting)

    def traces_sent(self, outcome: str, requests: int) -> None:
        """Counts requests by the outcome of their spans: ``exported``, ``failed`` (the collector did not take them) or
        ``dropped`` (too many waited)."""
        self.traces.labels(outcome).inc(requests)

    def finish(self, record: Record) -> None:
        """Counts a finished request and writes its access log line."""
        elapsed = time.perf_counter() - record.started
        key = (*record.labels, record.reason)
        if (series := self._series.get(key)) is None:
            series = self._series[key] = RequestSeries(self, record)
        series.count(record, elapsed)
        if record.error:
            self.child(self.errors, *record.labels, record.error).inc()
        log_request(record, elapsed)

    def next_period(self) -> Period:
        """What no counter holds of the requests since the last call."""
        period, self.period = self.period, Period()
        return period

    def working(self, record: Record) -> AbstractContextManager[None]:
        """Counts the request as one that its deployment works on, while the block runs."""
        return _Working(self.child(self.in_flight, record.endpoint, record.deployment, record.dialect))

    def child(self, metric: Labelled, *labels: str) -> Labelled:
        """`metric.labels(*labels)`, cached: prometheus_client takes a lock and checks the labels on every call."""
        key = (metric, labels)
        child: Labelled | None = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def children(self) -> Iterator[tuple[Any, tuple[str, ...], Any]]:
        """Every request metric with the labels that it has had, and its child for them."""
        # One at a time: with a thousand endpoints a list of all would set off the garbage collector.
        return ((metric, labels, child) for (metric, labels), child in self._children.items())

    def expose(self, endpoints: Collection[str] | None = None) -> bytes:
        """The metrics in Prometheus' text format, or those of some endpoints, which have all histograms of their own.
        Of all endpoints, the first `OWN_HISTOGRAMS` have."""
        return b"".join(map(generate_latest, self._sources(endpoints)))

    def metrics_for(self, endpoints: Collection[str]) -> Iterator[Metric]:
        """The metrics of some endpoints."""
        return chain.from_iterable(source.collect() for source in self._sources(endpoints))

    def _sources(self, endpoints: Collection[str] | None) -> Iterator[Collector]:
        yield self.registry if endpoints is None else _ForEndpoints(endpoints, self.registry)
        yield _Histograms(self, self._endpoints, endpoints)


@dataclass(frozen=True, slots=True)
class _Histograms(Collector):
    """The histograms of some endpoints; of all of them, as `shown` says."""

    telemetry: Telemetry
    shown: _Endpoints
    endpoints: Collection[str] | None

    def collect(self) -> Iterator[Metric]:
        series: dict[Histogram, dict[tuple[str, ...], list[float]]] = {each: {} for each in self.telemetry.histograms}
        for histogram, labels, child in list(self.telemetry.children()):
            if histogram in series and (self.endpoints is None or labels[0] in self.endpoints):
                # The numbers themselves: `collect` makes an object of every one, and `get` takes a lock.
                values = [child._sum._value, *(bucket._value for bucket in child._buckets)]
                shown = self.shown.shown(labels) if self.endpoints is None else labels
                before = series[histogram].get(shown)
                series[histogram][shown] = values if before is None else list(map(add, before, values))
        for histogram, values_of in series.items():
            if self.endpoints is None or values_of:
                yield _family(histogram, values_of)


def _family(histogram: Histogram, values_of: Mapping[tuple[str, ...], Sequence[float]]) -> Metric:
    """`values_of` labels: the sum, and the count of each bucket without those below it."""
    family = HistogramMetricFamily(histogram._name, histogram._documentation, labels=histogram._labelnames)
    bounds = list(map(floatToGoString, histogram._upper_bounds))
    for labels, (total, *counts) in values_of.items():
        family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
    return family


class _Working:
    """`gauge.track_inprogress()`, without the checks that the gauge has labels, and without a lock, see `_observe`."""

    __slots__ = ("_value",)

    def __init__(self, gauge: Gauge) -> None:
        self._value = gauge._value

    def __enter__(self) -> None:
        self._value._value += 1

    def __exit__(self, *_: object) -> None:
        self._value._value -= 1


@dataclass(frozen=True, slots=True)
class _ForEndpoints(Collector):
    """The samples of some endpoints."""

    endpoints: Collection[str]
    source: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        for metric in self.source.collect():
            part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            part.samples = [sample for sample in metric.samples if sample.labels.get("endpoint") in self.endpoints]
            if part.samples:
                yield part


SAMPLE_EVERY_S = 1.0


@asynccontextmanager
async def monitor_event_loop(telemetry: Telemetry, every_s: float = SAMPLE_EVERY_S) -> AsyncIterator[None]:
    """Samples the running loop into `telemetry` while the block runs."""
    async with run_in_background(_sample(telemetry, every_s)):
        yield


async def _sample(telemetry: Telemetry, every_s: float) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + every_s
        await asyncio.sleep(every_s)
        telemetry.loop_lag.set(clock() - due)
        telemetry.tasks.set(len(asyncio.all_tasks()))
