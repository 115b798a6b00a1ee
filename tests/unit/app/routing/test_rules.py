"""Stops and overrides decide before the weights, and move nobody else."""

from collections import Counter
from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from app.config.plans import Override
from app.routing.overrides import Overrides
from app.routing.rules import Rules, Turn
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
    raise AssertionError("outside the time after a change nobody looks into the conversation")


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
    assert (said.deployment, said.reason) == ("blue", "override"), "the unit is not a random one"
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


def test_weights_are_those_of_the_plan_where_nothing_is_stopped() -> None:
    weights: Mapping[str, int] = decided(Rules(TRAFFIC, overrides=overrides(ann="red")), "bob").weights
    assert weights == TRAFFIC
