"""Reserves all of a caller's limits atomically before a request runs and settles actual usage afterwards.

A request waits for one round trip to the store (all reservations are made concurrently); its response waits for none:
the values of the rate-limit headers are read while the deployment works.

Estimates a request's tokens before the engine counts them. Pure.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from app.config.access import Limiting, Limits
from app.errors import DeadlinePassed, LimitExceeded, SwitchyardError, TooLarge, Unavailable
from app.limits.sliding_window import Window, duration
from app.limits.store import Store, StoreFailed
from app.telemetry.logs import event

_PAUSE_S = 1.0
"""Seconds for which a failed store is not called: otherwise every request would wait for it in turn."""

_log = logging.getLogger("switchyard")


class UsageSource(Protocol):
    """The part of a response that a reservation uses."""

    reservation: "Reservation | None"
    """Set by the reservation itself once it counts: the response carries its `headers`."""

    def tokens_used(self, prompt: int) -> int:
        """The tokens that the request has cost so far; `prompt` is the estimate for its prompt."""


class LimitObserver(Protocol):
    """Counts the limiter's decisions."""

    def limited(self, endpoint: str, limit: str) -> None:
        """Counts a request that was rejected because of a limit."""

    def limit_used(self, endpoint: str, limit: str, share: float) -> None:
        """Records the share of a limit's window that is used, the current request included: 1 is all of it."""

    def store_failed(self) -> None:
        """Counts a failure of the store."""


class LimitSubject(Protocol):
    """A caller, as far as limits are concerned."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def id(self) -> str:
        """Counts are kept under it."""

    @property
    def limits(self) -> Limits | None:
        """Its key's own."""


Kind = Literal["requests", "tokens", "concurrent"]

_TITLES: Mapping[Kind, str] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrent": "concurrent requests",
}


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit and the request's cost, under a key of the store."""

    kind: Kind
    key: str
    maximum: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit of a caller on an endpoint, and the rest of it. `used` and `remaining` are None while the store
    does not answer; `resets_in_s` is None for concurrent requests too: these have no window."""

    kind: Kind
    limit: int
    used: int | None = None
    remaining: int | None = None
    resets_in_s: float | None = None


class Limiter:
    """The limits of one configuration, counted in `store`. `clock` is in seconds."""

    def __init__(self, limiting: Limiting, store: Store, observer: LimitObserver, clock: Callable[[], float]) -> None:
        self.limiting, self.store = limiting, store
        self._observer, self._clock = observer, clock
        self._down_until = float("-inf")

    def admit(
        self, subject: LimitSubject, endpoint: str, tokens: Callable[[], int], usage: UsageSource
    ) -> "Reservation":
        """The context in which the request runs; `tokens` estimates its prompt.

        Entering it raises LimitExceeded; TooLarge if the prompt alone exceeds the limit, so that waiting does not help;
        Unavailable if the store does not answer and the configuration rejects requests then.
        """
        applicable = self._applicable(subject, endpoint, tokens)
        return Reservation(self, _who(subject, endpoint), endpoint, applicable, usage)

    def counts_requests(self, subject: LimitSubject, endpoint: str) -> bool:
        """Whether a limit on requests applies."""
        return self._requests(subject, endpoint) is not None

    async def check(self, subject: LimitSubject, endpoint: str, usage: UsageSource) -> None:
        """Raises LimitExceeded if the caller has no request left on the endpoint. Counts nothing."""
        if (limit := self._requests(subject, endpoint)) is None or self.is_down:
            return
        with self.failures_recorded():
            window = await self.store.window(limit.key)
            if window.used + limit.cost > limit.maximum:
                await self._refuse(subject, endpoint, limit, usage)

    async def count_invalid(self, subject: LimitSubject, endpoint: str, usage: UsageSource) -> None:
        """Counts a request that is not admitted, because it is invalid. Raises LimitExceeded if it is one too many."""
        if (limit := self._requests(subject, endpoint)) is None or self.is_down:
            return
        with self.failures_recorded():
            if not await self.store.take(limit.key, limit.maximum, limit.cost):
                await self._refuse(subject, endpoint, limit, usage)

    def _requests(self, subject: LimitSubject, endpoint: str) -> _Limit | None:
        maximum = self.limiting.limits_for(subject.name, endpoint, subject.limits).requests_per_minute
        return None if maximum is None else _Limit("requests", _requests_key(subject, endpoint), maximum)

    async def _refuse(self, subject: LimitSubject, endpoint: str, limit: _Limit, usage: UsageSource) -> None:
        applicable = self._applicable(subject, endpoint, lambda: 0)
        self.rejected(endpoint, [limit])
        raise await Reservation(self, _who(subject, endpoint), endpoint, applicable, usage).refused(limit)

    async def left(self, subject: LimitSubject, endpoint: str) -> list[Allowance]:
        """The caller's remaining allowances on the endpoint; counts nothing."""
        limits = self._applicable(subject, endpoint, lambda: 0)
        if not limits or self.is_down:
            return [Allowance(limit.kind, limit.maximum) for limit in limits]
        try:
            return list(await asyncio.gather(*map(self._allowance, limits)))
        except StoreFailed as error:
            self.failed(error)
            return [Allowance(limit.kind, limit.maximum) for limit in limits]

    def _applicable(self, subject: LimitSubject, endpoint: str, tokens: Callable[[], int]) -> list[_Limit]:
        """The limits that apply to a request with this initial cost in tokens."""
        limits = self.limiting.limits_for(subject.name, endpoint, subject.limits)
        applicable: list[_Limit] = []
        if limits.requests_per_minute is not None:
            applicable.append(_Limit("requests", _requests_key(subject, endpoint), limits.requests_per_minute))
        if limits.tokens_per_minute is not None:
            key = f"{subject.id}:{endpoint}:tokens"
            applicable.append(_Limit("tokens", key, limits.tokens_per_minute, tokens()))
        if limits.concurrent_requests is not None:
            applicable.append(_Limit("concurrent", f"{subject.id}:{endpoint}", limits.concurrent_requests))
        return applicable

    async def _allowance(self, limit: _Limit) -> Allowance:
        if limit.kind == "concurrent":
            running = await self.store.running(limit.key)
            return Allowance(limit.kind, limit.maximum, running, max(0, limit.maximum - running))
        window = await self.store.window(limit.key)
        resets_in_s = round(window.resets_in_s, 3)
        return Allowance(limit.kind, limit.maximum, window.used, window.remaining(limit.maximum), resets_in_s)

    def used(self, endpoint: str, limit: _Limit, window: Window) -> None:
        """Records the share of a limit that is used."""
        self._observer.limit_used(endpoint, limit.kind, window.used / limit.maximum if limit.maximum else 1.0)

    @property
    def is_down(self) -> bool:
        """Whether the store failed a moment ago."""
        return self._clock() < self._down_until

    def failed(self, error: StoreFailed) -> None:
        """Records that the store did not answer."""
        if not self.is_down:
            _log.warning("The limit store does not answer", extra=event("limit_store_failed", error=str(error)))
        self._down_until = self._clock() + _PAUSE_S
        self._observer.store_failed()

    @contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Records a store failure of the block instead of raising it."""
        try:
            yield
        except StoreFailed as error:
            self.failed(error)

    def rejected(self, endpoint: str, exceeded: Sequence[_Limit]) -> None:
        """Records that a request was rejected because of these limits."""
        for limit in exceeded:
            self._observer.limited(endpoint, limit.kind)


class Reservation:
    """One request's reservation of its caller's limits, held while it runs."""

    def __init__(self, limiter: Limiter, who: str, endpoint: str, limits: Sequence[_Limit], usage: UsageSource) -> None:
        self._limiter, self._store = limiter, limiter.store
        self._who, self._endpoint, self._limits, self._usage = who, endpoint, limits, usage
        self._holder = uuid.uuid4().hex if limits else ""
        self._reserved: list[_Limit] = []
        self._windows: asyncio.Task[Mapping[Kind, Window]] | None = None

    async def __aenter__(self) -> Self:
        if not self._limits:
            return self
        for limit in self._limits:
            if limit.cost > limit.maximum:
                self._limiter.rejected(self._endpoint, [limit])
                raise TooLarge(
                    f"The request takes about {limit.cost} tokens, which the limit of {limit.maximum} "
                    f"{_TITLES[limit.kind]} for {self._who} can never admit; shorten it"
                )
        if self._limiter.is_down or not await self._reserve_all():
            if self._limiter.limiting.on_store_failure == "refuse":
                await self._release_all()
                raise Unavailable("Rate limits are temporarily unavailable", retry_after=_PAUSE_S)
            return self
        self._usage.reservation = self
        self._windows = asyncio.create_task(self._read_windows())
        if exceeded := [limit for limit in self._limits if limit not in self._reserved]:
            await self._release_all()
            self._limiter.rejected(self._endpoint, exceeded)
            raise self._rejection(exceeded, await self._windows)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for limit in self._reserved:
            with self._limiter.failures_recorded():
                await self._settle(limit, error)
        if self._windows is not None:
            await asyncio.wait([self._windows])

    async def _settle(self, limit: _Limit, error: BaseException | None) -> None:
        """Charges what the request used, in place of the estimate that was reserved."""
        if limit.kind == "concurrent":
            await self._store.release(limit.key, self._holder)
        elif limit.kind == "tokens" and (spent := self._spent(limit, error)) != limit.cost:
            await self._store.add(limit.key, spent - limit.cost)

    def _spent(self, limit: _Limit, error: BaseException | None) -> int:
        """The tokens to charge: none for a request that failed, but those of one whose client disconnected or set a
        short timeout.
        """
        failed = isinstance(error, SwitchyardError) and not isinstance(error, DeadlinePassed)
        return 0 if failed else self._usage.tokens_used(limit.cost)

    async def headers(self) -> Mapping[str, str]:
        """The response headers about the limits, by OpenAI's names."""
        headers: dict[str, str] = {}
        # Shielded: if this wait is cancelled, `__aexit__` still waits for the task.
        windows = await asyncio.shield(self._windows) if self._windows is not None else {}
        for limit in self._limits:
            if (window := windows.get(limit.kind)) is not None:
                headers[f"x-ratelimit-limit-{limit.kind}"] = str(limit.maximum)
                headers[f"x-ratelimit-remaining-{limit.kind}"] = str(window.remaining(limit.maximum))
                headers[f"x-ratelimit-reset-{limit.kind}"] = duration(window.resets_in_s)
        return headers

    async def _reserve_all(self) -> bool:
        """Reserves every limit concurrently; `_reserved` holds those that had room. False if the store failed."""
        try:
            outcomes = await asyncio.gather(*map(self._reserve, self._limits), return_exceptions=True)
        except asyncio.CancelledError:
            # A cancelled call may have counted all the same; releasing a slot that was not taken does no harm.
            slots = [limit for limit in self._limits if limit.kind == "concurrent" and limit not in self._reserved]
            self._reserved += slots
            await self._release_all()
            raise
        for outcome in outcomes:
            if isinstance(outcome, StoreFailed):
                self._limiter.failed(outcome)
                return False
            if isinstance(outcome, BaseException):
                await self._release_all()
                raise outcome
        return True

    async def _reserve(self, limit: _Limit) -> None:
        if limit.kind == "concurrent":
            fits = await self._store.acquire(limit.key, limit.maximum, self._holder)
        else:
            fits = await self._store.take(limit.key, limit.maximum, limit.cost)
        if fits:
            self._reserved.append(limit)

    async def _release_all(self) -> None:
        reserved, self._reserved = self._reserved, []
        for limit in reserved:
            with self._limiter.failures_recorded():
                if limit.kind == "concurrent":
                    await self._store.release(limit.key, self._holder)
                else:
                    await self._store.add(limit.key, -limit.cost)

    async def _read_windows(self) -> Mapping[Kind, Window]:
        counted = [limit for limit in self._limits if limit.kind != "concurrent"]
        windows: Sequence[Window] = ()
        with self._limiter.failures_recorded():
            windows = await asyncio.gather(*(self._store.window(limit.key) for limit in counted))
        for limit, window in zip(counted, windows, strict=False):
            self._limiter.used(self._endpoint, limit, window)
        return {limit.kind: window for limit, window in zip(counted, windows, strict=False)}

    async def refused(self, limit: _Limit) -> LimitExceeded:
        """The error for a request that is refused because of this limit, before anything is reserved."""
        self._usage.reservation = self
        self._windows = asyncio.create_task(self._read_windows())
        return self._rejection([limit], await self._windows)

    def _rejection(self, exceeded: Sequence[_Limit], windows: Mapping[Kind, Window]) -> LimitExceeded:
        waits: list[int] = []
        reasons: list[str] = []
        for limit in exceeded:
            title = f"{limit.maximum} {_TITLES[limit.kind]}"
            if (window := windows.get(limit.kind)) is None:  # the store failed since, or the limit has no window
                waits.append(1)
                reasons.append(f"{title}; one frees as soon as another ends" if limit.kind == "concurrent" else title)
                continue
            waits.append(max(1, math.ceil(window.frees_in_s(limit.maximum, limit.cost))))
            cost = f" and this takes about {limit.cost}" if limit.kind == "tokens" else ""
            reasons.append(f"{title}, of which {window.used} are used{cost}; it frees in {waits[-1]} s")
        return LimitExceeded(f"Limit reached for {self._who}: {'. '.join(reasons)}", retry_after=max(waits))


def _requests_key(subject: LimitSubject, endpoint: str) -> str:
    return f"{subject.id}:{endpoint}:requests"


def _who(subject: LimitSubject, endpoint: str) -> str:
    return f"'{subject.name}' on '{endpoint}'" if endpoint else f"'{subject.name}'"


_FIELDS = ("messages", "prompt", "input", "instructions", "system", "tools", "query", "queries", "documents")
_BYTES_PER_TOKEN = 4

_DATA = 500
"""The estimate for an image or a piece of audio: engines turn one into some hundreds of tokens."""

_DATA_FIELDS = ("url", "image_url", "data", "file_data")
"""The fields that hold one, as a URL or in base64: far more bytes than tokens."""


def estimate(body: Mapping[str, Any]) -> int:
    """The prompt's tokens in vLLM's request `body`, at least 1: token ids are counted, text has four bytes a token.

    A tokenizer would take milliseconds, and the engine returns the exact count a moment later.
    """
    return max(1, sum(_tokens(body.get(name)) for name in _FIELDS))


def _tokens(value: Any) -> int:
    if isinstance(value, str):
        return _bytes(value) // _BYTES_PER_TOKEN
    if isinstance(value, list):
        return len(value) if value and isinstance(value[0], int) else sum(map(_tokens, value))
    if isinstance(value, dict):
        return sum(_DATA if _is_data(name, part) else _tokens(part) for name, part in value.items())
    return 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _is_data(name: str, part: Any) -> bool:
    return name in _DATA_FIELDS and isinstance(part, str)
