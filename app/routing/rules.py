"""What decides on an endpoint's requests beside its weights: overrides and stops."""

from collections.abc import Callable, Collection, Mapping

from app.routing.overrides import Overrides
from app.routing.stops import NO_STOPS, effective
from app.routing.traffic import Decision, Random, rendezvous, weighted

IsOpen = Callable[[str], bool]
"""Whether a deployment's circuit breaker is open."""


class Rules:
    """Of one endpoint. `traffic`: its percentages. `stops`: its stopped deployments, each with the one that gets its
    share."""

    def __init__(
        self,
        traffic: Mapping[str, int],
        *,
        overrides: Overrides | None = None,
        stops: Mapping[str, str] = NO_STOPS,
    ) -> None:
        self._traffic, self._overrides, self._stops = traffic, overrides, stops
        self._controls: Collection[str] = set(stops.values())
        self._weights: Mapping[str, int] = effective(traffic, stops)

    def decide(self, key: str | None, random: Random, is_open: IsOpen) -> Decision:
        """Who answers a request with the sticky key `key`, None without one.

        Stops are not applied while the breaker of a deployment is open that would get the share: a stop must not make
        an outage.
        """
        stops, weights, unstopped = self._stops, self._weights, False
        if stops and any(is_open(control) for control in self._controls):
            stops, weights, unstopped = NO_STOPS, self._traffic, True
        if key is None:
            chosen = weighted(self._traffic, random)
            return Decision(stops.get(chosen, chosen), "traffic", weights, stops, unstopped)
        if self._overrides is not None and (own := self._overrides.deployment(key)) is not None:
            return Decision(stops.get(own, own), "override", weights, stops, unstopped)
        chosen = rendezvous(key, self._traffic)
        return Decision(stops.get(chosen, chosen), "sticky", weights, stops, unstopped)
