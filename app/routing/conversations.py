"""Conversations that began during the time after a change of weights, and the deployment of each.

Every router keeps the pins of all routers: they are exchanged through the controller (`app.exposures.uploader`).
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

MOST_PINS = 200_000
"""Pins of all endpoints together; the oldest are dropped."""

MOST_AT_ONCE = 8192
"""Pins that are sent with one batch."""

_MOST_UNPINNED = 10_000

_SAME_S = 1.0
"""The most by which routers that get a change at once differ in its time."""

BEHIND_S = 60.0
"""The longest time that a change takes from one router to another."""


class Pinned(NamedTuple):
    """Conversations of one endpoint on one deployment. `until`: in Unix seconds."""

    endpoint: str
    deployment: str
    until: float
    conversations: list[int]


class _Pin(NamedTuple):
    number: int
    deployment: str
    is_own: bool


class PinnedConversations:
    """A conversation is known by a hash. `missed` is called with an endpoint and a cause when a running conversation
    does not get its deployment. `clock` returns Unix seconds."""

    def __init__(
        self,
        missed: Callable[[str, str], None],
        clock: Callable[[], float] = time.time,
        *,
        most: int = MOST_PINS,
    ) -> None:
        self.missed, self.now = missed, clock
        self._most = most
        self._number = self._size = 0
        self._pins: dict[str, OrderedDict[int, _Pin]] = {}
        self._until: dict[str, float] = {}
        """The time at which each endpoint's pins end."""
        self._own_until: dict[str, float] = {}
        """The end of each endpoint's time by this router's configuration."""
        self._windows: dict[str, float] = {}
        """The same by any router's, as far as was heard."""
        self._behind_until: dict[str, float] = {}
        self.has_others = False
        """Whether other routers serve the same endpoints."""
        self._unsent: dict[tuple[str, int], str] = {}
        self._untold: set[str] = set()
        self._unpinned: OrderedDict[tuple[str, int], str] = OrderedDict()
        self.on_pin: Callable[[], None] = lambda: None
        """Called when a conversation is pinned here: other routers should know before its next turn comes to one."""

    def configure(self, until: Mapping[str, float]) -> None:
        """Sets when the time after the last change ends, for the endpoints that have had one."""
        self.expire()  # first: a new time must not revive the pins of one that is over
        changed = {endpoint for endpoint, at in until.items() if at != self._own_until.get(endpoint)}
        self._untold |= changed
        self._behind_until = {name: at for name, at in self._behind_until.items() if name not in changed}
        self._own_until = dict(until)
        for endpoint, at in until.items():
            self._until[endpoint] = max(at, self._until.get(endpoint, 0.0))
        self.expire()

    def heard_windows(self, windows: Mapping[str, float]) -> bool:
        """Takes the ends of endpoints' times on all routers. Returns whether an endpoint has changed on another router
        and, it may be, not here yet.
        """
        new = {
            endpoint
            for endpoint, until in windows.items()
            if until > max(self._windows.get(endpoint, 0.0), self._own_until.get(endpoint, 0.0)) + _SAME_S
        }
        self._windows = dict(windows)
        self._behind_until |= dict.fromkeys(new, self.now() + BEHIND_S)
        return bool(new)

    def is_behind(self, endpoint: str) -> bool:
        """Whether the endpoint may have changed on other routers, and not here yet: conversations may have begun there
        that this router's weights do not explain.
        """
        until = self._behind_until.get(endpoint)
        return until is not None and self.now() < until

    @property
    def is_open(self) -> bool:
        """Whether conversations are being pinned."""
        now = self.now()
        return any(until > now for until in self._own_until.values())

    def sizes(self) -> dict[str, int]:
        """The number of pinned conversations by endpoint."""
        return {endpoint: len(pins) for endpoint, pins in self._pins.items()}

    def by_deployment(self, endpoint: str) -> dict[str, int]:
        """The number of the endpoint's conversations that are pinned to each deployment. Takes milliseconds."""
        return dict(Counter(pin.deployment for pin in self._pins.get(endpoint, {}).values()))

    def until(self, endpoint: str) -> float | None:
        """The time at which the endpoint's pins end; None if there are none to keep."""
        return self._until.get(endpoint)

    def pin(self, endpoint: str, conversation: int, deployment: str) -> None:
        """Pins a conversation to the deployment on which it begins."""
        if self.deployment(endpoint, conversation) != deployment:
            self._unsent[endpoint, conversation] = deployment
            self._keep(endpoint, conversation, deployment, is_own=True)
            self.on_pin()

    def move(self, endpoint: str, moved: Mapping[str, str]) -> None:
        """Moves the endpoint's conversations from some deployments to others, permanently: a stop that moved them is
        lifted. The new pins are sent, since other routers may get the former ones only now. Takes milliseconds.
        """
        pins = self._pins.get(endpoint, OrderedDict())
        for conversation, pin in pins.items():
            if (to := moved.get(pin.deployment)) is not None:
                pins[conversation] = pin._replace(deployment=to)
                if pin.is_own:
                    self._unsent[endpoint, conversation] = to

    def deployment(self, endpoint: str, conversation: int) -> str | None:
        """The deployment on which the conversation began; None if it is not pinned."""
        pins = self._pins.get(endpoint)
        pin = pins.get(conversation) if pins is not None else None
        return pin.deployment if pin is not None else None

    def follows_earlier_weights(self, endpoint: str, conversation: int, deployment: str) -> None:
        """Notes that an unpinned running conversation got this deployment: a pin that arrives later was missed."""
        self._unpinned[endpoint, conversation] = deployment
        if len(self._unpinned) > _MOST_UNPINNED:
            self._unpinned.popitem(last=False)

    def is_noted(self, endpoint: str, conversation: int) -> bool:
        """Whether it is noted that the conversation follows earlier weights."""
        return (endpoint, conversation) in self._unpinned

    def heard(self, pinned: Pinned) -> None:
        """Adds pins of other routers."""
        if pinned.until <= self.now():
            return
        self.expire()
        endpoint = pinned.endpoint
        self._until[endpoint] = max(pinned.until, self._until.get(endpoint, 0.0))
        for conversation in pinned.conversations:
            given = self._unpinned.pop((endpoint, conversation), pinned.deployment)
            if given != pinned.deployment:
                self.missed(endpoint, "late")
            if (endpoint, conversation) not in self._unsent:  # this router's own is newer
                self._keep(endpoint, conversation, pinned.deployment, is_own=False)

    def unsent(self) -> list[Pinned]:
        """The pins that the controller does not have yet, and the end of each endpoint's pins."""
        pins: dict[tuple[str, str], list[int]] = {(endpoint, ""): [] for endpoint in self._untold}
        for (endpoint, conversation), deployment in islice(self._unsent.items(), MOST_AT_ONCE):
            pins.setdefault((endpoint, deployment), []).append(conversation)
        return [
            Pinned(endpoint, deployment, self._until[endpoint], conversations)
            for (endpoint, deployment), conversations in pins.items()
            if endpoint in self._until
        ]

    def sent(self, pinned: Sequence[Pinned]) -> None:
        """Records that the controller has these."""
        for pin in pinned:
            if not pin.deployment:
                self._untold.discard(pin.endpoint)
            for conversation in pin.conversations:
                if self._unsent.get((pin.endpoint, conversation)) == pin.deployment:
                    del self._unsent[pin.endpoint, conversation]

    def send_again(self) -> None:
        """Marks all of this router's pins to be sent again: the controller has lost them."""
        self._untold = set(self._own_until)
        self._unsent |= {
            (endpoint, conversation): pin.deployment
            for endpoint, pins in self._pins.items()
            for conversation, pin in pins.items()
            if pin.is_own
        }

    def expire(self) -> None:
        """Forgets the pins of endpoints whose time is over."""
        now = self.now()
        over = {endpoint for endpoint, until in self._until.items() if until <= now}
        for endpoint in over:
            del self._until[endpoint]
            self._size -= len(self._pins.pop(endpoint, ()))
        if over:
            self._unsent = {key: deployment for key, deployment in self._unsent.items() if key[0] not in over}
            self._unpinned = OrderedDict(
                (key, deployment) for key, deployment in self._unpinned.items() if key[0] not in over
            )
            self._untold -= over
            self._own_until = {endpoint: at for endpoint, at in self._own_until.items() if endpoint not in over}

    def _keep(self, endpoint: str, conversation: int, deployment: str, *, is_own: bool) -> None:
        pins = self._pins.setdefault(endpoint, OrderedDict())
        self._number += 1
        self._size += conversation not in pins
        pins[conversation] = _Pin(self._number, deployment, is_own)
        pins.move_to_end(conversation)
        if self._size > self._most:
            endpoint = min((endpoint for endpoint in self._pins if self._pins[endpoint]), key=self._oldest)
            conversation, _ = self._pins[endpoint].popitem(last=False)
            self._unsent.pop((endpoint, conversation), None)
            self._size -= 1

    def _oldest(self, endpoint: str) -> int:
        return next(iter(self._pins[endpoint].values())).number
