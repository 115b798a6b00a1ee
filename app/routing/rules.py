"""The rules that decide on an endpoint's requests apart from its weights: overrides, stops, running conversations.

- Units of an endpoint that are assigned to a deployment individually, regardless of the weights.
- Stops: a deployment gets no more traffic of an endpoint, and another one gets its share. Pure functions.
- Windows after a change of weights, in which running conversations follow the earlier weights. Pure functions.
- Computes which keys a change of plans moves: pure functions of keys and plans.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.config.endpoints import Override
from app.routing.conversations import PinnedConversations
from app.routing.traffic import Decision, Random, rendezvous, weighted


class Overrides:
    """The overrides of one plan. `unit` hashes a sticky key as the ledger does, `now` is in Unix seconds."""

    def __init__(self, overrides: Iterable[Override], unit: Callable[[str], int], now: Callable[[], float]) -> None:
        self._by_unit = {int(override.unit, 16): override for override in overrides}
        self._unit, self._now = unit, now

    def deployment(self, key: str) -> str | None:
        """The deployment of the unit with this sticky key; None without an override, or if it has expired."""
        override = self._by_unit.get(self._unit(key))
        if override is None or (override.until is not None and override.until <= self._now()):
            return None
        return override.deployment


# A stop (`exposures.wire.TrafficBlock`) only takes traffic away, so that it may be applied early, late or twice. Keys
# that draw the stopped deployment go to its control; no other key moves.

NO_STOPS: Mapping[str, str] = {}


class StopFields(Protocol):
    """The fields that are used of `exposures.wire.TrafficBlock`."""

    @property
    def endpoint(self) -> str: ...
    @property
    def deployment(self) -> str: ...
    @property
    def control(self) -> str: ...


def stops_of(endpoint: str, traffic: Mapping[str, int], stops: Iterable[StopFields]) -> Mapping[str, str]:
    """The endpoint's stopped deployments, each with the one that gets its share.

    Ignores a stop whose deployment or control is not in the traffic, and one whose control is stopped, too.
    """
    controls = {
        stop.deployment: stop.control
        for stop in stops
        if stop.endpoint == endpoint and stop.deployment in traffic and stop.control in traffic
    }
    return {deployment: control for deployment, control in controls.items() if control not in controls}


def moved_on(stops: Mapping[str, str], further: Mapping[str, str]) -> dict[str, str]:
    """Combines both moves: the deployment of conversations that were moved by `stops` and then by `further`."""
    return {**{name: further.get(to, to) for name, to in stops.items()}, **further}


def with_share(traffic: Mapping[str, int], stops: Mapping[str, str]) -> Mapping[str, str]:
    """The stops that change something, because their deployment has a share."""
    return {deployment: control for deployment, control in stops.items() if traffic.get(deployment, 0) > 0}


def effective(traffic: Mapping[str, int], stops: Mapping[str, str]) -> dict[str, int]:
    """The percentages that are in force."""
    weights = dict(traffic)
    for deployment, control in with_share(traffic, stops).items():
        weights[control] = weights.get(control, 0) + weights[deployment]
        weights[deployment] = 0
    return weights


# The time starts again with every change, for all weights that are still followed then: otherwise a conversation that
# kept its deployment over one change would lose it soon after the next.


class Earlier(NamedTuple):
    """Weights that were in force, with the stops and withdrawals that have since been lifted. `until`: in Unix
    seconds."""

    weights: Mapping[str, int]
    until: float
    stops: Mapping[str, str] = NO_STOPS


class FormerFields(Protocol):
    """The fields that are used of `exposures.wire.Replaced` and `config.endpoints.EarlierWeights`."""

    @property
    def weights(self) -> Mapping[str, int]: ...
    @property
    def until(self) -> float: ...
    @property
    def withdrawn(self) -> Mapping[str, str]: ...


def earlier_of(former: FormerFields, withdrawn: Mapping[str, str] = NO_STOPS) -> Earlier:
    """Weights that a plan or the journal has, with the deployments that have been `withdrawn` since."""
    return Earlier(former.weights, former.until, {**former.withdrawn, **withdrawn})


class InForce(NamedTuple):
    """The weights by which an endpoint's keys are drawn. `earlier`: those that running conversations follow, the oldest
    first."""

    weights: Mapping[str, int]
    stops: Mapping[str, str] = NO_STOPS
    earlier: Sequence[Earlier] = ()


def current_rules(
    before: InForce | None,
    weights: Mapping[str, int],
    stops: Mapping[str, str],
    listed: Iterable[Earlier],
    *,
    withdrawn: Mapping[str, str] = NO_STOPS,
    replaced: Iterable[Earlier] = (),
    pin_s: float,
    now: float,
) -> InForce:
    """The weights in force on a router that served `before` until now; None: it has just started.

    `listed` are the plan's earlier weights, `withdrawn` its deployments that running conversations leave. A router may
    have seen more, since files do not name what they replace. `replaced`: all earlier weights by the journal, for a
    router that has not seen them. A conversation that was moved stays where it is when the stop is lifted, or nothing
    is withdrawn any more.
    """
    planned = [_without(plan, withdrawn) for plan in listed if plan.until > now]
    recorded = [_without(plan, withdrawn) for plan in replaced if plan.until > now]
    if before is None:
        return InForce(weights, stops, _merged(recorded, planned))
    seen = [plan._replace(stops=moved_on(plan.stops, before.stops)) for plan in before.earlier if plan.until > now]
    lifted = with_share(weights, before.stops).keys() - stops.keys()
    if pin_s > 0 and (lifted or not same(before.weights, weights)):
        seen = [
            *(plan._replace(until=now + pin_s) for plan in seen),
            Earlier(before.weights, now + pin_s, before.stops),
        ]
    # The journal's order counts: plan and router know only a part of it.
    seen = [_without(plan, withdrawn) for plan in seen]
    return InForce(weights, stops, _merged(_merged(recorded, seen) if recorded else seen, planned))


def _without(earlier: Earlier, withdrawn: Mapping[str, str]) -> Earlier:
    return earlier._replace(stops=moved_on(earlier.stops, withdrawn)) if withdrawn else earlier


def same(weights: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether both draw the same deployments: those without a share do not count."""
    return _shares(weights) == _shares(others)


def _shares(weights: Mapping[str, int]) -> dict[str, int]:
    return {name: weight for name, weight in weights.items() if weight > 0}


def follows(earlier: Iterable[Earlier], replaced: Iterable[Earlier]) -> bool:
    """Whether the `replaced` weights are among the `earlier` ones, in that order."""
    rest = iter(earlier)
    return all(
        any(same(plan.weights, former.weights) and former.stops.keys() <= plan.stops.keys() for plan in rest)
        for former in replaced
    )


def _merged(seen: Sequence[Earlier], planned: Sequence[Earlier]) -> list[Earlier]:
    """The weights that this router has seen, in that order, and the plan's weights that it never served."""
    merged: list[Earlier] = []
    for plan in seen:
        if not any(same(plan.weights, other.weights) and plan.stops == other.stops for other in merged):
            merged.append(plan)
    place = 0
    for plan in planned:
        twins = [number for number, other in enumerate(merged) if same(plan.weights, other.weights)]
        for number in twins:
            merged[number] = merged[number]._replace(until=max(plan.until, merged[number].until))
        if twins and not any(plan.stops.keys() <= merged[number].stops.keys() for number in twins):
            merged[twins[0]] = merged[twins[0]]._replace(stops={**plan.stops, **merged[twins[0]].stops})
        if not twins:
            merged.insert(place, plan)
        place = twins[0] + 1 if twins else place + 1
    return merged


IsOpen = Callable[[str], bool]
"""Whether a deployment's circuit breaker is open."""


class ConversationTurn(NamedTuple):
    """A request's conversation: whether it is already running, and its hash; None if the request belongs to none.

    `may_ask`: whether other routers can be asked where it began.
    """

    is_carried: bool
    conversation: int | None
    may_ask: bool = False


NO_CONVERSATION = ConversationTurn(False, None)


@dataclass(frozen=True, slots=True)
class GracePeriod:
    """The time after a change of an endpoint's weights.

    `earlier`: the weights before, the oldest first; empty on a router that has not got the change yet. `withdrawn`:
    deployments that even running conversations leave, each with the one that gets them. `able`: the deployments that
    can serve the endpoint. `settles_at`: the Unix time until which new conversations follow the weights before, too:
    other routers may not have heard of the change, and would not know where these began.
    """

    endpoint: str
    earlier: Sequence[Earlier]
    withdrawn: Mapping[str, str]
    able: Collection[str]
    pins: PinnedConversations
    settles_at: float = 0.0


class Rules:
    """The rules of one endpoint. `traffic`: its percentages. `stops`: its stopped deployments, each with the one that
    gets its share."""

    def __init__(
        self,
        traffic: Mapping[str, int],
        *,
        overrides: Overrides | None = None,
        stops: Mapping[str, str] = NO_STOPS,
        window: GracePeriod | None = None,
    ) -> None:
        self._traffic, self._overrides, self._stops, self._window = traffic, overrides, stops, window
        self._controls: Collection[str] = set(stops.values())
        self._weights: Mapping[str, int] = effective(traffic, stops)

    def decide(
        self, key: str | None, random: Random, is_open: IsOpen, turn: Callable[[], ConversationTurn]
    ) -> Decision:
        """The deployment of a request with the sticky key `key`, None without one. `turn` is called only in the time
        after a change.

        Stops are not applied while the breaker of a deployment that would get the share is open: a stop must not cause
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
        chosen = _drawn(key, self._traffic, stops)
        if self._window is not None:
            pinned = _pinned(self._window, key, chosen, stops, is_open, turn)
            if pinned is None:
                return Decision(chosen, "sticky", weights, stops, unstopped, unknown=True)
            if pinned != chosen:
                return Decision(pinned, "pinned", weights, stops, unstopped)
        return Decision(chosen, "sticky", weights, stops, unstopped)


def _pinned(
    window: GracePeriod,
    key: str,
    chosen: str,
    stops: Mapping[str, str],
    is_open: IsOpen,
    turn: Callable[[], ConversationTurn],
) -> str | None:
    """The deployment of a request for which the present weights have `chosen` one. None: another router may know where
    its conversation began, and must be asked first.
    """
    now = window.pins.now()
    earlier = [plan for plan in window.earlier if plan.until > now]
    is_behind = window.pins.is_behind(window.endpoint)
    if not earlier and not is_behind:
        return chosen
    is_carried, conversation, may_ask = turn()
    if conversation is None:
        return chosen
    moved = {**window.withdrawn, **stops}
    if not is_carried:
        return _begun(window, key, conversation, chosen=chosen, earlier=earlier, moved=moved, is_open=is_open)
    began = window.pins.deployment(window.endpoint, conversation)
    kept = chosen
    if began is not None:
        kept = moved.get(began, began)
    elif earlier:
        kept = _under(earlier[0], key, moved)
    if began is None and (kept != chosen or is_behind):
        if may_ask and not window.pins.is_noted(window.endpoint, conversation):
            return None
        window.pins.follows_earlier_weights(window.endpoint, conversation, kept)
    if began is not None and kept != began:
        window.pins.missed(window.endpoint, "stopped")
    return kept if kept == chosen or _can_serve(window, kept, is_open) else chosen


def _begun(
    window: GracePeriod,
    key: str,
    conversation: int,
    *,
    chosen: str,
    earlier: Sequence[Earlier],
    moved: Mapping[str, str],
    is_open: IsOpen,
) -> str:
    """The deployment of a conversation's first turn, which is pinned unless all weights agree on it."""
    before = [_under(plan, key, moved) for plan in earlier]
    if before and window.pins.now() < window.settles_at and before[-1] in window.able and not is_open(before[-1]):
        chosen = before[-1]
    if any(deployment != chosen for deployment in before):
        window.pins.pin(window.endpoint, conversation, chosen)
    return chosen


def _can_serve(window: GracePeriod, kept: str, is_open: IsOpen) -> bool:
    """Whether a deployment can go on with a conversation; a miss is counted if not."""
    if kept in window.able and not is_open(kept):
        return True
    window.pins.missed(window.endpoint, "failing" if kept in window.able else "gone")
    return False


def _drawn(key: str, weights: Mapping[str, int], moved: Mapping[str, str]) -> str:
    chosen = rendezvous(key, weights)
    return moved.get(chosen, chosen)


def _under(earlier: Earlier, key: str, moved: Mapping[str, str]) -> str:
    """The deployment that the key draws by earlier weights."""
    chosen = _drawn(key, earlier.weights, earlier.stops)
    return moved.get(chosen, chosen)


Choice = Callable[[str], str]
"""The deployment that answers a key."""

MADE_UP_KEYS = 20_000
_CHOICES = 200_000
"""Scores of a deployment for a key that made-up keys may cost for one plan."""


class Moved(NamedTuple):
    """The part of the keys that would go to another deployment, by (from, to)."""

    keys: int
    pairs: Mapping[tuple[str, str], int]

    @property
    def share(self) -> float:
        """The part of all keys that moves; 0 without keys."""
        return sum(self.pairs.values()) / self.keys if self.keys else 0.0


def choice(
    traffic: Mapping[str, int], overrides: Overrides | None = None, stops: Mapping[str, str] = NO_STOPS
) -> Choice:
    """The deployment of a conversation's first turn under a plan. `stops`: stopped deployments, each with the one that
    gets its share."""

    def chosen(key: str) -> str:
        drawn = (overrides.deployment(key) if overrides is not None else None) or rendezvous(key, traffic)
        return stops.get(drawn, drawn)

    return chosen


def moved(keys: Sequence[str], before: Choice, after: Choice) -> Moved:
    """Splits the keys into those that move and those that stay. Takes about 5 µs a key and deployment."""
    pairs = Counter((before(key), after(key)) for key in keys)
    return Moved(len(keys), {pair: count for pair, count in pairs.most_common() if pair[0] != pair[1]})


def made_up_keys(deployments: int = 2) -> list[str]:
    """Sample keys, the same on every router. Beyond ten `deployments` there are fewer, since each deployment costs a
    microsecond per key: with a hundred, 2,000 keys and half a second."""
    return [f"made-up-{number}" for number in range(min(MADE_UP_KEYS, _CHOICES // max(1, deployments)))]
