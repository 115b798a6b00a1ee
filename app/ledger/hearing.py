"""What a router hears from the controller with every acknowledgement, beside what that has received."""

from collections.abc import Callable, Sequence

from app.ledger.wire import Acknowledgement, Stop


class Hearing:
    """`is_wanted`: whether the controller may have something to say, so that a router with nothing to report asks.

    `on_stops` is called with all stops that are in force.
    """

    def __init__(self, is_wanted: Callable[[], bool], on_stops: Callable[[Sequence[Stop]], None]) -> None:
        self.is_wanted, self._on_stops = is_wanted, on_stops

    def heard(self, acknowledgement: Acknowledgement) -> None:
        """The controller's answer to a batch."""
        self._on_stops(acknowledgement.stops)
