"""What a router tells and hears with every batch, beside exposures: the conversations that are pinned, stops, and
what plans have replaced."""

from collections.abc import Callable, Sequence

from app.ledger.acknowledgement import Acknowledgement, Replaced, Stop
from app.ledger.wire import Pins
from app.routing.pinned_conversations import Pinned, PinnedConversations


class Hearing:
    """Belongs to one sender. `is_watched`: whether the controller may have stops or replaced weights to tell.

    `on_stops` is called with all stops that are in force, `on_replaced` with weights that running conversations follow
    though the plan does not say so, `on_pins` with how many conversations are pinned, by endpoint.
    """

    def __init__(
        self,
        pins: PinnedConversations,
        is_watched: Callable[[], bool],
        on_stops: Callable[[Sequence[Stop]], None],
        on_replaced: Callable[[Sequence[Replaced]], None],
        on_pins: Callable[[dict[str, int]], None],
    ) -> None:
        self._pins, self._is_watched, self._on_pins = pins, is_watched, on_pins
        self._on_stops, self._on_replaced = on_stops, on_replaced
        self._controller = ""
        self._seen = 0
        self._outgoing: list[Pinned] = []

    @property
    def is_wanted(self) -> bool:
        """Whether a router with nothing to report asks all the same."""
        return self._is_watched() or self._pins.is_open

    def outgoing(self) -> tuple[list[Pins], int]:
        """What goes into the next batch: pins, and how far the controller's have been read."""
        self._outgoing = self._pins.unsent()
        return [Pins(*it) for it in self._outgoing], self._seen

    def heard(self, acknowledgement: Acknowledgement) -> None:
        """The controller's answer to the batch after `outgoing`."""
        is_new = acknowledgement.controller != self._controller
        if is_new and self._controller:
            self._pins.send_again()
        self._pins.sent(self._outgoing)
        # What another controller has told is read from the beginning: it counts anew.
        self._seen = 0 if is_new and self._seen else acknowledgement.pins_end
        self._controller = acknowledgement.controller
        # First: what has been pinned since a stop was lifted is not to be moved with what was stopped.
        self._on_stops(acknowledgement.stops)
        if acknowledgement.replaced:
            self._on_replaced(acknowledgement.replaced)
        for it in acknowledgement.pins:
            self._pins.heard(Pinned(it.endpoint, it.deployment, it.until, it.conversations))

    def tidy(self) -> None:
        """To be called about every second: forgets what is over."""
        self._pins.expire()
        self._on_pins(self._pins.sizes())
