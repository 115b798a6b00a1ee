"""Batches carry pins in both directions, and stops from the controller."""

from app.exposures.uploader import ControllerSync
from app.exposures.wire import Acknowledgement, Pins, Replaced, Stop
from app.routing.conversations import BEHIND_S, PinnedConversations


class Rig:
    def __init__(self) -> None:
        self.now, self.watched = 1000.0, False
        self.stops: list[list[Stop]] = []
        self.replaced: list[list[Replaced]] = []
        self.sizes: list[dict[str, int]] = []
        self.windows: list[float] = []
        self.pins = PinnedConversations(lambda endpoint, cause: None, lambda: self.now)
        self.sync = ControllerSync(
            self.pins,
            lambda: self.watched,
            lambda stops: self.stops.append(list(stops)),
            lambda replaced: self.replaced.append(list(replaced)),
            lambda: self.windows.append(self.now),
            self.sizes.append,
        )

    def outgoing(self) -> tuple[list[Pins], int]:
        pins, seen = self.sync.outgoing()
        return [it for it in pins if it.conversations], seen

    def acknowledge(self, controller: str = "c1", end: int = 0, *pins: Pins) -> None:
        self.sync.apply(Acknowledgement(0, 0, controller=controller, pins=list(pins), pins_end=end))


def test_empty_batches_are_sent_while_stops_may_come_or_conversations_are_pinned() -> None:
    rig = Rig()
    wanted = [rig.sync.is_wanted]
    rig.watched = True
    wanted.append(rig.sync.is_wanted)
    rig.watched = False
    rig.pins.configure({"chat": 1500.0})
    wanted.append(rig.sync.is_wanted)
    rig.now = 1500.0
    wanted.append(rig.sync.is_wanted)
    assert wanted == [False, True, True, False]


def test_pins_are_sent_until_acknowledged_and_the_controllers_are_read_once() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 2000.0})
    rig.pins.pin("chat", 1, "blue")
    mine = [Pins("chat", "blue", 2000.0, [1])]
    assert rig.outgoing() == rig.outgoing() == (mine, 0)
    rig.acknowledge("c1", 7, Pins("chat", "green", 2000.0, [2]))
    assert rig.pins.deployment("chat", 2) == "green"
    assert rig.outgoing() == ([], 7)
    rig.sync.tidy()
    assert rig.sizes == [{"chat": 2}]
    rig.now = 2000.0
    rig.sync.tidy()
    assert rig.sizes[-1] == {}


def test_a_new_controller_gets_all_pins_and_its_own_are_read_from_the_beginning() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 2000.0})
    rig.pins.pin("chat", 1, "blue")
    rig.outgoing()
    rig.acknowledge("c1", 7)
    rig.pins.pin("chat", 2, "blue")
    rig.outgoing()
    rig.acknowledge("c2", 3)
    assert rig.outgoing() == ([Pins("chat", "blue", 2000.0, [1])], 0), "2 has just been sent"
    rig.acknowledge("c2", 5)
    assert rig.outgoing() == ([], 5)


def test_every_acknowledgement_replaces_all_stops() -> None:
    rig, stop = Rig(), Stop("1", "chat", "green", "blue")
    rig.outgoing()
    rig.sync.apply(Acknowledgement(0, 0, stops=[stop]))
    rig.sync.apply(Acknowledgement(0, 0))
    assert rig.stops == [[stop], []]


def test_replaced_weights_are_applied_if_there_are_any() -> None:
    rig, replaced = Rig(), Replaced("chat", "0-12345678", {"blue": 100}, 2000.0)
    rig.outgoing()
    rig.sync.apply(Acknowledgement(0, 0, replaced=[replaced]))
    rig.sync.apply(Acknowledgement(0, 0))
    assert rig.replaced == [[replaced]]


def test_a_change_on_another_router_is_heard_once_and_until_it_comes_here() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 1500.0})
    told = [{"chat": 1500.9}, {"chat": 1520.0}, {"chat": 1520.0}, {}]
    for windows in told:
        rig.sync.apply(Acknowledgement(0, 0, windows=windows, routers=3))
    assert rig.windows == [1000.0], "those of one change differ by less than a second"
    assert (rig.pins.is_behind("chat"), rig.pins.has_others) == (True, True)
    rig.pins.configure({"chat": 1523.0})
    assert not rig.pins.is_behind("chat")
    rig.sync.apply(Acknowledgement(0, 0, windows={"chat": 1600.0}, routers=1))
    rig.now += BEHIND_S
    assert (rig.pins.is_behind("chat"), rig.pins.has_others) == (False, False)
