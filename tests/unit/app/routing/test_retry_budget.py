"""The budget of retries, and each caller's part of it."""

from hypothesis import given
from hypothesis import strategies as st

from app.routing.resilience import RESERVE, SHARE, RetryBudget

CALLER = "one"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=2000))
def test_retries_never_exceed_the_reserve_and_a_tenth_of_the_requests(requests: list[tuple[str, bool]]) -> None:
    budget, retries = RetryBudget(), 0
    for caller, fails in requests:
        budget.request(caller)
        retries += fails and budget.take(caller)
    assert retries <= RESERVE + SHARE * len(requests) + 1e-6


def test_quiet_times_do_not_add_to_the_reserve() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.request(CALLER)
    assert sum(budget.take(CALLER) for _ in range(100)) == RESERVE / 2


@given(st.lists(st.booleans(), max_size=300))
def test_one_caller_uses_at_most_half_of_the_reserve(fails: list[bool]) -> None:
    budget = RetryBudget()
    for it in fails:
        budget.request("attacker")
        if it:
            budget.take("attacker")
    assert sum(budget.take(CALLER) for _ in range(100)) >= RESERVE / 4
    assert [budget.take(f"caller {number}") for number in range(3)] == [True] * 3


def test_callers_that_fail_all_the_time_retry_a_tenth_each() -> None:
    budget, retries = RetryBudget(), {"one": 0, "two": 0, "three": 0}
    for _ in range(2000):
        for caller in retries:
            budget.request(caller)
            retries[caller] += budget.take(caller)
    assert all(200 <= count <= 200 + RESERVE / 2 for count in retries.values())


def test_the_debts_of_callers_that_left_are_repaid_by_the_others() -> None:
    budget = RetryBudget()
    while any([budget.take(f"caller {number}") for number in range(100)]):
        pass
    assert not budget.take(CALLER)
    for _ in range(round(RESERVE / SHARE) + 100):
        budget.request(CALLER)
    assert sum(budget.take(CALLER) for _ in range(100)) == RESERVE / 2
