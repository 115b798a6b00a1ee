"""The budget of copies: never exceeded within a minute, and used up when there is enough demand."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.mirror.mirrors import PERIOD_S, Charge, TokenBudget

LIMIT = 20_000


def test_a_minute_costs_its_budget_at_most() -> None:
    budget = TokenBudget()
    taken = [budget.take(1000, 3500, now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert [it is not None for it in taken] == [True, True, True, False]
    assert budget.take(500, 3500, 3.0) is not None
    assert budget.take(1000, 3500, 59.9) is None
    assert budget.take(1000, 3500, 60.0) is not None
    assert budget.take(1, None, 60.0) is not None
    assert budget.take(3501, 3500, 500.0) is None


def test_the_real_cost_of_a_call_replaces_the_estimate() -> None:
    budget = TokenBudget()
    charge = budget.take(1000, 3000, 0.0)
    assert charge is not None
    budget.settle(charge, 0.0, 1.0)
    assert budget.take(3000, 3000, 1.0) is not None
    unknown = TokenBudget()
    kept = unknown.take(1000, 1500, 0.0)
    assert kept is not None
    unknown.settle(kept, None, 1.0)
    assert unknown.take(1000, 1500, 1.0) is None


def test_the_excess_of_a_call_longer_than_a_minute_counts_when_it_ends() -> None:
    budget = TokenBudget()
    charge = budget.take(1000, 3000, 0.0)
    assert charge is not None
    assert budget.take(1, 3000, 70.0) is not None
    budget.settle(charge, 3500.0, 70.0)
    assert budget.take(600, 3000, 71.0) is None
    assert budget.take(600, 3000, 130.5) is not None


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    talks=st.floats(0.2, 8.0),
    size=st.integers(20, 200),
    every=st.floats(0.05, 0.3),
    took=st.floats(0.0, 5.0),
    at_once=st.integers(1, 4),
)
def test_the_budget_is_kept_within_5_percent_however_wrong_estimates_are(
    seed: int, talks: float, size: int, every: float, took: float, at_once: int
) -> None:
    """`talks`: the shadow's tokens per token that the primary's answer leads one to expect."""
    random, budget, now = Random(seed), TokenBudget(), 0.0
    running: list[tuple[float, Charge, float]] = []
    spent: list[tuple[float, float]] = []
    while now < 10 * PERIOD_S:
        for ending in [it for it in running if it[0] <= now]:
            running.remove(ending)
            budget.settle(ending[1], ending[2], now)
        if len(running) < at_once:
            estimate = size * random.uniform(0.5, 1.5)
            if (charge := budget.take(estimate, LIMIT, now)) is not None:
                cost = estimate * talks * random.uniform(0.7, 1.3)
                running.append((now + took, charge, cost))
                spent.append((now, cost))
        now += every
    first_minute = [cost for at, cost in spent if at < PERIOD_S]
    assert sum(first_minute) <= 1.05 * LIMIT
    for begin in range(0, int(9 * PERIOD_S), 7):
        assert sum(cost for at, cost in spent if begin <= at < begin + PERIOD_S) <= 1.05 * LIMIT
    most = min(PERIOD_S / every, PERIOD_S / max(took, every) * at_once) * size * talks
    later = sum(cost for at, cost in spent if at >= PERIOD_S) / 9
    assert later >= 0.7 * min(LIMIT, most)


@pytest.mark.parametrize("tokens", [0.0, 1e9])
def test_a_single_odd_call_does_not_spoil_the_estimates(tokens: float) -> None:
    budget = TokenBudget()
    charge = budget.take(100, LIMIT, 0.0)
    assert charge is not None
    budget.settle(charge, tokens, 0.0)
    assert budget.take(LIMIT / 10, LIMIT, 100.0) is not None
