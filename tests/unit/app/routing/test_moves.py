"""The keys that a change of weights moves; every router and every process agrees on them."""

import json
import subprocess
import sys
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.endpoints import Override
from app.routing.rules import Overrides, choice, made_up_keys, moved
from app.routing.traffic import rendezvous
from tests.support.processes.project import ROOT

KEYS = [f"user-{number}" for number in range(300)]

weights = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(lambda them: sum(them) > 0)


def shares(numbers: list[int]) -> dict[str, int]:
    """Whole percentages that sum to 100, as close to the proportions of the numbers as possible."""
    cuts = [0, *(round(100 * sum(numbers[: place + 1]) / sum(numbers)) for place in range(len(numbers)))]
    return {name: high - low for name, low, high in zip("abcd", cuts, cuts[1:], strict=False)}


@given(weights, weights)
@settings(max_examples=60)
def test_a_key_moves_only_to_a_deployment_that_grew_by_a_larger_factor(old: list[int], new: list[int]) -> None:
    before, after = shares(old), shares(new)
    for left, reached in moved(KEYS, choice(before), choice(after)).pairs:
        assert after[reached] * before[left] > after[left] * before[reached]


@given(st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=4, deadline=None)  # each chooses for 20,000 keys
def test_with_two_deployments_exactly_the_needed_share_moves(old: int, new: int) -> None:
    before, after = {"a": old, "b": 100 - old}, {"a": new, "b": 100 - new}
    found = moved(made_up_keys(), choice(before), choice(after))
    needed = abs(new - old) / 100
    assert found.keys == 20_000
    assert abs(found.share - needed) <= 4.5 * sqrt(needed * (1 - needed) / found.keys)
    assert list(found.pairs) in ([], [("a", "b") if new < old else ("b", "a")])


def test_with_several_deployments_little_more_moves_than_must() -> None:
    found = moved(made_up_keys(), choice({"a": 10, "b": 20, "c": 70}), choice({"a": 20, "b": 60, "c": 20}))
    assert 0.49 < found.share < 0.53


def test_nothing_moves_without_keys_or_without_a_change() -> None:
    assert moved([], choice({"a": 100}), choice({"b": 100})) == (0, {})
    assert moved([], choice({"a": 100}), choice({"b": 100})).share == 0.0
    assert moved(KEYS, choice({"a": 50, "b": 50}), choice({"b": 50, "a": 50})).pairs == {}


def test_a_key_with_an_override_stays_or_moves_with_it() -> None:
    units = {f"user-{number}": number for number in range(300)}
    override = Overrides([Override(unit=f"{7:016x}", deployment="b")], units.__getitem__, lambda: 0.0)
    to_a, to_b = {"a": 100, "b": 0}, {"a": 0, "b": 100}
    assert moved(KEYS, choice(to_a, override), choice(to_b, override)).pairs == {("a", "b"): 299}
    assert moved(KEYS, choice(to_a), choice(to_a, override)).pairs == {("a", "b"): 1}


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_every_process_agrees(seed: str) -> None:
    code = (
        "import json, sys; from app.routing.traffic import rendezvous; keys, traffic = json.load(sys.stdin); "
        "print(json.dumps([rendezvous(key, traffic) for key in keys]))"
    )
    traffic = {"a": 10, "b": 60, "c": 30}
    said = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([KEYS, traffic]),
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(said.stdout) == [rendezvous(key, dict(reversed(traffic.items()))) for key in KEYS]


def test_with_many_deployments_fewer_keys_are_made_up() -> None:
    assert [len(made_up_keys(it)) for it in (1, 10, 20, 200)] == [20_000, 20_000, 10_000, 1_000]
    assert made_up_keys(200) == made_up_keys(2)[:1_000]
