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
    probe: "Attempt | None" = None

    def admits(self, now: float) -> bool:
        """Whether a request may go there: closed, or open for long enough and no probe on its way."""
        return self.open_until is None or (now >= self.open_until and self.probe is None)

    def attempt(self) -> "Attempt":
        """A request goes there; with an open breaker it is the probe, unless there is one."""
        request = Attempt(self)
        if self.open_until is not None and self.probe is None:
            self.probe = request
        return request


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request to a breaker's deployment; exactly one of the methods tells how it ended.

    Requests that went there before the breaker opened, or although it is open, end while another one probes: the probe
    is its own request's alone.
    """

    breaker: Breaker

    def succeeded(self) -> None:
        """The deployment answered, if only to refuse."""
        breaker = self.breaker
        breaker.faults, breaker.openings, breaker.open_until, breaker.probe = 0, 0, None, None

    def failed(self, now: float) -> None:
        """A server fault."""
        breaker = self.breaker
        breaker.faults += 1
        opens = breaker.open_until is None and breaker.faults >= FAULTS_IN_A_ROW
        if opens or breaker.probe is self:
            breaker.open_until = now + min(OPEN_S * 2**breaker.openings, LONGEST_OPEN_S)
            breaker.openings += 1
            breaker.probe = None

    def abandoned(self) -> None:
        """It ended without telling anything: its client left, or its own deadline passed."""
        if self.breaker.probe is self:
            self.breaker.probe = None


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
