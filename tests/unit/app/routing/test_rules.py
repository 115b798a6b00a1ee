"""Stops and overrides decide before the weights, and move no other request."""

from collections import Counter
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from app.config.endpoints import Override
from app.routing.conversations import PinnedConversations
from app.routing.rules import NO_CONVERSATION, Earlier, IsOpen, Overrides, Rules, Turn, Window
from app.routing.traffic import Decision, rendezvous

TRAFFIC = {"blue": 30, "green": 60, "red": 10}
STOPPED = {"green": "blue"}
KEYS = [f"key-{number}" for number in range(2000)]


def overrides(**units: str) -> Overrides:
    listed = [
        Override(unit=f"{number:016x}", deployment=deployment) for number, deployment in enumerate(units.values())
    ]
    return Overrides(listed, lambda key: list(units).index(key) if key in units else 999, lambda: 0.0)


def closed(name: str) -> bool:
    return False


def unasked() -> Turn:
    raise AssertionError("the conversation is not read outside the time after a change")


def decided(rules: Rules, key: str | None, random: Random | None = None) -> Decision:
    return rules.decide(key, random or Random(1), closed, unasked)


def test_only_the_stopped_deployments_keys_move_and_all_of_them_to_control() -> None:
    rules = Rules(TRAFFIC, stops=STOPPED)
    for key in KEYS:
        before = rendezvous(key, TRAFFIC)
        said = decided(rules, key)
        assert said.deployment == ("blue" if before == "green" else before)
        assert (said.reason, said.weights) == ("sticky", {"blue": 90, "green": 0, "red": 10})
        assert list(said.without) == ["green"]


def test_requests_without_a_key_are_drawn_by_the_weights_in_force() -> None:
    random, rules = Random(5), Rules(TRAFFIC, stops=STOPPED)
    counts = Counter(decided(rules, None, random).deployment for _ in range(5000))
    assert counts.keys() == {"blue", "red"}
    assert chisquare([counts["blue"], counts["red"]], [4500, 500]).pvalue > 0.001
    assert decided(rules, None).reason == "traffic"


def test_a_stop_beats_an_override_which_beats_the_weights() -> None:
    own = overrides(ann="green", bob="red")
    assert [decided(Rules(TRAFFIC, overrides=own), key).deployment for key in ("ann", "bob")] == ["green", "red"]
    said = decided(Rules(TRAFFIC, overrides=own, stops=STOPPED), "ann")
    assert (said.deployment, said.reason) == ("blue", "override"), "the unit is not random"
    assert decided(Rules(TRAFFIC, overrides=own, stops=STOPPED), "bob").deployment == "red"


@given(st.sampled_from([*KEYS[:50], None]), st.integers(0, 100))
def test_a_stop_is_not_applied_while_controls_breaker_is_open(key: str | None, seed: int) -> None:
    own = overrides(ann="green")
    with_stops = Rules(TRAFFIC, overrides=own, stops=STOPPED).decide(
        key, Random(seed), lambda name: name == "blue", unasked
    )
    without = Rules(TRAFFIC, overrides=own).decide(key, Random(seed), closed, unasked)
    assert with_stops == without._replace(unstopped=True)


def test_another_breaker_that_is_open_changes_nothing() -> None:
    said = Rules(TRAFFIC, stops=STOPPED).decide("key", Random(1), lambda name: name != "blue", unasked)
    assert said == decided(Rules(TRAFFIC, stops=STOPPED), "key")
    assert not said.unstopped


# --- the time after a change -----------------------------------------------------------------------

BEFORE = {"blue": 100, "green": 0, "red": 0}
NOW = 1000.0


class After:
    """The time after a change from `BEFORE` to `TRAFFIC`."""

    def __init__(self, *earlier: Earlier, withdrawn: Mapping[str, str] = {}, able: Collection[str] = TRAFFIC) -> None:
        self.now = NOW
        self.misses: list[str] = []
        self.pins = PinnedConversations(lambda endpoint, cause: self.misses.append(cause), lambda: self.now)
        self.pins.configure({"chat": NOW + 60})
        self.window = Window("chat", earlier or (Earlier(BEFORE, NOW + 60),), withdrawn, able, self.pins)

    def decided(self, key: str, turn: Turn, *, is_open: IsOpen = closed, stops: Mapping[str, str] = {}) -> Decision:
        return Rules(TRAFFIC, stops=stops, window=self.window).decide(key, Random(1), is_open, lambda: turn)

    def answers(self, key: str, turn: Turn, **more: Any) -> tuple[str, str]:
        said = self.decided(key, turn, **more)
        return said.deployment, said.reason


MOVED = next(key for key in KEYS if rendezvous(key, TRAFFIC) == "green")
STAYS = next(key for key in KEYS if rendezvous(key, TRAFFIC) == "blue")
RUNNING, FIRST = Turn(True, 1), Turn(False, 1)


def test_a_running_conversation_follows_the_weights_before_and_a_new_one_the_present() -> None:
    after = After()
    assert after.answers(MOVED, RUNNING) == ("blue", "pinned")
    assert after.answers(MOVED, FIRST) == ("green", "sticky")
    assert after.answers(MOVED, RUNNING) == ("green", "sticky"), "it is known now"
    assert after.answers(STAYS, Turn(False, 2)) == after.answers(STAYS, Turn(True, 2)) == ("blue", "sticky")
    assert after.pins.sizes() == {"chat": 1}, "only conversations that would move are pinned"
    after.now = NOW + 60
    assert after.decided(MOVED, RUNNING).deployment == "green"
    assert after.answers(MOVED, Turn(True, 3)) == ("green", "sticky")


def test_requests_without_a_conversation_are_not_pinned() -> None:
    after = After()
    assert after.answers(MOVED, NO_CONVERSATION) == ("green", "sticky")
    assert after.pins.sizes() == {}


def test_the_weights_before_the_oldest_change_are_followed_as_long_as_they_count() -> None:
    all_red = {"blue": 0, "green": 0, "red": 100}
    after = After(Earlier(BEFORE, NOW + 10), Earlier(all_red, NOW + 60))
    assert after.answers(MOVED, RUNNING) == ("blue", "pinned")
    after.now = NOW + 10
    assert after.answers(MOVED, RUNNING) == ("red", "pinned")


def test_running_conversations_leave_a_withdrawn_deployment() -> None:
    after = After(Earlier({"blue": 0, "green": 0, "red": 100}, NOW + 60), withdrawn={"red": "blue"})
    assert after.answers(MOVED, RUNNING) == ("blue", "pinned")
    after.pins.pin("chat", 2, "red")
    assert after.answers(MOVED, Turn(True, 2)) == ("blue", "pinned")
    assert after.misses == ["stopped"], "a pin that is not kept"


def test_a_stop_moves_pinned_conversations_to_control() -> None:
    after = After()
    after.pins.pin("chat", 1, "red")
    assert after.answers(MOVED, RUNNING, stops={"red": "blue"}) == ("blue", "pinned")
    assert after.answers(MOVED, RUNNING, stops={"red": "blue"}, is_open=lambda it: it == "blue") == ("red", "pinned")


def test_a_deployment_that_is_gone_or_failing_is_not_followed() -> None:
    after = After(able={"green", "red"})
    assert after.answers(MOVED, RUNNING) == ("green", "sticky")
    after.pins.pin("chat", 1, "red")
    assert after.answers(MOVED, RUNNING, is_open=lambda it: it == "red") == ("green", "sticky")
    assert after.misses == ["gone", "failing"]


def test_weights_are_those_of_the_plan_where_nothing_is_stopped() -> None:
    weights: Mapping[str, int] = decided(Rules(TRAFFIC, overrides=overrides(ann="red")), "bob").weights
    assert weights == TRAFFIC
