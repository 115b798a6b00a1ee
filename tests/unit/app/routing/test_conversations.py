"""Pinned conversations: kept for a limited time, up to a bound, and sent to the other routers."""

from app.routing.conversations import MOST_AT_ONCE, Pinned, PinnedConversations


class PinsWithClock:
    """Pins with a clock, and the misses that they count."""

    def __init__(self, most: int = 100) -> None:
        self.now = 1000.0
        self.misses: list[tuple[str, str]] = []
        self.pins = PinnedConversations(lambda *miss: self.misses.append(miss), lambda: self.now, most=most)
        self.pins.configure({"chat": 2000.0, "other": 3000.0})


def answer(pins: PinnedConversations) -> list[Pinned]:
    unsent = pins.unsent()
    pins.sent(unsent)
    return unsent


def test_a_conversation_is_pinned_until_the_time_is_over() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    kept.pins.pin("other", 1, "green")
    assert (kept.pins.deployment("chat", 1), kept.pins.deployment("chat", 2)) == ("blue", None)
    assert kept.pins.sizes() == {"chat": 1, "other": 1}
    kept.now = 2000.0
    kept.pins.expire()
    assert (kept.pins.deployment("chat", 1), kept.pins.deployment("other", 1)) == (None, "green")
    assert (kept.pins.sizes(), kept.pins.until("chat"), kept.pins.is_open) == ({"other": 1}, None, True)
    kept.now = 3000.0
    kept.pins.expire()
    assert (kept.pins.sizes(), kept.pins.is_open, kept.pins.unsent()) == ({}, False, [])


def test_another_change_prolongs_the_time() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    kept.pins.configure({"chat": 2500.0})
    kept.now = 2400.0
    kept.pins.expire()
    assert kept.pins.deployment("chat", 1) == "blue"


def test_a_change_revives_no_pins_of_a_time_that_is_over() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    kept.now = 2000.0
    kept.pins.configure({"chat": 3000.0})
    assert kept.pins.deployment("chat", 1) is None
    kept.pins.pin("chat", 1, "blue")
    kept.now = 3000.0
    kept.pins.heard(Pinned("chat", "green", 4000.0, [2]))
    assert (kept.pins.deployment("chat", 1), kept.pins.deployment("chat", 2)) == (None, "green")


def test_beyond_the_bound_the_oldest_pins_of_all_endpoints_are_dropped() -> None:
    kept = PinsWithClock(most=3)
    for endpoint, conversation in (("chat", 1), ("other", 2), ("chat", 3), ("chat", 1), ("other", 4), ("chat", 5)):
        kept.pins.pin(endpoint, conversation, "blue")
    assert [kept.pins.deployment("chat", conversation) for conversation in (1, 3, 5)] == [None, "blue", "blue"]
    assert [kept.pins.deployment("other", conversation) for conversation in (2, 4)] == [None, "blue"]
    assert sum(len(pinned.conversations) for pinned in kept.pins.unsent()) == 3


def test_the_newest_pin_of_a_conversation_counts() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    answer(kept.pins)
    kept.pins.pin("chat", 1, "blue")
    assert kept.pins.unsent() == []
    kept.pins.pin("chat", 1, "green")
    assert answer(kept.pins) == [Pinned("chat", "green", 2000.0, [1])]
    kept.pins.heard(Pinned("chat", "blue", 2000.0, [1]))
    assert kept.pins.deployment("chat", 1) == "blue"


def test_only_unsent_pins_are_sent_again() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    begin = [Pinned("chat", "", 2000.0, []), Pinned("other", "", 3000.0, [])]
    first = [Pinned("chat", "blue", 2000.0, [1])]
    assert sorted(kept.pins.unsent()) == sorted([*begin, *first]), "the endpoints' times are sent, too"
    assert sorted(answer(kept.pins)) == sorted([*begin, *first])
    assert kept.pins.unsent() == []
    kept.pins.pin("chat", 2, "blue")
    sent = kept.pins.unsent()
    kept.pins.pin("chat", 2, "green")
    kept.pins.sent(sent)
    assert kept.pins.unsent() == [Pinned("chat", "green", 2000.0, [2])], "changed while it was under way"


def test_a_new_controller_gets_this_routers_own_pins_only() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "blue")
    kept.pins.heard(Pinned("chat", "green", 2000.0, [2]))
    answer(kept.pins)
    kept.pins.send_again()
    assert [pinned for pinned in answer(kept.pins) if pinned.conversations] == [Pinned("chat", "blue", 2000.0, [1])]


def test_many_pins_go_in_parts() -> None:
    kept = PinsWithClock(most=3 * MOST_AT_ONCE)
    for conversation in range(MOST_AT_ONCE + 5):
        kept.pins.pin("chat", conversation, "blue")
    parts = [[pinned for pinned in answer(kept.pins) if pinned.conversations] for _ in range(3)]
    assert [[len(pinned.conversations) for pinned in part] for part in parts] == [[MOST_AT_ONCE], [5], []]


def test_pins_of_a_change_not_yet_delivered_are_kept_and_expired_ones_are_not() -> None:
    kept = PinsWithClock()
    kept.pins.heard(Pinned("new", "blue", 1500.0, [1]))
    kept.pins.heard(Pinned("past", "blue", 1000.0, [1]))
    assert (kept.pins.deployment("new", 1), kept.pins.deployment("past", 1)) == ("blue", None)
    kept.now = 1500.0
    kept.pins.expire()
    assert kept.pins.deployment("new", 1) is None


def test_this_routers_newer_pin_is_not_overwritten_by_older_ones_of_others() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "green")
    kept.pins.heard(Pinned("chat", "blue", 2000.0, [1]))
    assert kept.pins.deployment("chat", 1) == "green"


def test_a_pin_that_comes_too_late_is_a_miss() -> None:
    kept = PinsWithClock()
    kept.pins.follows_earlier_weights("chat", 1, "blue")
    kept.pins.follows_earlier_weights("chat", 2, "blue")
    kept.pins.heard(Pinned("chat", "green", 2000.0, [1, 3]))
    kept.pins.heard(Pinned("chat", "blue", 2000.0, [2]))
    assert kept.misses == [("chat", "late")]
    kept.pins.heard(Pinned("chat", "green", 2000.0, [1]))
    assert kept.misses == [("chat", "late")], "counted once"


def test_conversations_of_a_stopped_deployment_can_be_moved_for_good() -> None:
    kept = PinsWithClock()
    kept.pins.pin("chat", 1, "green")
    kept.pins.pin("other", 1, "green")
    answer(kept.pins)
    kept.pins.pin("chat", 2, "green")
    kept.pins.heard(Pinned("chat", "green", 2000.0, [3]))
    kept.pins.heard(Pinned("chat", "red", 2000.0, [4]))
    kept.pins.move("chat", {"green": "blue"})
    assert [kept.pins.deployment("chat", conversation) for conversation in (1, 2, 3, 4)] == [
        "blue",
        "blue",
        "blue",
        "red",
    ]
    assert kept.pins.deployment("other", 1) == "green"
    assert answer(kept.pins) == [Pinned("chat", "blue", 2000.0, [2, 1])]
    kept.pins.move("nowhere", {"green": "blue"})
