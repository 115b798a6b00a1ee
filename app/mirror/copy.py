"""One copy for a shadow: the call, and the comparison with the primary's answer."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from app.config.schema import Timeouts
from app.engine.answers import JSON, checked_answer
from app.engine.collectors import StreamCollector
from app.engine.errors import ENDED_EARLY
from app.engine.output import Promise, Usage, find_usage
from app.errors import (
    Broken,
    Incomplete,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from app.exposures.exposure import Exposure, failure_of
from app.exposures.wire import Failure, FinishCode
from app.limits.limiter import estimate
from app.mirror.comparison import MeasuredAnswer, Values, compare, compare_vectors
from app.mirror.original import AnswerBuffer, ByteBudget, Original
from app.upstream.balancer import Placement
from app.upstream.client import Upstream
from app.upstream.target import Target

MOST_BYTES = 2 * 1024 * 1024
"""Bytes of a shadow's answer; a longer one is aborted."""

_MOST_VECTOR_BYTES = 256 * 1024
"""Bytes that are kept of an answer with vectors. It may have `_GROWTH` times the primary's, and `MOST_BYTES`."""

_GROWTH = 4
_BYTES_PER_TOKEN = 4
_EVENT_BYTES = 200
"""Bytes of a stream, for each token."""

_OF_NUMBERS = frozenset({"/v1/embeddings", "/v1/rerank", "/score", "/classify", "/pooling"})
_TOO_LONG = "The shadow's answer is too long"
FAILED_LATE = "The shadow failed in the middle of its answer"

NewCollector = Callable[[], StreamCollector | None]
"""Makes the collector of a whole answer from a stream; None if the engine sends it whole."""


def has_vectors(path: str) -> bool:
    """Whether answers of this route of the engine are vectors, not text."""
    return path in _OF_NUMBERS


class ShadowResult(NamedTuple):
    """The outcome of a shadow's call. Without an `error` it answered."""

    watch: Exposure
    """The measurements, as those of the primary."""
    kept: AnswerBuffer
    duration_s: float
    error: SwitchyardError | None

    @property
    def usage(self) -> Usage | None:
        """The tokens, as the engine counted them."""
        return find_usage(self.kept.tail)


@dataclass(slots=True)
class Copy:
    """A copy that is sent and compared. Of the request, only the `body` that is sent is kept.

    `collector`: collects the whole answer from a stream, if the primary's was collected.
    """

    original: Original
    primary: str
    target: Target
    timeouts: Timeouts
    body: bytes
    collector: StreamCollector | None
    promise: Promise | None
    usage: Usage | None
    """The bytes kept of the primary's answer."""
    placement: Placement | None = None
    """Decides on the shadow's replica."""

    @property
    def has_vectors(self) -> bool:
        return has_vectors(self.original.path)

    async def send(self, upstream: Upstream, room: ByteBudget, request_id: str) -> ShadowResult:
        """Calls the shadow. Raises nothing but CancelledError."""
        loop, original = asyncio.get_running_loop(), self.original
        arrival = msgspec.structs.replace(original.exposure.arrival, started=time.perf_counter())
        watch = Exposure(original.exposure.scope, arrival, 0, 0)
        watch.sent(original.path, {})
        longest = MOST_BYTES + (_GROWTH * original.kept.total if self.has_vectors else 0)
        kept = AnswerBuffer(_MOST_VECTOR_BYTES if self.has_vectors else MOST_BYTES, room)
        began = last = loop.time()
        deadline = began + self.timeouts.total_s
        error: SwitchyardError | None = None
        try:
            async with asyncio.timeout_at(deadline) as limit:
                opened = upstream.stream(
                    self.target,
                    original.path,
                    self.body,
                    request_id=request_id,
                    timeouts=self.timeouts,
                    placement=self.placement,
                )
                with closing(opened) as chunks:
                    await chunks.begin(events=original.is_stream or self.collector is not None)
                    async for chunk in chunks:
                        last = loop.time()
                        kept.add(chunk)
                        if original.is_stream:
                            watch.chunk(last, chunk)
                        if kept.total > longest:
                            raise Incomplete(_TOO_LONG)
                        limit.reschedule(min(deadline, last + self.timeouts.idle_s))
        except asyncio.CancelledError:
            kept.forget()
            raise
        except TimeoutError:
            error = TimedOut("The shadow did not respond in time")
        except SwitchyardError as raised:
            error = raised
        if original.is_stream:
            watch.stream_ended(arrival.assigned, last, in_order=error is None)
            watch.conclude()
        return ShadowResult(watch, kept, last - began, error)

    def compare(self, result: ShadowResult) -> Values:
        """The fields of the pair. Pure; for long answers in a thread. A malformed answer becomes a failure."""
        try:
            answer = self._answer(result)
        except SwitchyardError as error:
            return failed(error)
        primary, shadow = self._primary(), self._shadow(result, answer)
        if self.has_vectors:
            compared = compare_vectors(primary, shadow)
        else:
            if shadow.finish is FinishCode.NONE and primary.finish is not FinishCode.NONE:
                return failed(Incomplete(ENDED_EARLY), status=200)
            compared = compare(primary, shadow, self.promise)
        return {"status": 200, "error": Failure.NONE.value, **compared}

    def _answer(self, result: ShadowResult) -> bytes:
        """The shadow's answer, collected if the primary's was. Raises its failure."""
        if result.error is not None:
            raise result.error
        answer, watch = bytes(result.kept.head), result.watch
        if self.original.is_stream:
            if watch.is_broken:
                raise Broken(FAILED_LATE)
            return answer
        if self.collector is not None:
            self.collector.feed(answer)
            answer = checked_answer(self.original.path, self.collector.complete(), JSON)
        elif not result.kept.tail.rstrip().endswith(b"}"):
            raise Incomplete(ENDED_EARLY)
        elif result.kept.is_whole:
            answer = checked_answer(self.original.path, answer, JSON)
        watch.answer(answer)
        return answer

    def _primary(self) -> MeasuredAnswer:
        original, seen = self.original, self.original.exposure
        answer, rate = bytes(original.kept.head), _rate(seen, self.usage)
        return MeasuredAnswer(
            answer,
            original.is_stream,
            FinishCode(seen.finish),
            seen.is_visible,
            original.ttft_s,
            original.duration_s,
            rate,
        )

    def _shadow(self, result: ShadowResult, answer: bytes) -> MeasuredAnswer:
        seen, rate = result.watch, _rate(result.watch, result.usage)
        ttft_s, stream = seen.first_token, self.original.is_stream
        return MeasuredAnswer(answer, stream, FinishCode(seen.finish), seen.is_visible, ttft_s, result.duration_s, rate)


def estimated_tokens(original: Original, usage: Usage | None) -> float:
    """The tokens that the shadow's call will cost if it answers as the primary did."""
    if usage is not None:
        return usage.prompt_tokens + usage.completion_tokens
    per_token = _EVENT_BYTES if original.is_stream else _BYTES_PER_TOKEN
    answer = 0 if has_vectors(original.path) else original.kept.total / per_token
    return estimate(original.body) + answer


def failed(error: SwitchyardError, *, status: int | None = None) -> Values:
    """The fields of a pair whose shadow did not answer. `status` is the error's own by default."""
    failure = failure_of(error)
    if status is None:
        status = 0 if isinstance(error, Unreachable | TimedOut | Incomplete) else error.status
    return {"status": status, "error": (failure if failure is not Failure.NONE else Failure.OTHER).value}


def cost_of(result: ShadowResult) -> float | None:
    """The tokens of a call that has ended, as far as they are known."""
    if (usage := result.usage) is not None:
        return usage.prompt_tokens + usage.completion_tokens
    # Nothing was generated.
    return 0.0 if isinstance(result.error, Unavailable | Rejected) else None


def _rate(watch: Exposure, usage: Usage | None) -> float | None:
    """Tokens per second of a stream, after the first token."""
    if watch.first_token is None:
        return None
    between = watch.itl_mean(usage.completion_tokens if usage is not None else None)
    return 1 / between if between else None
