"""Whether a request may run: its claims on its caller's limits, taken together or not at all, and settled at its end.

One round trip to the store stands before a request (its claims are made at once), none before its answer: what the
headers tell is asked for while the deployment works.
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
from app.limits.token_estimate import estimate
from app.telemetry.logs import event

_PAUSE_S = 1.0
"""How long a store that failed is left alone: or every request would wait for it in turn."""

_log = logging.getLogger("switchyard")


class UsageSource(Protocol):
    """What a limit has to do with an answer."""

    limits: "Reservation | None"
    """Who tells the headers about limits that go with it."""

    def tokens_used(self, prompt: int) -> int:
        """What the request has cost so far; `prompt` is what its prompt was estimated at."""


class LimitObserver(Protocol):
    """Who wants to know what happens here."""

    def limited(self, endpoint: str, limit: str) -> None:
        """A request was refused for a limit."""

    def store_failed(self) -> None:
        """The store did not answer."""


@dataclass(frozen=True, slots=True)
class LimitSubject:
    """Whose limits they are: the name for messages, the id under which is counted, the key's own limits if it has."""

    name: str
    id: str
    own: Limits | None = None


Kind = Literal["requests", "tokens", "concurrent"]

_TITLES: Mapping[Kind, str] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrent": "concurrent requests",
}


@dataclass(frozen=True, slots=True)
class _Charge:
    kind: Kind
    key: str
    limit: int
    cost: int = 1


class Limiter:
    """The limits of one configuration, counted in `store`. `clock` is in seconds."""

    def __init__(self, limiting: Limiting, store: Store, observer: LimitObserver, clock: Callable[[], float]) -> None:
        self.limiting, self.store = limiting, store
        self._observer, self._clock = observer, clock
        self._down_until = float("-inf")

    def admit(
        self, subject: LimitSubject, endpoint: str, body: Mapping[str, Any], answer: UsageSource
    ) -> "Reservation":
        """A context in which the request runs; entering it raises what keeps the request from that.

        That is LimitExceeded; TooLarge where the prompt alone exceeds the limit, so that no waiting helps; Unavailable
        where the store does not answer and the configuration wants no requests then.
        """
        limits = self.limiting.of(subject.name, endpoint, subject.own)
        claims: list[_Charge] = []
        if limits.requests_per_minute is not None:
            claims.append(_Charge("requests", f"{subject.id}:{endpoint}:requests", limits.requests_per_minute))
        if limits.tokens_per_minute is not None:
            key = f"{subject.id}:{endpoint}:tokens"
            claims.append(_Charge("tokens", key, limits.tokens_per_minute, estimate(body)))
        if limits.concurrent_requests is not None:
            claims.append(_Charge("concurrent", f"{subject.id}:{endpoint}", limits.concurrent_requests))
        return Reservation(self, f"'{subject.name}' on '{endpoint}'", endpoint, claims, answer)

    @property
    def is_down(self) -> bool:
        """Whether the store failed a moment ago."""
        return self._clock() < self._down_until

    def failed(self, error: StoreFailed) -> None:
        """Notes that the store did not answer."""
        if not self.is_down:
            _log.warning("The limit store does not answer", extra=event("limit_store_failed", error=str(error)))
        self._down_until = self._clock() + _PAUSE_S
        self._observer.store_failed()

    @contextmanager
    def failures_noted(self) -> Iterator[None]:
        """For work that no request's outcome hangs on."""
        try:
            yield
        except StoreFailed as error:
            self.failed(error)

    def refused(self, endpoint: str, claims: Sequence[_Charge]) -> None:
        """Notes that a request was refused for these."""
        for claim in claims:
            self._observer.limited(endpoint, claim.kind)


class Reservation:
    """One request's claims, held while it runs."""

    def __init__(
        self, limiter: Limiter, who: str, endpoint: str, claims: Sequence[_Charge], answer: UsageSource
    ) -> None:
        self._limiter, self._store = limiter, limiter.store
        self._who, self._endpoint, self._claims, self._answer = who, endpoint, claims, answer
        self._holder = uuid.uuid4().hex
        self._taken: list[_Charge] = []
        self._windows: asyncio.Task[Mapping[Kind, Window]] | None = None

    async def __aenter__(self) -> Self:
        if not self._claims:
            return self
        for claim in self._claims:
            if claim.cost > claim.limit:
                self._limiter.refused(self._endpoint, [claim])
                raise TooLarge(
                    f"The request takes about {claim.cost} tokens, which the limit of {claim.limit} "
                    f"{_TITLES[claim.kind]} for {self._who} can never admit; shorten it"
                )
        if self._limiter.is_down or not await self._take_all():
            if self._limiter.limiting.on_store_failure == "refuse":
                await self._give_back()
                raise Unavailable("Rate limits are temporarily unavailable", retry_after=_PAUSE_S)
            return self
        self._answer.limits = self
        self._windows = asyncio.create_task(self._look())
        if lacking := [claim for claim in self._claims if claim not in self._taken]:
            await self._give_back()
            self._limiter.refused(self._endpoint, lacking)
            raise self._refusal(lacking, await self._windows)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for claim in self._taken:
            with self._limiter.failures_noted():
                if claim.kind == "concurrent":
                    await self._store.release(claim.key, self._holder)
                elif claim.kind == "tokens" and (spent := self._spent(claim, error)) != claim.cost:
                    await self._store.add(claim.key, spent - claim.cost)
        if self._windows is not None:
            await asyncio.wait([self._windows])

    def _spent(self, claim: _Charge, error: BaseException | None) -> int:
        """What no deployment has answered costs nothing; what a client did not wait for does, by leaving or by asking
        for little time."""
        failed = isinstance(error, SwitchyardError) and not isinstance(error, DeadlinePassed)
        return 0 if failed else self._answer.tokens_used(claim.cost)

    async def headers(self) -> Mapping[str, str]:
        """What the answer says about the limits, by OpenAI's names."""
        told: dict[str, str] = {}
        # Shielded: what waits for it here may be given up, and the end waits for it again.
        windows = await asyncio.shield(self._windows) if self._windows is not None else {}
        for claim in self._claims:
            if (window := windows.get(claim.kind)) is not None:
                told[f"x-ratelimit-limit-{claim.kind}"] = str(claim.limit)
                told[f"x-ratelimit-remaining-{claim.kind}"] = str(window.remaining(claim.limit))
                told[f"x-ratelimit-reset-{claim.kind}"] = duration(window.resets_in_s)
        return told

    async def _take_all(self) -> bool:
        """Makes every claim at once; `_taken` are those that fit. False where the store fails at any of them."""
        try:
            outcomes = await asyncio.gather(*map(self._take, self._claims), return_exceptions=True)
        except asyncio.CancelledError:
            # What was cancelled may have been counted all the same; a place that nobody took is freed without harm.
            places = [claim for claim in self._claims if claim.kind == "concurrent" and claim not in self._taken]
            self._taken += places
            await self._give_back()
            raise
        for outcome in outcomes:
            if isinstance(outcome, StoreFailed):
                self._limiter.failed(outcome)
                return False
            if isinstance(outcome, BaseException):
                await self._give_back()
                raise outcome
        return True

    async def _take(self, claim: _Charge) -> None:
        if claim.kind == "concurrent":
            fits = await self._store.acquire(claim.key, claim.limit, self._holder)
        else:
            fits = await self._store.take(claim.key, claim.limit, claim.cost)
        if fits:
            self._taken.append(claim)

    async def _give_back(self) -> None:
        taken, self._taken = self._taken, []
        for claim in taken:
            with self._limiter.failures_noted():
                if claim.kind == "concurrent":
                    await self._store.release(claim.key, self._holder)
                else:
                    await self._store.add(claim.key, -claim.cost)

    async def _look(self) -> Mapping[Kind, Window]:
        counted = [claim for claim in self._claims if claim.kind != "concurrent"]
        windows: Sequence[Window] = ()
        with self._limiter.failures_noted():
            windows = await asyncio.gather(*(self._store.window(claim.key) for claim in counted))
        return {claim.kind: window for claim, window in zip(counted, windows, strict=False)}

    def _refusal(self, lacking: Sequence[_Charge], windows: Mapping[Kind, Window]) -> LimitExceeded:
        waits: list[int] = []
        reasons: list[str] = []
        for claim in lacking:
            title = f"{claim.limit} {_TITLES[claim.kind]}"
            if (window := windows.get(claim.kind)) is None:  # the store has failed since, or these are no counts
                waits.append(1)
                reasons.append(f"{title}; one frees as soon as another ends" if claim.kind == "concurrent" else title)
                continue
            waits.append(max(1, math.ceil(window.frees_in_s(claim.limit, claim.cost))))
            cost = f" and this takes about {claim.cost}" if claim.kind == "tokens" else ""
            reasons.append(f"{title}, of which {window.used} are used{cost}; it frees in {waits[-1]} s")
        return LimitExceeded(f"Limit reached for {self._who}: {'. '.join(reasons)}", retry_after=max(waits))
