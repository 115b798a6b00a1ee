"""The queue of requests whose spans are to be sent, and the thread that sends them.

The event loop only appends to the queue. Requests that do not fit are dropped and counted: an unreachable collector
delays no request, and costs no memory beyond the queue's.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from app.telemetry.logs import event, where
from app.telemetry.tracing.request import RequestSpan

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


class Observer(Protocol):
    """Counts the outcomes of requests' spans: `telemetry.metrics.Telemetry`."""

    def traces_sent(self, outcome: str, requests: int) -> None: ...


class SpanSender:
    """Sends what is `put`, from `start` to `stop`. `new_exporter` is called in the thread.

    At most `queue` requests wait; they are sent every `every_s` seconds, `batch` at a time, sooner if `batch` wait.
    """

    def __init__(
        self, new_exporter: Callable[[], Exporter], observer: Observer, *, queue: int, batch: int, every_s: float
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
            _log.warning("The collector does not take spans", extra=event("spans_not_sent", problem=problem))
        elif problem is None and not self._is_taken:
            _log.warning("The collector takes spans again", extra=event("spans_sent_again"))
        self._is_taken = problem is None
        return self._is_taken
