"""Stops and overrides decide before the weights, and move no other request.

The keys that a change of weights moves; every router and every process agrees on them.

Overrides: units that are assigned to a deployment.

A stop moves its deployment's traffic to control, and changes nothing else.

The weights that running conversations follow after changes, as a router sees them.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from math import sqrt
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from app.config.endpoints import Override
from app.exposures.identity import Hashes
from app.routing.conversations import PinnedConversations
from app.routing.rules import (
    NO_CONVERSATION,
    ConversationTurn,
    Earlier,
    GracePeriod,
    InForce,
    IsOpen,
    Overrides,
    Rules,
    choice,
    current_rules,
    effective,
    made_up_keys,
    moved,
    same,
    stops_of,
    with_share,
)
from app.routing.traffic import Decision, rendezvous
from tests.support.processes.project import ROOT

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


def unasked() -> ConversationTurn:
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
        self.window = GracePeriod("chat", earlier or (Earlier(BEFORE, NOW + 60),), withdrawn, able, self.pins)

    def decided(
        self, key: str, turn: ConversationTurn, *, is_open: IsOpen = closed, stops: Mapping[str, str] = {}
    ) -> Decision:
        return Rules(TRAFFIC, stops=stops, window=self.window).decide(key, Random(1), is_open, lambda: turn)

    def answers(self, key: str, turn: ConversationTurn, **more: Any) -> tuple[str, str]:
        said = self.decided(key, turn, **more)
        return said.deployment, said.reason


MOVED = next(key for key in KEYS if rendezvous(key, TRAFFIC) == "green")
STAYS = next(key for key in KEYS if rendezvous(key, TRAFFIC) == "blue")
RUNNING, FIRST = ConversationTurn(True, 1), ConversationTurn(False, 1)


def test_a_running_conversation_follows_the_weights_before_and_a_new_one_the_present() -> None:
    after = After()
    assert after.answers(MOVED, RUNNING) == ("blue", "pinned")
    assert after.answers(MOVED, FIRST) == ("green", "sticky")
    assert after.answers(MOVED, RUNNING) == ("green", "sticky"), "it is known now"
    assert (
        after.answers(STAYS, ConversationTurn(False, 2))
        == after.answers(STAYS, ConversationTurn(True, 2))
        == ("blue", "sticky")
    )
    assert after.pins.sizes() == {"chat": 1}, "only conversations that would move are pinned"
    after.now = NOW + 60
    assert after.decided(MOVED, RUNNING).deployment == "green"
    assert after.answers(MOVED, ConversationTurn(True, 3)) == ("green", "sticky")


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
    assert after.answers(MOVED, ConversationTurn(True, 2)) == ("blue", "pinned")
    assert after.misses == ["stopped"], "a pin that is not kept"


def test_a_stop_moves_pinned_conversations_to_control() -> None:
    after = After()
    after.pins.pin("chat", 1, "red")
    assert after.answers(MOVED, RUNNING, stops={"red": "blue"}) == ("blue", "pinned")
    assert after.answers(MOVED, RUNNING, stops={"red": "blue"}, is_open=lambda name: name == "blue") == (
        "red",
        "pinned",
    )


def test_a_deployment_that_is_gone_or_failing_is_not_followed() -> None:
    after = After(able={"green", "red"})
    assert after.answers(MOVED, RUNNING) == ("green", "sticky")
    after.pins.pin("chat", 1, "red")
    assert after.answers(MOVED, RUNNING, is_open=lambda name: name == "red") == ("green", "sticky")
    assert after.misses == ["gone", "failing"]


def test_weights_are_those_of_the_plan_where_nothing_is_stopped() -> None:
    weights: Mapping[str, int] = decided(Rules(TRAFFIC, overrides=overrides(ann="red")), "bob").weights
    assert weights == TRAFFIC


KEYS_MOVES = [f"user-{number}" for number in range(300)]

weights = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(lambda them: sum(them) > 0)


def shares(numbers: list[int]) -> dict[str, int]:
    """Whole percentages that sum to 100, as close to the proportions of the numbers as possible."""
    cuts = [0, *(round(100 * sum(numbers[: place + 1]) / sum(numbers)) for place in range(len(numbers)))]
    return {name: high - low for name, low, high in zip("abcd", cuts, cuts[1:], strict=False)}


@given(weights, weights)
@settings(max_examples=60)
def test_a_key_moves_only_to_a_deployment_that_grew_by_a_larger_factor(old: list[int], new: list[int]) -> None:
    before, after = shares(old), shares(new)
    for left, reached in moved(KEYS_MOVES, choice(before), choice(after)).pairs:
        assert after[reached] * before[left] > after[left] * before[reached]


@given(st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=4, deadline=None)  # each chooses for 20,000 keys
def test_with_two_deployments_exactly_the_needed_share_moves(old: int, new: int) -> None:
    before, after = {"a": old, "b": 100 - old}, {"a": new, "b": 100 - new}
    moves = moved(made_up_keys(), choice(before), choice(after))
    needed = abs(new - old) / 100
    assert moves.keys == 20_000
    assert abs(moves.share - needed) <= 4.5 * sqrt(needed * (1 - needed) / moves.keys)
    assert list(moves.pairs) in ([], [("a", "b") if new < old else ("b", "a")])


def test_with_several_deployments_little_more_moves_than_must() -> None:
    moves = moved(made_up_keys(), choice({"a": 10, "b": 20, "c": 70}), choice({"a": 20, "b": 60, "c": 20}))
    assert 0.49 < moves.share < 0.53


def test_nothing_moves_without_keys_or_without_a_change() -> None:
    assert moved([], choice({"a": 100}), choice({"b": 100})) == (0, {})
    assert moved([], choice({"a": 100}), choice({"b": 100})).share == 0.0
    assert moved(KEYS_MOVES, choice({"a": 50, "b": 50}), choice({"b": 50, "a": 50})).pairs == {}


def test_a_key_with_an_override_stays_or_moves_with_it() -> None:
    units = {f"user-{number}": number for number in range(300)}
    override = Overrides([Override(unit=f"{7:016x}", deployment="b")], units.__getitem__, lambda: 0.0)
    to_a, to_b = {"a": 100, "b": 0}, {"a": 0, "b": 100}
    assert moved(KEYS_MOVES, choice(to_a, override), choice(to_b, override)).pairs == {("a", "b"): 299}
    assert moved(KEYS_MOVES, choice(to_a), choice(to_a, override)).pairs == {("a", "b"): 1}


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_every_process_agrees(seed: str) -> None:
    code = (
        "import json, sys; from app.routing.traffic import rendezvous; keys, traffic = json.load(sys.stdin); "
        "print(json.dumps([rendezvous(key, traffic) for key in keys]))"
    )
    traffic = {"a": 10, "b": 60, "c": 30}
    said = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([KEYS_MOVES, traffic]),
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(said.stdout) == [rendezvous(key, dict(reversed(traffic.items()))) for key in KEYS_MOVES]


def test_with_many_deployments_fewer_keys_are_made_up() -> None:
    assert [len(made_up_keys(count)) for count in (1, 10, 20, 200)] == [20_000, 20_000, 10_000, 1_000]
    assert made_up_keys(200) == made_up_keys(2)[:1_000]


UNIT = Hashes(b"secret").unit


def test_a_unit_is_found_by_its_key_until_the_time_is_over() -> None:
    now = 100.0
    units = [
        Override(unit=f"{UNIT(key):016x}", deployment="green", until=until)
        for key, until in (("ann", 200.0), ("bob", None))
    ]
    overrides = Overrides(units, UNIT, lambda: now)
    assert [overrides.deployment(key) for key in ("ann", "bob", "cy")] == ["green", "green", None]
    now = 200.0
    assert [overrides.deployment(key) for key in ("ann", "bob", "cy")] == [None, "green", None]


class StoppedTraffic(NamedTuple):
    deployment: str
    control: str = "blue"
    endpoint: str = "chat"


TRAFFIC_STOPS = {"blue": 30, "green": 60, "red": 10, "idle": 0}


def test_a_stopped_deployments_share_is_controls() -> None:
    stops = stops_of("chat", TRAFFIC_STOPS, [StoppedTraffic("green")])
    assert stops == {"green": "blue"}
    assert effective(TRAFFIC_STOPS, stops) == {"blue": 90, "green": 0, "red": 10, "idle": 0}
    both = stops_of("chat", TRAFFIC_STOPS, [StoppedTraffic("green"), StoppedTraffic("red")])
    assert effective(TRAFFIC_STOPS, both) == {"blue": 100, "green": 0, "red": 0, "idle": 0}
    assert effective(TRAFFIC_STOPS, {"green": "idle"})["idle"] == 60, "the control has no share itself"


def test_a_stop_of_an_unknown_deployment_is_ignored() -> None:
    nothing = [
        StoppedTraffic("gone"),
        StoppedTraffic("green", "gone"),
        StoppedTraffic("green", endpoint="other"),
        StoppedTraffic("red", "red"),
    ]
    assert stops_of("chat", TRAFFIC_STOPS, nothing) == {}
    assert stops_of("chat", TRAFFIC_STOPS, [StoppedTraffic("green"), StoppedTraffic("red", "green")]) == {
        "green": "blue"
    }


def test_a_stop_of_a_deployment_without_a_share_changes_nothing() -> None:
    stops = stops_of("chat", TRAFFIC_STOPS, [StoppedTraffic("idle")])
    assert stops == {"idle": "blue"}
    assert with_share(TRAFFIC_STOPS, stops) == {}
    assert effective(TRAFFIC_STOPS, stops) == TRAFFIC_STOPS


names = st.sampled_from("abcdef")


@given(
    st.dictionaries(names, st.integers(0, 100), min_size=1),
    st.lists(st.builds(StoppedTraffic, names, names, st.sampled_from(["chat", "other"])), max_size=6),
)
def test_stops_take_away_and_no_percent_is_lost(traffic: dict[str, int], stops: list[StoppedTraffic]) -> None:
    stopped = stops_of("chat", traffic, stops)
    weights = effective(traffic, stopped)
    assert sum(weights.values()) == sum(traffic.values())
    assert all(weights[deployment] == 0 for deployment in stopped)
    grown = {name for name in traffic if weights[name] > traffic[name]}
    assert grown <= set(stopped.values()), "only a control gets more"
    assert effective(weights, stopped) == weights, "applied twice"
    assert stops_of("chat", traffic, [*stops, *stops]) == stopped


BLUE, HALF, GREEN = {"blue": 100, "green": 0}, {"blue": 50, "green": 50}, {"blue": 0, "green": 100}


def after(before: InForce | None, weights: Mapping[str, int], *, now: float = 1000.0, **more: Any) -> InForce:
    given: dict[str, Any] = {"stops": {}, "listed": [], "pin_s": 60.0, **more}
    return current_rules(before, weights, given.pop("stops"), given.pop("listed"), now=now, **given)


def test_a_new_router_follows_the_plans_earlier_weights() -> None:
    assert after(None, HALF) == InForce(HALF, {}, [])
    listed = [Earlier(BLUE, 999.0), Earlier(GREEN, 1001.0)]
    assert after(None, HALF, listed=listed).earlier == [Earlier(GREEN, 1001.0)], "expired weights are left out"


def test_a_change_by_a_file_is_seen_by_a_router_that_runs() -> None:
    running = after(None, BLUE)
    assert after(running, BLUE).earlier == []
    assert after(running, {"blue": 100}).earlier == [], "a deployment without a share counts as absent"
    changed = after(running, HALF)
    assert changed.earlier == [Earlier(BLUE, 1060.0)]
    assert after(changed, HALF, now=1030.0).earlier == [Earlier(BLUE, 1060.0)], "the same weights again are no change"
    assert after(changed, HALF, now=1060.0).earlier == []


def test_a_change_restarts_the_time_of_all_weights_still_followed() -> None:
    changed = after(after(None, BLUE), HALF)
    twice = after(changed, GREEN, now=1030.0)
    assert twice.earlier == [Earlier(BLUE, 1090.0), Earlier(HALF, 1090.0)]
    assert after(changed, GREEN, now=1061.0).earlier == [Earlier(HALF, 1121.0)]


def test_weights_of_the_plan_and_weights_that_were_seen_are_merged() -> None:
    running = after(None, BLUE)
    listed = [Earlier(BLUE, 1059.0)]
    assert after(running, HALF, listed=listed).earlier == [Earlier(BLUE, 1060.0)]
    by_file = after(running, HALF)
    then = after(by_file, GREEN, now=1010.0, listed=[Earlier(HALF, 1070.0)])
    assert then.earlier == [Earlier(BLUE, 1070.0), Earlier(HALF, 1070.0)], "the plan does not include the previous file"
    skipped = after(running, GREEN, listed=[Earlier(BLUE, 1060.0), Earlier(HALF, 1060.0)])
    assert [replaced.weights for replaced in skipped.earlier] == [BLUE, HALF], "a plan that this router never served"


def test_going_back_and_forth_keeps_each_weights_once() -> None:
    state = after(None, BLUE)
    for number in range(6):
        state = after(state, HALF if number % 2 == 0 else BLUE, now=1000.0 + number)
    assert [replaced.weights for replaced in state.earlier] == [BLUE, HALF]


def test_without_a_pinning_time_no_earlier_weights_are_followed() -> None:
    assert after(after(None, BLUE), HALF, pin_s=0.0).earlier == []


def test_a_stop_is_no_change_and_lifting_one_is() -> None:
    stopped = after(after(None, HALF), HALF, stops=STOPPED)
    assert (stopped.stops, stopped.earlier) == (STOPPED, [])
    assert after(stopped, HALF).earlier == [Earlier(HALF, 1060.0, STOPPED)], "moved conversations stay"
    assert after(stopped, BLUE, stops=STOPPED).earlier == [Earlier(HALF, 1060.0, STOPPED)]
    assert after(after(stopped, BLUE, stops=STOPPED), BLUE).earlier == [Earlier(HALF, 1060.0, STOPPED)]


def test_no_conversation_returns_to_a_stopped_deployment_when_the_plan_has_taken_over() -> None:
    stopped = after(after(None, HALF), HALF, stops=STOPPED)
    planned = after(stopped, BLUE, stops=STOPPED, listed=[Earlier(HALF, 1060.0)])
    lifted = after(planned, BLUE, listed=[Earlier(HALF, 1060.0)])
    assert lifted.earlier == [Earlier(HALF, 1060.0, STOPPED)]


def test_a_stop_after_a_change_is_kept_with_the_followed_weights() -> None:
    changed = after(after(None, HALF), GREEN)
    stopped = after(changed, GREEN, stops=STOPPED, now=1001.0)
    lifted = after(stopped, GREEN, now=1002.0)
    assert lifted.earlier == [Earlier(HALF, 1062.0, STOPPED), Earlier(GREEN, 1062.0, STOPPED)]


def test_weights_that_draw_the_same_are_equal() -> None:
    assert same({"a": 100}, {"a": 100, "b": 0})
    assert not same({"a": 99, "b": 1}, {"a": 100})


def test_a_withdrawal_is_remembered_when_the_plan_no_longer_has_it() -> None:
    planned = after(None, BLUE, listed=[Earlier(HALF, 1060.0)], withdrawn=STOPPED)
    assert planned.earlier == [Earlier(HALF, 1060.0, STOPPED)]
    assert after(planned, BLUE).earlier == [Earlier(HALF, 1060.0, STOPPED)]
    received = after(after(None, BLUE, listed=[Earlier(HALF, 1060.0)]), BLUE, listed=[Earlier(HALF, 1060.0, STOPPED)])
    assert received.earlier == [Earlier(HALF, 1060.0, STOPPED)], "also on a router that had not received it"


def test_a_conversation_that_was_moved_twice_is_where_the_second_stop_moved_it() -> None:
    moved = after(None, BLUE, listed=[Earlier(HALF, 1060.0, STOPPED)], withdrawn={"blue": "red"})
    assert moved.earlier[0].stops == {"green": "red", "blue": "red"}
