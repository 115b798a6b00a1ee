"""The conversations that routers have pinned, passed on from one router to the others.

In memory only: a controller that restarts has another `id`, and routers then send theirs again. Every pin has a
position; a router reads on from the position that it has reached.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from app.exposures.wire import Pins

MOST_KEPT = 200_000
MOST_AT_ONCE = 32_768
"""Pins that one acknowledgement looks at: some 300 kB."""


class _Pin(NamedTuple):
    position: int
    router: str
    deployment: str


class PinExchange:
    """All endpoints' pins, of which the oldest go when there are more than `most_kept`. Times are Unix seconds."""

    def __init__(self, *, most_kept: int = MOST_KEPT, most_at_once: int = MOST_AT_ONCE) -> None:
        self.id = os.urandom(8).hex()
        self.end = 0
        """The position of the newest pin."""
        self._most_kept, self._most_at_once = most_kept, most_at_once
        self._pins: OrderedDict[tuple[str, int], _Pin] = OrderedDict()
        """The pins by endpoint and conversation, in the order of their positions."""
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def take(self, router: str, pins: Sequence[Pins], now: float) -> None:
        """Keeps what a router has pinned. A repeated pin changes nothing, a conversation's newest pin counts.

        All of an endpoint's pins last until the latest `until`, which routers may also send without conversations.
        """
        for it in pins:
            if it.until <= now:
                continue
            self._until[it.endpoint] = max(self._until.get(it.endpoint, 0.0), it.until)
            for conversation in it.conversations:
                key = (it.endpoint, conversation)
                if (known := self._pins.get(key)) is not None and known.deployment == it.deployment:
                    continue
                self.end += 1
                self._pins[key] = _Pin(self.end, router, it.deployment)
                self._pins.move_to_end(key)
        while len(self._pins) > self._most_kept:
            self._pins.popitem(last=False)
        self._forget(now)

    def windows(self, now: float) -> dict[str, float]:
        """The end of each endpoint's pins."""
        return {endpoint: until for endpoint, until in self._until.items() if until > now}

    def after(self, position: int, router: str) -> tuple[list[Pins], int]:
        """The other routers' pins above `position`, and the position that the router has then reached."""
        new = list(takewhile(lambda it: it[1].position > position, reversed(self._pins.items())))[::-1]
        batch = new[: self._most_at_once]
        found: dict[tuple[str, str], list[int]] = {}
        for (endpoint, conversation), pin in batch:
            if pin.router != router:
                found.setdefault((endpoint, pin.deployment), []).append(conversation)
        pins = [
            Pins(endpoint, deployment, self._until[endpoint], conversations)
            for (endpoint, deployment), conversations in found.items()
        ]
        return pins, batch[-1][1].position if len(batch) < len(new) else self.end

    def _forget(self, now: float) -> None:
        """Drops the pins of endpoints whose time is over."""
        if over := {endpoint for endpoint, until in self._until.items() if until <= now}:
            self._pins = OrderedDict((key, pin) for key, pin in self._pins.items() if key[0] not in over)
            self._until = {endpoint: until for endpoint, until in self._until.items() if endpoint not in over}
