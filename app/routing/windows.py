"""For a while after a change of weights, running conversations follow the weights from before. Pure functions.

The time begins anew with every change, for all weights that are still followed then: otherwise a conversation that kept
its deployment over one change would lose it soon after the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.routing.stops import NO_STOPS, with_share


class Earlier(NamedTuple):
    """Weights that were in force, with the stops of that time. `until`: in Unix seconds."""

    weights: Mapping[str, int]
    until: float
    stops: Mapping[str, str] = NO_STOPS


class Listed(Protocol):
    """What is read of `config.plans.EarlierWeights`."""

    @property
    def weights(self) -> Mapping[str, int]: ...
    @property
    def until(self) -> float: ...


class InForce(NamedTuple):
    """What an endpoint's keys are drawn by. `earlier`: what running conversations follow, the oldest first."""

    weights: Mapping[str, int]
    stops: Mapping[str, str] = NO_STOPS
    earlier: Sequence[Earlier] = ()


def in_force(
    before: InForce | None,
    weights: Mapping[str, int],
    stops: Mapping[str, str],
    listed: Iterable[Listed],
    *,
    pin_s: float,
    now: float,
) -> InForce:
    """What is in force on a router that served `before` until now; None: it has just started.

    `listed` is what the plan says of earlier weights. A router may have seen more of them, since files say nothing of
    what they replace. A conversation that a stop has moved stays where it is when the stop is lifted.
    """
    told = [Earlier(it.weights, it.until) for it in listed if it.until > now]
    if before is None:
        return InForce(weights, stops, told)
    seen = [it._replace(stops={**it.stops, **before.stops}) for it in before.earlier if it.until > now]
    lifted = with_share(weights, before.stops).keys() - stops.keys()
    if pin_s > 0 and (lifted or not same(before.weights, weights)):
        seen = [*(it._replace(until=now + pin_s) for it in seen), Earlier(before.weights, now + pin_s, before.stops)]
    return InForce(weights, stops, _merged(seen, told))


def same(weights: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether both draw the same: a deployment without a share is as good as none."""
    return _shares(weights) == _shares(others)


def _shares(weights: Mapping[str, int]) -> dict[str, int]:
    return {name: weight for name, weight in weights.items() if weight > 0}


def _merged(seen: Sequence[Earlier], told: Sequence[Earlier]) -> list[Earlier]:
    """What this router has seen, in that order, and what the plan says of weights that it never served."""
    found: list[Earlier] = []
    for it in seen:
        if not any(same(it.weights, other.weights) and it.stops == other.stops for other in found):
            found.append(it)
    place = 0
    for it in told:
        twins = [number for number, other in enumerate(found) if same(it.weights, other.weights)]
        for number in twins:
            found[number] = found[number]._replace(until=max(it.until, found[number].until))
        if not twins:
            found.insert(place, it)
        place = twins[0] + 1 if twins else place + 1
    return found
