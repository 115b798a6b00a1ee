"""Circuit breakers: exclude failing deployments, by the outcomes of their last attempts. Envoy calls this
outlier ejection.

A breaker opens after some faults in a row, stays open for a while that doubles with each failed trial, and closes when
a trial succeeds, or a request that was sent meanwhile. The last deployment of an endpoint is never ejected: with all
breakers open, the first is called.

A client must not open a breaker for others: some request bodies make a healthy engine answer 500. So only a failed
connection, which no body causes, counts at once. Faults of any other kind make a breaker suspect, and the router sends
the deployment a small probe request, whose outcome decides. The same request is the trial of an open breaker.

Deployments that share an engine, as LoRA adapters do, have a breaker each: one of them may fail alone. But a failed
connection counts for all of them.

The extra load that retries may cause: a budget per endpoint, after Finagle's RetryBudget, shared by its callers.

The fuse: no request may kill one engine after the other.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

FAULTS_IN_A_ROW = 5
OPEN_S = 5.0
LONGEST_OPEN_S = 60.0


class Fault(Enum):
    """The kind of a failed attempt, by its significance for the deployment."""

    CONNECTION = "connection"
    """No connection was made: every request would fail."""
    ANSWER = "answer"
    """The answer failed or was too slow: perhaps for this request only."""


@dataclass(slots=True)
class Breaker:
    """The breaker of one deployment. Times are in seconds of the caller's clock."""

    faults: int = 0
    unreached: int = 0
    """Consecutive failed connections to its engine under the engine's other names."""
    openings: int = 0
    """How often in a row it has opened, failed trials included: the while doubles with it."""
    period: int = 0
    """How often it has opened and closed."""
    open_until: float | None = None
    checking: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the deployment gets no requests while another one of the endpoint can take them."""
        return self.open_until is not None

    def succeeded(self, period: int | None = None) -> None:
        """Notes that the deployment answered a client, if only to reject the request. `period`: that in which a request
        was sent that it served. One that was sent while the breaker was open is as good as a trial; those from before
        the opening end late."""
        if self.open_until is None:
            self.faults = self.unreached = 0
        elif period == self.period:
            self._close()

    def reached(self) -> None:
        """Notes that its engine answered under another name."""
        self.unreached = 0

    def failed(self, fault: Fault, now: float) -> None:
        """Notes a failed attempt."""
        self.faults += 1
        if fault is Fault.CONNECTION:
            self._open_if_unreachable(now)

    def not_reached(self, now: float) -> None:
        """Notes that a connection to its engine failed under another name."""
        self.unreached += 1
        self._open_if_unreachable(now)

    def wants_check(self, now: float) -> bool:
        """Whether a check request is due; at most one is under way."""
        if self.checking:
            return False
        return now >= self.open_until if self.open_until is not None else self.faults >= FAULTS_IN_A_ROW

    def checked(self, healthy: bool, now: float) -> None:
        """Notes the outcome of the router's check request."""
        self.checking = False
        if healthy:
            self._close()
        else:
            self._open(now)

    def _close(self) -> None:
        self.period += self.is_open
        self.faults, self.unreached, self.openings, self.open_until = 0, 0, 0, None

    def _open_if_unreachable(self, now: float) -> None:
        if self.faults + self.unreached >= FAULTS_IN_A_ROW and not self.is_open:
            self._open(now)

    def _open(self, now: float) -> None:
        self.period += not self.is_open
        self.open_until = now + min(OPEN_S * 2**self.openings, LONGEST_OPEN_S)
        self.openings += 1


@dataclass(slots=True)
class _Engine:
    """An engine with several names. `is_doubted`: connections to it have failed since it last answered."""

    deployments: Sequence[str]
    is_doubted: bool


@dataclass(slots=True)
class Breakers:
    """Every deployment's breaker, kept over changes of the configuration."""

    clock: Callable[[], float]
    _of: dict[str, Breaker] = field(default_factory=dict)
    _shared: Mapping[str, _Engine] = field(default_factory=dict)

    def configure(self, engines: Mapping[str, str]) -> None:
        """`engines`: each deployment's engine, by its URL."""
        named: dict[str, list[str]] = {}
        for deployment, engine in engines.items():
            named.setdefault(engine, []).append(deployment)
        shared = [
            _Engine(names, any(self.of(name).unreached for name in names)) for names in named.values() if names[1:]
        ]
        self._shared = {name: engine for engine in shared for name in engine.deployments}

    def reached(self, deployment: str) -> None:
        """Notes that the engine answered: earlier failed connections no longer count under any of its names."""
        engine = self._shared.get(deployment)
        if engine is not None and engine.is_doubted:  # most never are, and may have hundreds of names
            engine.is_doubted = False
            for name in engine.deployments:
                self.of(name).reached()

    def not_reached(self, deployment: str) -> Sequence[str]:
        """Notes that a connection to the engine failed. Returns its other names whose breakers that opened."""
        engine = self._shared.get(deployment)
        if engine is None:
            return []
        engine.is_doubted = True
        opened = []
        for other in (name for name in engine.deployments if name != deployment):
            breaker = self.of(other)
            was_open = breaker.is_open
            breaker.not_reached(self.clock())
            if breaker.is_open and not was_open:
                opened.append(other)
        return opened

    def of(self, deployment: str) -> Breaker:
        """The deployment's breaker."""
        breaker = self._of.get(deployment)
        if breaker is None:
            breaker = self._of[deployment] = Breaker()
        return breaker

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        """`candidates` with those whose breaker is open put last, otherwise in their order."""
        return candidates if len(candidates) == 1 else sorted(candidates, key=lambda name: self.of(name).is_open)

    def open(self) -> Sequence[str]:
        """The deployments whose breaker is open."""
        return [name for name, breaker in self._of.items() if breaker.is_open]


# The law of the fuse. An engine's death is one death, however many streams tell of it. A body is suspected if it was
# under way on two engines that died within a minute, and had no new token of the last one. It is refused if it is the
# only one that was so with these engines, or if it was so with three: else many would suffer for one. An engine that
# answers the body clears it, and accuses no other.

DEATHS_S = 60.0
"""Seconds after an engine's death in which another one of its deployment makes the deployment suspect, and in which a
body is refused that may have killed two."""

AT_ONCE_S = 5.0
"""Deaths of engines without a name that are no further apart may be one: all streams of an engine end with it, and each
tells of its death."""

_MOST_DEATHS, _MOST_BODIES = 64, 1024


@dataclass(slots=True)
class _Death:
    """`bodies`: those under way on the engine, and whether each had a new token of it. Only the last `_MOST_BODIES`.
    `answered`: those of them that an engine has answered since. `is_false`: the engine itself has answered since, so
    that only a connection to it had ended."""

    deployment: str
    at: float
    bodies: dict[bytes, bool] = field(default_factory=dict)
    answered: set[bytes] = field(default_factory=set)
    is_false: bool = False


class Suspicion(NamedTuple):
    """Why a body is refused: so many `engines` died of it. `left_s`: for how many more seconds."""

    engines: int
    left_s: float


class Fuse:
    """Keeps a request that kills engines from killing one after the other. `clock` returns seconds."""

    __slots__ = ("_blown", "_clock", "_deaths", "_died", "_unnamed")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._died: dict[str, float] = {}
        self._blown: set[str] = set()
        self._deaths: dict[str, _Death] = {}
        """By the engine, in the order of time."""
        self._unnamed = 0

    def died(self, deployment: str, engine: str, body: bytes, *, had_tokens: bool) -> None:
        """Notes that a request has lost its engine, and tells which: "" if that is not known. `body`: the hash of the
        request, which `had_tokens` of this engine."""
        now, before = self._clock(), self._died.get(deployment, -math.inf)
        if now - before > AT_ONCE_S:
            self._died[deployment] = now
            if now - before <= DEATHS_S:
                self._blown.add(deployment)
        self._forget(now)
        death = self._death(deployment, engine, now)
        death.is_false, bodies = False, death.bodies
        bodies[body] = bodies.pop(body, False) or had_tokens
        if len(bodies) > _MOST_BODIES:
            del bodies[next(iter(bodies))]

    def has_taken(self, deployment: str, sent_at: float) -> bool:
        """Whether a request that was sent then was under way when the deployment last lost an engine."""
        return sent_at <= self._died.get(deployment, -math.inf)

    def is_blown(self, deployment: str) -> bool:
        """Whether no stream may go on at the deployment before a check has passed."""
        return deployment in self._blown

    def reset(self, deployment: str) -> None:
        """Notes that a check of the deployment has passed."""
        self._blown.discard(deployment)

    def answered(self, body: bytes, engine: str = "") -> None:
        """Notes that an engine has answered the body; "": one that has not told its name."""
        if (death := self._deaths.get(engine)) is not None:
            death.is_false = True
        for death in self._deaths.values():
            if body in death.bodies:
                death.answered.add(body)

    @property
    def watches(self) -> bool:
        """Whether an engine has died lately; if not, no body needs to be hashed."""
        if self._deaths:
            self._forget(self._clock())
        return bool(self._deaths)

    def dead(self) -> Collection[str]:
        """The engines that have died in the last minute, as far as their names are known."""
        self._forget(self._clock())
        return {engine for engine, death in self._deaths.items() if not death.is_false}

    def suspicion(self, body: bytes) -> Suspicion | None:
        """Why the body is refused; None if it is not."""
        self._forget(self._clock())
        of_body = [one for one in self._deaths.values() if body in one.bodies and body not in one.answered]
        if len(of_body) < 2 or of_body[-1].bodies[body]:
            return None
        if len(of_body) == 2 and any(
            other != body and not had_tokens and other in of_body[0].bodies
            for other, had_tokens in of_body[1].bodies.items()
        ):
            return None
        return Suspicion(len(of_body), of_body[-1].at + DEATHS_S - self._clock())

    def _death(self, deployment: str, engine: str, now: float) -> _Death:
        if engine in self._deaths:
            return self._deaths[engine]
        if not engine:
            last = next((one for one in reversed(self._deaths.values()) if one.deployment == deployment), None)
            if last is not None and now - last.at <= AT_ONCE_S:
                return last
            self._unnamed += 1
            engine = f" {self._unnamed}"  # no engine's name
        if len(self._deaths) >= _MOST_DEATHS:
            del self._deaths[next(iter(self._deaths))]
        death = self._deaths[engine] = _Death(deployment, now)
        return death

    def _forget(self, now: float) -> None:
        while self._deaths and (first := next(iter(self._deaths.items())))[1].at <= now - DEATHS_S:
            del self._deaths[first[0]]


# Each request repays a tenth of a retry, so that retries add at most a tenth to the load when everything fails. Nothing
# is saved beyond that: a quiet hour does not pay for a burst. A reserve lets an endpoint with little traffic retry.
#
# One caller's failing requests must not use up the retries of the others. So a caller may owe no more retries than are
# left: one that fails all the time leaves half of the reserve, two of them a third, and so on.

SHARE = 0.1
RESERVE = 20.0
"""Retries that all callers together may owe. One caller alone gets half of them."""

_ROUNDING = 1e-9
"""Tenths do not add up to one exactly."""


class RetryBudget:
    """One endpoint's budget. It holds at most `RESERVE` callers."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        """Retries that are not repaid, by caller; the oldest debt comes first."""

    def request(self, caller: str) -> None:
        """Repays the share of one request: first the caller's own retries, else the oldest."""
        if self._owed:
            self._repay(caller if caller in self._owed else next(iter(self._owed)))

    def take(self, caller: str) -> bool:
        """Takes one retry for the caller; False if there is none for it."""
        owed = self._owed.get(caller, 0.0)
        left = RESERVE - sum(self._owed.values())
        if left - owed < 1 - _ROUNDING:
            return False
        self._owed[caller] = owed + 1
        return True

    def _repay(self, caller: str) -> None:
        owed = self._owed[caller] - SHARE
        if owed > _ROUNDING:
            self._owed[caller] = owed
        else:
            del self._owed[caller]
