"""The queues of copies: draws requests, skips or queues their copies, and sends them.

Everything except `_run` is synchronous and never raises: it runs at the end of clients' requests.

- Draws the units that are mirrored. Pure.
- Limits the tokens that copies may cost within a minute. Pure; times are seconds of any clock.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from app.config.endpoints import Mirror
from app.config.schema import Timeouts
from app.engine.collectors import StreamCollector
from app.engine.output import Usage, promised
from app.errors import UpstreamError
from app.exposures.exposure import Exposure
from app.exposures.log import ExposureLog
from app.exposures.wire import Failure, Flag, Skip
from app.mirror.copy import Copy, NewCollector, ShadowResult, cost_of, estimated_tokens, has_vectors
from app.mirror.original import ByteBudget, Original
from app.routing.resilience import Breaker, Fault
from app.telemetry.logs import event, where
from app.upstream.balancer import Placement
from app.upstream.client import Upstream, encoded
from app.upstream.target import Target


def is_drawn(unit: int, endpoint: str, percent: float) -> bool:
    """Whether the unit is among `percent` of the endpoint's. Raising `percent` keeps every unit already selected.

    The hash is another one than that of arms, so that both arms of a split are mirrored alike.
    """
    digest = hashlib.blake2b(endpoint.encode(), digest_size=8, key=unit.to_bytes(8), person=b"mirror").digest()
    return int.from_bytes(digest) < percent / 100 * 2**64


PERIOD_S = 60.0
_MEMORY = 0.9
"""The weight of earlier calls in the estimates' error, with each call that ends."""

_MOST_WRONG = 10.0
"""The largest factor by which an estimate is corrected."""


@dataclass(slots=True)
class Charge:
    """The cost of one copy: estimated first, then counted."""

    at: float
    estimate: float
    """The estimate before the correction."""
    tokens: float
    is_counted: bool = True
    """Whether it is in the window."""


class TokenBudget:
    """The tokens of the last minute: as estimated for running calls, as counted for the others.

    Estimates are corrected by the errors of the last ones: a shadow that generates more than the primary must not
    exceed its budget again and again.
    """

    def __init__(self) -> None:
        self._charges: deque[Charge] = deque()
        self._used = self._estimated = self._counted = 0.0

    def take(self, estimate: float, limit: int | None, now: float) -> Charge | None:
        """Charges a call; None if the minute would then cost more than `limit`."""
        if limit is None:
            return Charge(now, estimate, 0.0, is_counted=False)
        self._forget(now)
        tokens = estimate * self._correction
        if self._used + tokens > limit:
            return None
        charge = Charge(now, estimate, tokens)
        self._charges.append(charge)
        self._used += tokens
        return charge

    def settle(self, charge: Charge, tokens: float | None, now: float) -> None:
        """Replaces the estimate of a call that has ended by its `tokens`; None: unknown, the estimate remains."""
        if tokens is None:
            return
        if tokens and charge.estimate:
            self._estimated = _MEMORY * self._estimated + charge.estimate
            self._counted = _MEMORY * self._counted + tokens
        if charge.is_counted:
            self._used += tokens - charge.tokens
            charge.tokens = tokens
        elif tokens > charge.tokens > 0:  # it ran for longer than a minute: its cost beyond the estimate counts now
            self._charges.append(Charge(now, 0.0, tokens - charge.tokens))
            self._used += tokens - charge.tokens

    @property
    def _correction(self) -> float:
        if not self._estimated:
            return 1.0
        return min(max(self._counted / self._estimated, 1 / _MOST_WRONG), _MOST_WRONG)

    def _forget(self, now: float) -> None:
        while self._charges and self._charges[0].at <= now - PERIOD_S:
            charge = self._charges.popleft()
            charge.is_counted = False
            self._used -= charge.tokens
        if not self._charges:
            self._used = 0.0  # sums of floats drift


MOST_WAITING = 64
"""Copies that wait for one of a shadow's slots."""

BODY_BYTES, MOST_BODY_BYTES = 16 * 1024 * 1024, 256 * 1024
"""Bytes of all requests that wait or run, and of each."""

ANSWER_BYTES = 32 * 1024 * 1024
"""Bytes of all answers that are kept, primaries' and shadows'."""

_AT_ONCE_BYTES = 16 * 1024
"""Answers are compared in place up to this size: it takes less than a millisecond."""

_PROMPTS = ("prompt", "input")
_log = logging.getLogger("switchyard")

IsBlocked = Callable[[str, str], bool]
"""Whether a deployment of an endpoint is blocked (`exposures.wire.TrafficBlock`)."""


class MirrorCounters(Protocol):
    """The counters of the mirrors: `telemetry.metrics.Telemetry`."""

    def mirrored(self, endpoint: str, deployment: str, outcome: str) -> None: ...
    def mirror_queued(self, endpoint: str, deployment: str, waiting: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """The end of a request that was drawn. `deployment` answered; `complete`: the client has the whole answer.

    `target` and `timeouts` are the shadow's, `placement` decides on its replica; `bound`: the engine's request was made
    for the primary's model.
    """

    deployment: str
    complete: bool
    bound: bool
    target: Target
    timeouts: Timeouts
    new_collector: NewCollector
    usage: Usage | None
    placement: Placement | None = None


@dataclass(slots=True)
class _Lane:
    """The copies for one shadow of one endpoint."""

    endpoint: str
    deployment: str
    running: int = 0
    waiting: deque[tuple[Copy, Charge]] = field(default_factory=deque)
    budget: TokenBudget = field(default_factory=TokenBudget)
    breaker: Breaker = field(default_factory=Breaker)


class _Skipped(Exception):
    """The request is not copied."""

    def __init__(self, reason: Skip) -> None:
        self.reason = reason


class Mirrors:
    """All mirrors of a router process. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        upstream: Upstream,
        ledger: ExposureLog,
        observer: MirrorCounters,
        *,
        is_blocked: IsBlocked,
        clock: Callable[[], float] = time.monotonic,
        body_bytes: int = BODY_BYTES,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """`upstream`: the mirrors' separate connections. `body_bytes`, `answer_bytes`: the memory of all copies."""
        self._upstream, self._ledger, self._observer = upstream, ledger, observer
        self.is_blocked, self._clock = is_blocked, clock
        self.bodies, self.answers = ByteBudget(body_bytes), ByteBudget(answer_bytes)
        self.lanes: dict[tuple[str, str], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends copies while the block runs. Those that wait or run at its end are dropped: no client needs them."""
        async with self._upstream:
            thread = self._thread = ThreadPoolExecutor(1, "mirror")
            try:
                yield
            finally:
                self._thread = None
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                for lane in self.lanes.values():
                    while lane.waiting:
                        self._drop(lane, *lane.waiting.popleft(), Skip.SHUTDOWN)
                thread.shutdown(wait=False, cancel_futures=True)

    def draw(self, endpoint: str, mirror: Mirror, exposure: Exposure, size: int) -> Original | None:
        """Draws a request: its recorder if it is to be mirrored, else None. `size`: the body's, in bytes."""
        if not is_drawn(self._ledger.unit_of(exposure), endpoint, mirror.percent):
            return None
        return Original(endpoint, mirror, exposure, size, self.answers)

    def ended(self, original: Original, request: ServedRequest) -> None:
        """Copies a request whose client has been served and whose exposure has ended, or counts the reason why not."""
        shadow = original.mirror.deployment
        try:
            if request.deployment == shadow:  # it would be compared with itself
                original.kept.forget()
                return
            try:
                self._enqueue(original, request)
            except _Skipped as skipped:
                original.kept.forget()
                self._skip(original, request.deployment, skipped.reason)
        except Exception as error:  # noqa: BLE001  a bug here must not reach the request
            original.kept.forget()
            _report(error)

    def _enqueue(self, original: Original, request: ServedRequest) -> None:
        """Raises _Skipped."""
        lane = self._lane(original)
        original.exposure.conclude()
        self._check(original, request)
        self._check_shadow(original, lane)
        if original.size > MOST_BODY_BYTES:
            raise _Skipped(Skip.REQUEST_TOO_LARGE)
        if not original.kept.is_whole and original.kept.has_room and not has_vectors(original.path):
            raise _Skipped(Skip.ANSWER_TOO_LARGE)
        if not original.kept.has_room or len(lane.waiting) >= MOST_WAITING:
            raise _Skipped(Skip.QUEUE_FULL)
        collector = request.new_collector()
        body = _body(original, request, collector)
        if not self.bodies.take(len(body)):
            raise _Skipped(Skip.QUEUE_FULL)
        cost, limit = estimated_tokens(original, request.usage), original.mirror.tokens_per_minute
        if (charge := lane.budget.take(cost, limit, self._clock())) is None:
            self.bodies.give_back(len(body))
            raise _Skipped(Skip.BUDGET)
        promise, primary = promised(original.body), request.deployment
        copy = Copy(
            original,
            primary,
            request.target,
            request.timeouts,
            body,
            collector,
            promise,
            request.usage,
            request.placement,
        )
        original.forget_request()
        lane.waiting.append((copy, charge))
        self._start(lane)

    def _check(self, original: Original, request: ServedRequest) -> None:
        """Raises _Skipped if the request cannot be copied."""
        if self._thread is None:
            raise _Skipped(Skip.SHUTDOWN)
        if not request.complete or not request.deployment or original.exposure.is_broken:
            raise _Skipped(Skip.PRIMARY_FAILED)
        if original.takes_several or not original.path:
            raise _Skipped(Skip.SEVERAL_REQUESTS)
        if request.bound or any(_has_tokens(original.body.get(name)) for name in _PROMPTS):
            raise _Skipped(Skip.BOUND_TO_MODEL)
        if self._ledger.identity_of(original.exposure).flags & Flag.CARRIED:
            raise _Skipped(Skip.CARRIED)

    def _check_shadow(self, original: Original, lane: _Lane) -> None:
        if self.is_blocked(original.endpoint, original.mirror.deployment):
            raise _Skipped(Skip.STOPPED)
        if lane.breaker.is_open and not lane.breaker.wants_check(self._clock()):
            raise _Skipped(Skip.BREAKER_OPEN)

    def _start(self, lane: _Lane) -> None:
        """Sends waiting copies while there are slots."""
        while lane.waiting and lane.running < lane.waiting[0][0].original.mirror.max_concurrent:
            copy, charge = lane.waiting.popleft()
            try:
                self._check_shadow(copy.original, lane)
            except _Skipped as skipped:
                self._drop(lane, copy, charge, skipped.reason)
                continue
            lane.running += 1
            lane.breaker.checking = is_trial = lane.breaker.is_open
            task = asyncio.create_task(self._run(lane, copy, charge, is_trial=is_trial))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, lane, copy, is_trial))
        self._observer.mirror_queued(lane.endpoint, lane.deployment, len(lane.waiting))

    async def _run(self, lane: _Lane, copy: Copy, charge: Charge, *, is_trial: bool) -> None:
        """Sends one copy, compares the answers and records the numbers."""
        original, result = copy.original, None
        try:
            request_id = f"{original.exposure.arrival.request_id}-{os.urandom(4).hex()}"
            result = await copy.send(self._upstream, self.answers, request_id)
            lane.budget.settle(charge, cost_of(result), self._clock())
            if result.kept.has_room:
                values = await self._compared(copy, result)
                self._judge(lane, result, values, is_trial=is_trial)
                self._record(copy, values, result)
            else:
                self._skip(original, copy.primary, Skip.QUEUE_FULL)
        except Exception as error:  # noqa: BLE001  a bug with one copy must not end the others
            _report(error)
            self._count(original, "failed")
        finally:
            if result is not None:
                result.kept.forget()

    def _ended(self, lane: _Lane, copy: Copy, is_trial: bool, task: asyncio.Task[None]) -> None:
        """Cleans up after a task. Not a part of the task, which never runs if it is cancelled before its start."""
        self._tasks.discard(task)
        lane.running -= 1
        lane.breaker.checking &= not is_trial
        if task.cancelled():
            self._skip(copy.original, copy.primary, Skip.SHUTDOWN)
        self._forget(copy)
        if self._thread is not None:
            self._start(lane)

    async def _compared(self, copy: Copy, result: ShadowResult) -> Mapping[str, Any]:
        if len(copy.original.kept.head) + len(result.kept.head) <= _AT_ONCE_BYTES:
            return copy.compare(result)
        return await asyncio.get_running_loop().run_in_executor(self._thread, copy.compare, result)

    def _judge(self, lane: _Lane, result: ShadowResult, values: Mapping[str, Any], *, is_trial: bool) -> None:
        """Opens or closes the shadow's breaker. It concerns no client, so that every fault counts."""
        error, now, breaker = result.error, self._clock(), lane.breaker
        faulty = values["error"] != Failure.NONE
        if error is not None:  # being busy or rejecting a request is not a fault
            faulty = isinstance(error, UpstreamError) and error.is_fault
        if is_trial:
            breaker.checked(not faulty, now)
        elif faulty:
            breaker.failed(Fault.CONNECTION, now)
        else:
            breaker.succeeded()

    def _record(self, copy: Copy, values: Mapping[str, Any], result: ShadowResult) -> None:
        usage = result.usage
        tokens = usage.prompt_tokens + usage.completion_tokens if usage is not None else None
        pair = {"tokens": tokens, **values}
        self._ledger.pair(copy.original.exposure, copy.primary, copy.original.mirror.deployment, pair)
        self._count(copy.original, "failed" if values["error"] != Failure.NONE else "compared")

    def _drop(self, lane: _Lane, copy: Copy, charge: Charge, reason: Skip) -> None:
        lane.budget.settle(charge, 0.0, self._clock())
        self._skip(copy.original, copy.primary, reason)
        self._forget(copy)

    def _forget(self, copy: Copy) -> None:
        self.bodies.give_back(len(copy.body))
        copy.original.kept.forget()

    def _skip(self, original: Original, primary: str, reason: Skip) -> None:
        primary = primary or original.exposure.arrival.assigned
        self._ledger.pair(original.exposure, primary, original.mirror.deployment, {"skipped": reason.value})
        self._count(original, f"skipped_{reason.name.lower()}")

    def _count(self, original: Original, outcome: str) -> None:
        self._observer.mirrored(original.endpoint, original.mirror.deployment, outcome)

    def _lane(self, original: Original) -> _Lane:
        key = original.endpoint, original.mirror.deployment
        if (lane := self.lanes.get(key)) is None:
            lane = self.lanes[key] = _Lane(*key)
        return lane


def _body(original: Original, request: ServedRequest, collector: StreamCollector | None) -> bytes:
    """The body to send. Raises _Skipped."""
    body = encoded(collector.request if collector is not None else original.body, request.target)
    if len(body) > MOST_BODY_BYTES:
        raise _Skipped(Skip.REQUEST_TOO_LARGE)
    return body


def _has_tokens(prompt: object) -> bool:
    """Whether a prompt, or the first of several, consists of token ids, which another model may read differently."""
    while isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    return isinstance(prompt, int)


def _report(error: Exception) -> None:
    _log.error("A request could not be mirrored", extra=event("mirror_failed", traceback=where(error)))
