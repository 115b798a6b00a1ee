"""State exchanged with the controller alongside each batch: pinned conversations, stops, and replaced weights."""

from collections.abc import Callable, Sequence

from app.ledger.acknowledgement import Acknowledgement, Replaced, Stop
from app.ledger.wire import Pins
from app.routing.conversations import Pinned, PinnedConversations


class ControllerSync:
    """The exchange of one sender. `is_watched`: whether the controller may have stops or replaced weights for us.

    `on_stops` is called with all stops that are in force, `on_replaced` with weights that running conversations follow
    although the plan does not list them, `on_windows` when endpoints have changed on other routers, `on_pins` with the
    number of pinned conversations by endpoint.
    """

    def __init__(
        self,
        pins: PinnedConversations,
        is_watched: Callable[[], bool],
        on_stops: Callable[[Sequence[Stop]], None],
        on_replaced: Callable[[Sequence[Replaced]], None],
        on_windows: Callable[[], None],
        on_pins: Callable[[dict[str, int]], None],
    ) -> None:
        self._pins, self._is_watched, self._on_pins = pins, is_watched, on_pins
        self._on_stops, self._on_replaced, self._on_windows = on_stops, on_replaced, on_windows
        self._controller = ""
        self._seen = 0
        self._outgoing: list[Pinned] = []

    @property
    def is_wanted(self) -> bool:
        """Whether a router with nothing to report sends an empty batch."""
        return self._is_watched() or self._pins.is_open

    def outgoing(self) -> tuple[list[Pins], int]:
        """Content for the next batch: new pins, and the position up to which the controller's pins have been read."""
        self._outgoing = self._pins.unsent()
        return [Pins(*it) for it in self._outgoing], self._seen

    def apply(self, acknowledgement: Acknowledgement) -> None:
        """Takes the controller's answer to the batch that followed `outgoing`."""
        is_new = acknowledgement.controller != self._controller
        if is_new and self._controller:
            self._pins.send_again()
        self._pins.sent(self._outgoing)
        # Another controller numbers its pins from the start: they are read from the beginning.
        self._seen = 0 if is_new and self._seen else acknowledgement.pins_end
        self._controller = acknowledgement.controller
        # First: conversations pinned since a stop was lifted must not be moved with the stopped ones.
        self._on_stops(acknowledgement.stops)
        if acknowledgement.replaced:
            self._on_replaced(acknowledgement.replaced)
        for it in acknowledgement.pins:
            self._pins.heard(Pinned(it.endpoint, it.deployment, it.until, it.conversations))
        self._pins.has_others = acknowledgement.routers > 1
        if self._pins.heard_windows(acknowledgement.windows):
            self._on_windows()

    def tidy(self) -> None:
        """Forgets pins that have ended; called about every second."""
        self._pins.expire()
        self._on_pins(self._pins.sizes())
