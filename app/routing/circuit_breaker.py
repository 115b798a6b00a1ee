"""Outlier ejection: one circuit breaker per deployment, which orders the candidates for a request.

A breaker opens after several consecutive faults (a client's 4xx is not a fault, nor is being busy), stays open for a
time that doubles with each failed probe, then admits one request as a probe. This is Envoy's outlier detection, except
that the last deployment of an endpoint is never ejected: if all breakers are open, the first candidate is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FAULTS_IN_A_ROW = 5
OPEN_S = 5.0
LONGEST_OPEN_S = 60.0


@dataclass(slots=True)
class Breaker:
    """One deployment's breaker. Times are in seconds of the caller's clock."""

    faults: int = 0
    openings: int = 0
    open_until: float | None = None
    probe: "Attempt | None" = None

    def admits(self, now: float) -> bool:
        """Whether the deployment may be called: closed, or open for long enough and without a running probe."""
        return self.open_until is None or (now >= self.open_until and self.probe is None)

    def attempt(self) -> "Attempt":
        """Starts a request to the deployment; with an open breaker it is the probe, unless one is running."""
        attempt = Attempt(self)
        if self.open_until is not None and self.probe is None:
            self.probe = attempt
        return attempt


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request to a breaker's deployment; exactly one of its methods reports how it ended.

    Requests that started before the breaker opened, or although it was open, may end during a probe: only the probe's
    own attempt decides it.
    """

    breaker: Breaker

    def succeeded(self) -> None:
        """The deployment responded, possibly with a rejection."""
        breaker = self.breaker
        breaker.faults, breaker.openings, breaker.open_until, breaker.probe = 0, 0, None, None

    def failed(self, now: float) -> None:
        """A fault of the deployment."""
        breaker = self.breaker
        breaker.faults += 1
        opens = breaker.open_until is None and breaker.faults >= FAULTS_IN_A_ROW
        if opens or breaker.probe is self:
            breaker.open_until = now + min(OPEN_S * 2**breaker.openings, LONGEST_OPEN_S)
            breaker.openings += 1
            breaker.probe = None

    def abandoned(self) -> None:
        """It says nothing about the deployment: its client disconnected, or its own deadline passed."""
        if self.breaker.probe is self:
            self.breaker.probe = None


@dataclass(slots=True)
class Breakers:
    """Every deployment's breaker. They survive changes of the configuration."""

    clock: Callable[[], float]
    _of: dict[str, Breaker] = field(default_factory=dict)

    def of(self, deployment: str) -> Breaker:
        """The deployment's breaker."""
        return self._of.setdefault(deployment, Breaker())

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        """`candidates` with those whose breaker is open put last, otherwise in their order."""
        now = self.clock()
        return sorted(candidates, key=lambda name: not self.of(name).admits(now))
