"""Windows after a change of weights, in which running conversations follow the earlier weights. Pure functions.

The time starts again with every change, for all weights that are still followed then: otherwise a conversation that
kept its deployment over one change would lose it soon after the next.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.routing.stops import NO_STOPS, moved_on, with_share


class Earlier(NamedTuple):
    """Weights that were in force, with the stops and withdrawals that have since been lifted. `until`: in Unix
    seconds."""

    weights: Mapping[str, int]
    until: float
    stops: Mapping[str, str] = NO_STOPS


class InForce(NamedTuple):
    """The weights by which an endpoint's keys are drawn. `earlier`: those that running conversations follow, the oldest
    first."""

    weights: Mapping[str, int]
    stops: Mapping[str, str] = NO_STOPS
    earlier: Sequence[Earlier] = ()


def in_force(
    before: InForce | None,
    weights: Mapping[str, int],
    stops: Mapping[str, str],
    listed: Iterable[Earlier],
    *,
    withdrawn: Mapping[str, str] = NO_STOPS,
    pin_s: float,
    now: float,
) -> InForce:
    """The weights in force on a router that served `before` until now; None: it has just started.

    `listed` are the plan's earlier weights, `withdrawn` its deployments that running conversations leave. A router may
    have seen more, since files do not name what they replace. A conversation that was moved stays where it is when the
    stop is lifted, or nothing is withdrawn any more.
    """
    planned = [_without(it, withdrawn) for it in listed if it.until > now]
    if before is None:
        return InForce(weights, stops, planned)
    seen = [it._replace(stops=moved_on(it.stops, before.stops)) for it in before.earlier if it.until > now]
    lifted = with_share(weights, before.stops).keys() - stops.keys()
    if pin_s > 0 and (lifted or not same(before.weights, weights)):
        seen = [*(it._replace(until=now + pin_s) for it in seen), Earlier(before.weights, now + pin_s, before.stops)]
    return InForce(weights, stops, _merged([_without(it, withdrawn) for it in seen], planned))


def _without(earlier: Earlier, withdrawn: Mapping[str, str]) -> Earlier:
    return earlier._replace(stops=moved_on(earlier.stops, withdrawn)) if withdrawn else earlier


def same(weights: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether both draw the same deployments: those without a share do not count."""
    return _shares(weights) == _shares(others)


def _shares(weights: Mapping[str, int]) -> dict[str, int]:
    return {name: weight for name, weight in weights.items() if weight > 0}


def _merged(seen: Sequence[Earlier], planned: Sequence[Earlier]) -> list[Earlier]:
    """The weights that this router has seen, in that order, and the plan's weights that it never served."""
    found: list[Earlier] = []
    for it in seen:
        if not any(same(it.weights, other.weights) and it.stops == other.stops for other in found):
            found.append(it)
    place = 0
    for it in planned:
        twins = [number for number, other in enumerate(found) if same(it.weights, other.weights)]
        for number in twins:
            found[number] = found[number]._replace(until=max(it.until, found[number].until))
        if twins and not any(it.stops.keys() <= found[number].stops.keys() for number in twins):
            found[twins[0]] = found[twins[0]]._replace(stops={**it.stops, **found[twins[0]].stops})
        if not twins:
            found.insert(place, it)
        place = twins[0] + 1 if twins else place + 1
    return found
