"""The looks of the past, for a plot: one a minute, thinned as they become many, and the latest."""

from typing import Any

from app.experiments.report import Effect, HistoryPoint, Verdict

MAX_POINTS = 500
EVERY_S = 60.0


class History:
    """At most `MAX_POINTS` looks, the latest among them. When there are more, every second one is dropped, and fewer
    are kept from then on."""

    def __init__(self) -> None:
        self._points: list[HistoryPoint] = []
        self._every = EVERY_S
        self._latest: HistoryPoint | None = None

    @property
    def points(self) -> list[HistoryPoint]:
        """Oldest first."""
        latest = [self._latest] if self._latest is not None else []
        return self._points + [it for it in latest if not self._points or it.at > self._points[-1].at]

    def add(self, at: float, effect: Effect, ln_e: float | None, verdict: Verdict) -> None:
        """A look. One that comes too soon after the last one that was kept is kept only until the next."""
        self._latest = HistoryPoint(at=at, effect=effect, ln_e=ln_e, verdict=verdict)
        if self._points and at - self._points[-1].at < self._every:
            return
        self._points.append(self._latest)
        if len(self._points) >= MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def state(self) -> dict[str, Any]:
        """The history as plain data."""
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
