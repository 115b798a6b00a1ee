"""One request of a recorded endpoint, from the draw of its arm to its end, as the router sees it.

The exchange calls it for every step; `chunk` is on the hot path of every stream. It keeps no text beyond the request's
end: of an answer, only what the patterns of `engine.output` find is recorded.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.engine.errors import error_in
from app.engine.output import OutputPatterns, Promise, find_finish, find_id, output_patterns, promised
from app.errors import (
    Broken,
    DeadlinePassed,
    Incomplete,
    SwitchyardError,
    TimedOut,
    Unavailable,
    Unreachable,
    UpstreamError,
)
from app.exposures.identity import request_hash
from app.exposures.plans import NEVER, RecordingScope
from app.exposures.wire import Failure, FinishCode, LateKind
from app.internal_api import REPLICA_AGE_HEADER

COLD_S = 60.0
"""The age below which a replica is cold: its caches are empty."""

MOST_CHECKED = 64 * 1024
"""The size above which an answer is not checked for its promised form."""

_LAST_CHUNKS = 4
"""Chunks kept at a stream's end: the finish reason, the usage and the end may come in a chunk each."""

_MOST_CHUNKS = 32
"""Chunks kept before the list is cut: to cut it at every chunk would cost more than all the rest."""

_FAILURES: tuple[tuple[type[SwitchyardError], Failure], ...] = (
    (Unreachable, Failure.UNREACHABLE),
    (Unavailable, Failure.UNAVAILABLE),
    (TimedOut, Failure.TIMEOUT),
    (Incomplete, Failure.INCOMPLETE),
    (Broken, Failure.BROKEN),
    (UpstreamError, Failure.OTHER),
)
"""The failure that each error means, the most specific error first."""


def failure_of(error: SwitchyardError) -> Failure:
    """The failure that an error means for the deployment; NONE for a client's."""
    return next((failure for kind, failure in _FAILURES if isinstance(error, kind)), Failure.NONE)


_FINISHES: Mapping[str, int] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence"), FinishCode.STOP.value),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), FinishCode.LENGTH.value),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), FinishCode.TOOL_CALLS.value),
    **dict.fromkeys(("content_filter", "refusal"), FinishCode.CONTENT_FILTER.value),
    **dict.fromkeys(("abort", "error", "cancelled"), FinishCode.ABORT.value),
}
"""The engine's finish reasons: plain numbers, since those of enumerations are slow."""

_NO_FAILURE, _NO_FINISH = Failure.NONE.value, FinishCode.NONE.value


class Arrival(msgspec.Struct, frozen=True, eq=False):
    """A request whose arm has been drawn.

    `key` is its sticky key, None: the request is its own unit. `reason` is a `routing.traffic.Reason`. `caller` is the
    id of the caller, `group` its group, "" if it is in none. `body` is the request in vLLM's fields. `started` is the
    arrival in seconds of `time.perf_counter`.
    """

    request_id: str
    key: str | None
    caller: str
    assigned: str
    reason: str
    dialect: str
    task: str
    stream: bool
    prompt_bytes: int
    body: Mapping[str, Any]
    started: float
    group: str = ""
    is_shared: bool = False
    """Whether there are other callers."""
    patience_s: float | None = None
    """How long the client waits, if less long than the configuration."""


class ArrivalRecord(msgspec.Struct, frozen=True, eq=False):
    """The record of an arrival, without names; as in `wire.Row`."""

    at: float
    request: int
    unit: int
    caller: int
    reason: int
    turn: int
    flags: int


@dataclass(slots=True, eq=False)
class Exposure:
    """The observations of one request. Times are in seconds.

    `due` is the age at which the request is late next. `served` is the deployment that answered, "" while none has.
    `kept` is the answer so far, of a request with a `promise` about its form; None if it is too long to be checked.
    `identity` is computed later, for many at once.
    """

    scope: RecordingScope
    arrival: Arrival
    seq: int
    in_flight: int
    due: float = NEVER
    identity: ArrivalRecord | None = None
    served: str = ""
    answer_id: int = 0
    failure: int = _NO_FAILURE
    finish: int = _NO_FINISH
    first_token: float | None = None
    itl_max: float = 0.0
    is_cold: bool = False
    is_visible: bool = False
    is_broken: bool = False
    gave_up: bool = False
    """Its client's own time was over."""
    path: str = ""
    promise: Promise | None = None
    kept: bytearray | None = None
    _patterns: OutputPatterns | None = None
    _steady: bool = False
    _head: bytes = b""
    _tail: list[bytes] = field(default_factory=list)
    _streamed_by: str = ""
    _first: float = 0.0
    _last: float = 0.0
    _chunks: int = 0
    _slow: int = 0
    _unfinished: int = 0

    def sent(self, path: str, body: Mapping[str, Any]) -> None:
        """Records that the main request is sent to the engine."""
        self.path = path
        self._patterns = output_patterns(path, stream=self.arrival.stream)
        self.promise = promised(body)
        self.kept = bytearray() if self.promise is not None else None

    def head(self, headers: Mapping[str, str]) -> None:
        """The deployment's response headers."""
        if (age := headers.get(REPLICA_AGE_HEADER)) is not None:
            try:
                self.is_cold = float(age) < COLD_S
            except ValueError:
                self.is_cold = False

    def chunk(self, now: float, chunk: bytes) -> None:
        """Records that a chunk of the engine's stream has been passed on. `now` is on the event loop's clock."""
        if self._steady:
            gap = now - self._last
            if gap > self.itl_max:
                self.itl_max = gap
            self._last = now
            self._chunks += 1
            tail = self._tail
            tail.append(chunk)
            if len(tail) > _MOST_CHUNKS:
                del tail[:-_LAST_CHUNKS]
        else:
            self._begin(now, chunk)

    def _begin(self, now: float, chunk: bytes) -> None:
        """Inspects a chunk, before there is visible output, and for streams that are checked."""
        tail, patterns, is_visible = self._tail, self._patterns, self.is_visible
        if not tail:
            self._head = chunk
        tail.append(chunk)
        if len(tail) > _MOST_CHUNKS:
            del tail[:-_LAST_CHUNKS]
        if self.kept is not None:
            self._keep(chunk)
        if not is_visible:
            self.is_visible = is_visible = patterns is None or patterns.is_visible(chunk)
        if self.first_token is not None:
            self.itl_max = max(self.itl_max, now - self._last)
            self._chunks += 1
        elif is_visible or patterns is None or patterns.token.search(chunk):
            self.first_token = time.perf_counter() - self.arrival.started
            self._first, self._chunks = now, 1
        self._last = now
        self._steady = is_visible and self.kept is None

    def stream_ended(self, name: str, now: float, *, in_order: bool) -> None:
        """Records that the stream of deployment `name` is over; if it broke, the silence before counts as a gap."""
        if not in_order and self.first_token is not None:
            self.itl_max = max(self.itl_max, now - self._last)
        self._streamed_by = name

    def conclude(self) -> None:
        """Inspects the kept chunks of a stream, once, after its end."""
        if not self._head:
            return
        self._identify(self._head)
        end = b"".join(self._tail[-_LAST_CHUNKS:])
        self._head, self._tail = b"", []
        self._finish(end)
        if (error := error_in(end)) is not None:
            self.is_broken = True
            self.failed(self._streamed_by, error)

    def answer(self, answer: bytes) -> None:
        """The engine's whole answer."""
        self._identify(answer)
        self._finish(answer)
        self.is_visible = self._patterns is None or self._patterns.is_visible(answer)
        if self.kept is not None:
            self._keep(answer)

    def failed(self, name: str, error: SwitchyardError) -> None:
        """Records that an attempt at deployment `name` failed. Only the assigned one's failure counts, its first."""
        if name == self.arrival.assigned and self.failure == _NO_FAILURE:
            self.failure = failure_of(error).value
            self.gave_up = self.arrival.patience_s is not None and isinstance(error, DeadlinePassed)

    def diverted(self) -> None:
        """Records that another deployment is called: the assigned one has failed, or its circuit breaker is open."""
        if self.failure == _NO_FAILURE:
            self.failure = Failure.UNAVAILABLE.value

    def itl_mean(self, tokens: int | None) -> float | None:
        """The mean time between tokens of a stream; between chunks if the engine did not count the tokens."""
        count = self._chunks if tokens is None else tokens
        return (self._last - self._first) / (count - 1) if count > 1 and self._chunks > 1 else None

    def late(self, age: float) -> Iterator[tuple[LateKind, float]]:
        """The limits that the request has passed at `age` and that were not reported before."""
        scope, stream = self.scope, self.arrival.stream
        slow = scope.slow if stream else scope.answers
        while self._slow < len(slow) and age > (limit := slow[self._slow]):
            self._slow += 1
            if not stream:
                yield LateKind.SLOW_ANSWER, limit
            elif self.first_token is None or self.first_token > limit:
                yield LateKind.SLOW, limit
        while self._unfinished < len(scope.unfinished) and age > (limit := scope.unfinished[self._unfinished]):
            self._unfinished += 1
            yield LateKind.UNFINISHED, limit
        self.due = min((*slow[self._slow :], *scope.unfinished[self._unfinished :]), default=NEVER)

    def _identify(self, answer: bytes) -> None:
        if (id := find_id(answer)) is not None:
            self.answer_id = request_hash(id)

    def _finish(self, payload: bytes) -> None:
        if self._patterns is not None and (word := find_finish(payload)) is not None:
            self.finish = _FINISHES.get(word, _NO_FINISH)

    def _keep(self, data: bytes) -> None:
        assert self.kept is not None
        self.kept += data
        if len(self.kept) > MOST_CHECKED:
            self.kept = self.promise = None
