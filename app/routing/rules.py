"""The rules that decide on an endpoint's requests apart from its weights: overrides, stops, running conversations."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.routing.overrides import Overrides
from app.routing.pinned_conversations import PinnedConversations
from app.routing.stops import NO_STOPS, effective
from app.routing.traffic import Decision, Random, rendezvous, weighted
from app.routing.windows import Earlier

IsOpen = Callable[[str], bool]
"""Whether a deployment's circuit breaker is open."""


class Turn(NamedTuple):
    """A request's conversation: whether it is already running, and its hash; None if the request belongs to none.

    `may_ask`: whether other routers can be asked where it began.
    """

    is_carried: bool
    conversation: int | None
    may_ask: bool = False


NO_CONVERSATION = Turn(False, None)


@dataclass(frozen=True, slots=True)
class Window:
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
        window: Window | None = None,
    ) -> None:
        self._traffic, self._overrides, self._stops, self._window = traffic, overrides, stops, window
        self._controls: Collection[str] = set(stops.values())
        self._weights: Mapping[str, int] = effective(traffic, stops)

    def decide(self, key: str | None, random: Random, is_open: IsOpen, turn: Callable[[], Turn]) -> Decision:
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
    window: Window, key: str, chosen: str, stops: Mapping[str, str], is_open: IsOpen, turn: Callable[[], Turn]
) -> str | None:
    """The deployment of a request for which the present weights have `chosen` one. None: another router may know where
    its conversation began, and must be asked first.
    """
    now = window.pins.now()
    earlier = [it for it in window.earlier if it.until > now]
    is_behind = window.pins.is_behind(window.endpoint)
    if not earlier and not is_behind:
        return chosen
    is_carried, conversation, may_ask = turn()
    if conversation is None:
        return chosen
    moved = {**window.withdrawn, **stops}
    if not is_carried:
        return _begun(window, key, conversation, chosen, earlier, moved, is_open)
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
    window: Window,
    key: str,
    conversation: int,
    chosen: str,
    earlier: Sequence[Earlier],
    moved: Mapping[str, str],
    is_open: IsOpen,
) -> str:
    """The deployment of a conversation's first turn, which is pinned unless all weights agree on it."""
    before = [_under(it, key, moved) for it in earlier]
    if before and window.pins.now() < window.settles_at and before[-1] in window.able and not is_open(before[-1]):
        chosen = before[-1]
    if any(it != chosen for it in before):
        window.pins.pin(window.endpoint, conversation, chosen)
    return chosen


def _can_serve(window: Window, kept: str, is_open: IsOpen) -> bool:
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
