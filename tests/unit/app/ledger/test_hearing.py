"""What travels with batches: pins in both directions, and stops."""

from app.ledger.acknowledgement import Acknowledgement, Replaced, Stop
from app.ledger.hearing import Hearing
from app.ledger.wire import Pins
from app.routing.pinned_conversations import PinnedConversations


class Ear:
    def __init__(self) -> None:
        self.now, self.watched = 1000.0, False
        self.stops: list[list[Stop]] = []
        self.replaced: list[list[Replaced]] = []
        self.sizes: list[dict[str, int]] = []
        self.pins = PinnedConversations(lambda endpoint, cause: None, lambda: self.now)
        self.hearing = Hearing(
            self.pins,
            lambda: self.watched,
            lambda stops: self.stops.append(list(stops)),
            lambda replaced: self.replaced.append(list(replaced)),
            self.sizes.append,
        )

    def outgoing(self) -> tuple[list[Pins], int]:
        pins, seen = self.hearing.outgoing()
        return [it for it in pins if it.conversations], seen

    def hears(self, controller: str = "c1", end: int = 0, *pins: Pins) -> None:
        self.hearing.heard(Acknowledgement(0, 0, controller=controller, pins=list(pins), pins_end=end))


def test_it_is_wanted_while_stops_may_come_or_conversations_are_pinned() -> None:
    ear = Ear()
    wanted = [ear.hearing.is_wanted]
    ear.watched = True
    wanted.append(ear.hearing.is_wanted)
    ear.watched = False
    ear.pins.configure({"chat": 1500.0})
    wanted.append(ear.hearing.is_wanted)
    ear.now = 1500.0
    wanted.append(ear.hearing.is_wanted)
    assert wanted == [False, True, True, False]


def test_pins_are_told_until_they_are_acknowledged_and_read_from_where_they_end() -> None:
    ear = Ear()
    ear.pins.configure({"chat": 2000.0})
    ear.pins.pin("chat", 1, "blue")
    mine = [Pins("chat", "blue", 2000.0, [1])]
    assert ear.outgoing() == ear.outgoing() == (mine, 0)
    ear.hears("c1", 7, Pins("chat", "green", 2000.0, [2]))
    assert ear.pins.deployment("chat", 2) == "green"
    assert ear.outgoing() == ([], 7)
    ear.hearing.tidy()
    assert ear.sizes == [{"chat": 2}]
    ear.now = 2000.0
    ear.hearing.tidy()
    assert ear.sizes[-1] == {}


def test_another_controller_hears_everything_and_is_read_from_the_beginning() -> None:
    ear = Ear()
    ear.pins.configure({"chat": 2000.0})
    ear.pins.pin("chat", 1, "blue")
    ear.outgoing()
    ear.hears("c1", 7)
    ear.pins.pin("chat", 2, "blue")
    ear.outgoing()
    ear.hears("c2", 3)
    assert ear.outgoing() == ([Pins("chat", "blue", 2000.0, [1])], 0), "2 has just been told"
    ear.hears("c2", 5)
    assert ear.outgoing() == ([], 5)


def test_every_answer_says_all_stops() -> None:
    ear, stop = Ear(), Stop("1", "chat", "green", "blue")
    ear.outgoing()
    ear.hearing.heard(Acknowledgement(0, 0, stops=[stop]))
    ear.hearing.heard(Acknowledgement(0, 0))
    assert ear.stops == [[stop], []]


def test_what_was_replaced_is_heard_when_there_is_something() -> None:
    ear, replaced = Ear(), Replaced("chat", "0-12345678", {"blue": 100}, 2000.0)
    ear.outgoing()
    ear.hearing.heard(Acknowledgement(0, 0, replaced=[replaced]))
    ear.hearing.heard(Acknowledgement(0, 0))
    assert ear.replaced == [[replaced]]
