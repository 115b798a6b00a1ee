"""One request's trace: the context for deployments, and the notes on the request if it is sampled.

The notes are times, names of the configuration, and one word of the answer. Times are in seconds of
`time.perf_counter`.

Trace contexts in headers. Contract: W3C Trace Context, https://www.w3.org/TR/trace-context/.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Final, NamedTuple

from app.engine.output import find_finish
from app.telemetry.logs import Record

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

SAMPLED = 0x01
RANDOM = 0x02
"""Level 2: the trace id is random."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MOST_STATE = 512
"""Characters of a `tracestate` that must be passed on; a longer one is left out."""

_MOST_MEMBERS = 32
_KEY = r"[a-z0-9][a-z0-9_\-*/@]{0,255}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"{_KEY}={_VALUE}")


class Remote(NamedTuple):
    """A caller's span. `state` is its `tracestate`, "" without one."""

    trace_id: int
    span_id: int
    flags: int
    state: str

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)


def remote(headers: Mapping[str, str]) -> Remote | None:
    """The caller's span; None if the headers (lower-case names) have no valid `traceparent`."""
    if (parent := headers.get(TRACEPARENT)) is None:
        return None
    if (match := _PARENT.fullmatch(parent)) is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    # A later version may have more after the flags; what comes before them stays as it is.
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not (trace := int(trace_id, 16)) or not (span := int(span_id, 16)):
        return None
    return Remote(trace, span, int(flags, 16) & (SAMPLED | RANDOM), _state(headers.get(TRACESTATE, "")))


def _state(text: str) -> str:
    """The `tracestate`, "" if it is malformed: the trace is continued without it."""
    if not text or len(text) > _MOST_STATE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    if len(members) > _MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return ",".join(members)


def headers_of(trace_id: int, span_id: int, flags: int, state: str = "") -> dict[str, str]:
    """The headers that make a server's spans children of this one."""
    parent = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    return {TRACEPARENT: parent, TRACESTATE: state} if state else {TRACEPARENT: parent}


_LAST_CHUNKS: Final = 4
"""Last chunks of a stream that are kept: finish reason, usage and end may come in a chunk each."""


class TracedCall:
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
        self.calls: list[TracedCall] = []
        self._last: deque[bytes] = deque(maxlen=_LAST_CHUNKS)

    def calling(self, deployment: str, url: str) -> TracedCall:
        """Notes a call of the deployment."""
        call = TracedCall(getrandbits(64) or 1, deployment, url)
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


class _NoTrace(Trace):
    __slots__ = ()

    def headers(self) -> dict[str, str]:
        return {}


NO_TRACE: Final[Trace] = _NoTrace(0, 0, 0, "")
"""The trace of a request that is in none: deployments get no context."""
