"""One request's trace: the context for deployments, and the notes on the request if it is sampled.

The notes are times, names of the configuration, and one word of the answer. Times are in seconds of
`time.perf_counter`.
"""

import time
from collections import deque
from collections.abc import Callable
from random import getrandbits
from typing import Final

from app.engine.output import find_finish
from app.telemetry.access_log import Record
from app.telemetry.tracing.w3c import Remote, headers_of

_LAST_CHUNKS: Final = 4
"""Last chunks of a stream that are kept: finish reason, usage and end may come in a chunk each."""


class Call:
    """One call of a deployment. `error`: a kind of `app.errors`, "" without one."""

    __slots__ = ("deployment", "ended", "error", "span_id", "started", "url")

    def __init__(self, span_id: int, deployment: str, url: str) -> None:
        self.span_id, self.deployment, self.url = span_id, deployment, url
        self.started = time.perf_counter()
        self.ended = self.started
        self.error = ""

    def end(self) -> None:
        """Ends the call."""
        self.ended = time.perf_counter()


class RequestSpan:
    """The notes on a sampled request.

    `parent` is the caller's span, None if the trace begins here. `task` is empty until the request is parsed, and for
    requests that no model works on. `finish` is the engine's word for why the answer ended.
    """

    __slots__ = (
        "_last",
        "calls",
        "ended",
        "finish",
        "method",
        "parent",
        "plan",
        "queued",
        "record",
        "route",
        "task",
        "trace",
    )

    def __init__(self, trace: "Trace", record: Record, parent: Remote | None) -> None:
        self.trace, self.record, self.parent = trace, record, parent
        self.task = self.method = self.route = self.plan = ""
        self.finish: str | None = None
        self.queued: float | None = None
        self.ended = record.started
        self.calls: list[Call] = []
        self._last: deque[bytes] = deque(maxlen=_LAST_CHUNKS)

    def calling(self, deployment: str, url: str) -> Call:
        """Notes a call of the deployment."""
        call = Call(getrandbits(64) or 1, deployment, url)
        self.calls.append(call)
        return call

    def chunk(self, chunk: bytes) -> None:
        """Notes a chunk of the engine's stream."""
        self._last.append(chunk)

    def stream_ended(self) -> None:
        """Finds the finish reason, at the end of the stream's chunks."""
        self.finish = find_finish(b"".join(self._last))

    def answered(self, answer: bytes) -> None:
        """Notes the engine's whole answer."""
        self.finish = find_finish(answer)


class Trace:
    """A request's place in a trace. `span` is None if it is not sampled here; deployments still get the context, so
    that their own spans follow the same decision."""

    __slots__ = ("_send", "flags", "span", "span_id", "state", "trace_id")

    def __init__(
        self, trace_id: int, span_id: int, flags: int, state: str, send: Callable[[RequestSpan], None] | None = None
    ) -> None:
        """`send` is called with the span when the request is over."""
        self.trace_id, self.span_id, self.flags, self.state, self._send = trace_id, span_id, flags, state, send
        self.span: RequestSpan | None = None

    def headers(self) -> dict[str, str]:
        """The trace headers for the deployment that is called now."""
        span = self.span
        parent = span.calls[-1].span_id if span is not None and span.calls else self.span_id
        return headers_of(self.trace_id, parent, self.flags, self.state)

    def queued(self, task: str) -> None:
        """Records that the request is parsed; limits and the queue come next. `task`: "" if it uses no model."""
        if self.span is not None:
            self.span.task, self.span.queued = task, time.perf_counter()

    def end(self, method: str, route: str, plan: str) -> None:
        """Ends the trace. `route`: the path's pattern; `plan`: the id of the endpoint's plan, or ""."""
        if self.span is not None and self._send is not None:
            span = self.span
            span.method, span.route, span.plan, span.ended = method, route, plan, time.perf_counter()
            self._send(span)
