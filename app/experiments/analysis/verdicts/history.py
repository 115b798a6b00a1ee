"""The looks of the past, for a plot: one a minute, thinned as they become many."""

from typing import Any

from app.experiments.report import Effect, HistoryPoint, Verdict

MAX_POINTS = 500
EVERY_S = 60.0


class History:
    """At most `MAX_POINTS` looks. When there are more, every second one is dropped, and fewer are kept from then on."""

    def __init__(self) -> None:
        self._points: list[HistoryPoint] = []
        self._every = EVERY_S

    @property
    def points(self) -> list[HistoryPoint]:
        """Oldest first."""
        return list(self._points)

    def add(self, at: float, effect: Effect, ln_e: float | None, verdict: Verdict) -> None:
        """A look. One that comes too soon after the one before is left out."""
        if self._points and at - self._points[-1].at < self._every:
            return
        self._points.append(HistoryPoint(at=at, effect=effect, ln_e=ln_e, verdict=verdict))
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def state(self) -> dict[str, Any]:
        """As plain data."""
        points = [
            [point.at, point.effect.estimate, point.effect.lower, point.effect.upper, point.ln_e, point.verdict]
            for point in self._points
        ]
        return {"every": self._every, "points": points}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._every = state["every"]
        self._points = [
            HistoryPoint(at=at, effect=Effect(estimate=estimate, lower=lower, upper=upper), ln_e=ln_e, verdict=verdict)
            for at, estimate, lower, upper, ln_e, verdict in state["points"]
        ]
