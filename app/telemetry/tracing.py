"""Tracing as long as the configuration has the section `tracing`.

- Samples requests for tracing: once, from the headers, before anything is noted.
- Begins the trace of each request.
- The queue of requests whose spans are to be sent, and the thread that sends them.
- The section `tracing`, completed by OpenTelemetry's standard variables.
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import getrandbits
from typing import Final, NamedTuple, Protocol

from app.config.base import ConfigError
from app.config.endpoints import Tracing
from app.config.endpoints import Tracing as Section
from app.telemetry.logs import Record, event, where
from app.telemetry.request_trace import NO_TRACE, RANDOM, SAMPLED, Remote, RequestSpan, Trace, remote

_LOW = (1 << 64) - 1


class TokenBucket:
    """At most `per_s` grants a second, evenly, with a second's worth at once after a pause. `clock`: seconds."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s, self._clock = per_s, clock
        self._most = max(per_s, 1.0) if per_s > 0 else 0.0
        self._left, self._at = self._most, clock()

    def take(self) -> bool:
        """Takes a grant; False if none is left."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Sampler:
    """Draws a share of the requests; follows callers' own decisions as far as `followed` allows.

    A caller that has not sampled its trace is always followed: that makes less work. One that has is followed within
    the allowance. Beyond it a new number is drawn, since the caller has chosen its trace id, and with it the outcome of
    a draw by that id. `number`: 64 random bits.
    """

    def __init__(self, share: float, followed: TokenBucket, number: Callable[[], int]) -> None:
        self._bound = round(share * (1 << 64))
        self._followed, self._number = followed, number

    def is_drawn(self, trace_id: int) -> bool:
        """Whether a trace that begins here is sampled, by its id as in OpenTelemetry's TraceIdRatioBased."""
        return (trace_id & _LOW) < self._bound

    def follows(self, caller: Remote) -> bool:
        """Whether the caller's decision on its trace is followed."""
        if not caller.is_sampled:
            return False
        return self._followed.take() or self._number() < self._bound


def passed_on(headers: Mapping[str, str]) -> Trace:
    """The caller's trace, to pass on to deployments while nothing is traced here; NO_TRACE if the caller has none."""
    if (caller := remote(headers)) is None:
        return NO_TRACE
    return Trace(caller.trace_id, caller.span_id, caller.flags, caller.state)


class Tracer:
    """Decides which requests are traced. `send` gets the spans of those that are, when they are over."""

    def __init__(self, sampler: Sampler, send: Callable[[RequestSpan], None]) -> None:
        self._sampler, self._send = sampler, send

    def begin(self, headers: Mapping[str, str], record: Record) -> Trace:
        """The trace of a request that has just arrived: the caller's, or a new one. Header names are lower-case."""
        span_id = getrandbits(64) or 1
        if (caller := remote(headers)) is None:
            trace_id = getrandbits(128) or 1
            is_sampled = self._sampler.is_drawn(trace_id)
            trace = Trace(trace_id, span_id, RANDOM | is_sampled * SAMPLED, "", self._send)
        else:
            is_sampled = self._sampler.follows(caller)
            flags = (caller.flags & RANDOM) | is_sampled * SAMPLED
            trace = Trace(caller.trace_id, span_id, flags, caller.state, self._send)
        if is_sampled:
            trace.span = RequestSpan(trace, record, caller)
        return trace


# The event loop only appends to the queue. Requests that do not fit are dropped and counted: an unreachable collector
# delays no request, and costs no memory beyond the queue's.

EXPORTED: Final = "exported"
FAILED: Final = "failed"
"""The outcome of requests that the collector did not accept."""

DROPPED: Final = "dropped"
"""The outcome of requests that did not fit into the queue, or were left in it at the end."""

_log = logging.getLogger("switchyard")


class Exporter(Protocol):
    """Makes spans of the notes, and sends them; `otlp.OtlpExporter` is the real one."""

    def export(self, requests: Sequence[RequestSpan]) -> str | None:
        """Sends them, waiting as long as it takes; returns the problem, None if the collector accepted them."""

    def close(self) -> None:
        """Ends an `export` that is under way soon. Called from another thread."""


class SpanCounters(Protocol):
    """Counts the outcomes of requests' spans: `telemetry.metrics.Telemetry`."""

    def traces_sent(self, outcome: str, requests: int) -> None: ...


class SpanSender:
    """Sends what is `put`, from `start` to `stop`. `new_exporter` is called in the thread.

    At most `queue` requests wait; they are sent every `every_s` seconds, `batch` at a time, sooner if `batch` wait.
    """

    def __init__(
        self, new_exporter: Callable[[], Exporter], observer: SpanCounters, *, queue: int, batch: int, every_s: float
    ) -> None:
        self._new_exporter, self._observer = new_exporter, observer
        self._most, self._batch, self._every_s = queue, batch, every_s
        self._waiting: deque[RequestSpan] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._is_taken = True
        self._exporter: Exporter | None = None
        self._thread = threading.Thread(target=self._run, name="switchyard-traces", daemon=True)

    def put(self, request: RequestSpan) -> None:
        """Queues the spans of a finished request."""
        waiting = self._waiting
        if self._stopping or len(waiting) >= self._most:
            self._observer.traces_sent(DROPPED, 1)
            return
        waiting.append(request)
        if len(waiting) == self._batch:
            self._wake.set()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Lets the thread send the queue, as far as the collector takes it, and end. Returns at once."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the thread's end; after `timeout_s` seconds the rest is dropped."""
        if not self._thread.is_alive():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._exporter is not None:
            self._exporter.close()

    def _run(self) -> None:
        try:
            self._exporter = self._new_exporter()
        except Exception as error:  # noqa: BLE001  the settings are wrong in a way that only the library knows
            _log.error("Spans cannot be sent", extra=event("tracing_failed", traceback=where(error)))
        while not self._stopping:
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._send_what_waits()
        self._send_what_waits()
        if self._waiting:
            self._observer.traces_sent(DROPPED, len(self._waiting))
            self._waiting.clear()

    def _send_what_waits(self) -> None:
        """Sends batch by batch, until the collector does not take one."""
        while self._waiting:
            requests = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
            if not self._send(requests) or (not self._stopping and len(self._waiting) < self._batch):
                return

    def _send(self, requests: Sequence[RequestSpan]) -> bool:
        if self._exporter is None:
            self._observer.traces_sent(FAILED, len(requests))
            return False
        try:
            problem = self._exporter.export(requests)
        except Exception as error:  # noqa: BLE001  a defect must not end the thread
            _log.error("Spans could not be made", extra=event("tracing_failed", traceback=where(error)))
            problem = type(error).__name__
        self._observer.traces_sent(EXPORTED if problem is None else FAILED, len(requests))
        if problem is not None and self._is_taken:
            _log.warning("Span export failing", extra=event("spans_not_sent", problem=problem))
        elif problem is None and not self._is_taken:
            _log.warning("Span export recovered", extra=event("spans_sent_again"))
        self._is_taken = problem is None
        return self._is_taken


# Contract: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/. The variables of the
# exporter that are not here (headers, timeout, compression, certificates) and of the resource (service name,
# attributes) are read by OpenTelemetry's own code.

_DEFAULT_PERCENT = 10.0
_MOST = 1_000_000


class TracingSettings(NamedTuple):
    """`endpoint`: the whole URL for spans, None: from OpenTelemetry's variables. `share` of the requests, 0 to 1.

    Requests wait for the exporter in a queue of at most `queue`; every `every_s` seconds they are exported, `batch` at
    a time.
    """

    endpoint: str | None
    share: float
    follow_per_s: float
    queue: int
    batch: int
    every_s: float


def settings(section: Tracing | None, environment: Mapping[str, str]) -> TracingSettings | None:
    """The settings; None if nothing is traced. Raises ConfigError for an invalid variable."""
    if section is None or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    endpoint = f"{section.endpoint.rstrip('/')}/v1/traces" if section.endpoint is not None else None
    queue = _count(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    return TracingSettings(
        endpoint,
        (section.percent if section.percent is not None else _percent(environment)) / 100,
        section.follow_per_s,
        queue,
        min(queue, _count(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)),
        _count(environment, "OTEL_BSP_SCHEDULE_DELAY", 1000) / 1000,
    )


def _percent(environment: Mapping[str, str]) -> float:
    """The percentage in the standard sampler's variables; `follow_per_s` decides whether callers are followed."""
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    match sampler:
        case "":
            return _DEFAULT_PERCENT
        case "always_on":
            return 100.0
        case "always_off":
            return 0.0
        case "traceidratio":
            return 100 * _ratio(environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
    raise ConfigError(["tracing: OTEL_TRACES_SAMPLER names a sampler that is not here; set `percent`"])


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(["tracing: OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1; or set `percent`"])
    return ratio


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    if not (text := environment.get(name, "").strip()):
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= _MOST or len(text) > len(str(_MOST)):
        raise ConfigError([f"tracing: the variable {name} must be a whole number from 1 to {_MOST}"])
    return int(text)


FLUSH_S = 2.0
"""Seconds that a router waits at its end for the collector to take the last spans."""


class ActiveTracing:
    """`tracer` begins requests' traces; None while nothing is traced. Changes hold from the next request on; spans of
    requests that started earlier also go where the new settings send them.
    """

    def __init__(self, observer: SpanCounters, environment: Mapping[str, str] = os.environ) -> None:
        self.tracer: Tracer | None = None
        self._observer, self._environment = observer, environment
        self._settings: TracingSettings | None = None
        self._sender: SpanSender | None = None
        self._is_running = False

    def check(self, section: Section | None) -> TracingSettings | None:
        """The section's settings. Raises ConfigError."""
        return settings(section, self._environment)

    def configure(self, new: TracingSettings | None) -> None:
        """Traces with the settings `new` from the next request on; None: traces nothing."""
        if new == self._settings:
            return
        before, self._sender, self._settings = self._sender, None, new
        if new is None:
            self.tracer = None
        else:
            self._sender = self._new_sender(new)
            allowance = TokenBucket(new.follow_per_s, time.monotonic)
            self.tracer = Tracer(Sampler(new.share, allowance, lambda: getrandbits(64)), self._put)
            if self._is_running:
                self._sender.start()
        if before is not None and self._is_running:
            before.stop()

    def _new_sender(self, new: TracingSettings) -> SpanSender:
        def new_exporter() -> Exporter:
            # Imported here, in the sender's thread: a router that traces nothing does without OpenTelemetry.
            from app.telemetry.otel import OtlpExporter

            return OtlpExporter(new.endpoint)

        return SpanSender(new_exporter, self._observer, queue=new.queue, batch=new.batch, every_s=new.every_s)

    def _put(self, request: RequestSpan) -> None:
        if self._sender is not None:
            self._sender.put(request)
        else:  # tracing was switched off while the request ran
            self._observer.traces_sent(DROPPED, 1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends spans while the block runs. At its end the last ones are sent, for at most `FLUSH_S` seconds."""
        self._is_running = True
        if self._sender is not None:
            self._sender.start()
        try:
            yield
        finally:
            self._is_running = False
            if (sender := self._sender) is not None:
                sender.stop()
                await asyncio.to_thread(sender.join, FLUSH_S)
