"""Which deployments are worth asking, by how their last answers went: one circuit breaker each.

A breaker opens after some server faults in a row (a client's 4xx is no fault, nor is being busy), stays open for a
while that doubles with each failed probe, then lets one request through to find out. As Envoy's outlier detection does
it, but that the last deployment of an endpoint is never taken out: with all of them open, the first is asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FAULTS_IN_A_ROW = 5
OPEN_S = 5.0
LONGEST_OPEN_S = 60.0


@dataclass(slots=True)
class Breaker:
    """One deployment's. Times are those of the clock that is passed in, in seconds."""

    faults: int = 0
    openings: int = 0
    open_until: float | None = None
    probing: bool = False

    def admits(self, now: float) -> bool:
        """Whether a request may go there: closed, or open for long enough and no probe on its way."""
        return self.open_until is None or (now >= self.open_until and not self.probing)

    def asked(self) -> None:
        """A request goes there; with an open breaker it is the probe."""
        self.probing = self.open_until is not None

    def succeeded(self) -> None:
        """The deployment answered, if only to refuse."""
        self.faults, self.openings, self.open_until, self.probing = 0, 0, None, False

    def failed(self, now: float) -> None:
        """A server fault."""
        self.faults += 1
        if self.faults >= FAULTS_IN_A_ROW or self.probing:
            self.open_until = now + min(OPEN_S * 2**self.openings, LONGEST_OPEN_S)
            self.openings += 1
            self.probing = False

    def abandoned(self) -> None:
        """The request ended without telling anything: its client left, or its own deadline passed."""
        self.probing = False


@dataclass(slots=True)
class Breakers:
    """Every deployment's breaker, kept over changes of the configuration."""

    clock: Callable[[], float]
    _of: dict[str, Breaker] = field(default_factory=dict)

    def of(self, deployment: str) -> Breaker:
        """The deployment's breaker."""
        return self._of.setdefault(deployment, Breaker())

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        """`candidates` with those whose breaker is open put last, otherwise in their order."""
        now = self.clock()
        return sorted(candidates, key=lambda name: not self.of(name).admits(now))
