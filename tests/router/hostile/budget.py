"""The number of test cases: 400 in every run, always the same ones; 20,000 new ones where SWITCHYARD_NIGHTLY=1."""

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from tests.conftest import NIGHTLY

CASES = 20_000 if NIGHTLY else 400

Case = TypeVar("Case")


def attempt(strategy: SearchStrategy[Case], share: float, check: Callable[[Case], None]) -> None:
    """Tries `share` of all cases; raises the error of `check` for the smallest failing case."""
    wanted = round(CASES * share)
    tried = 0

    @settings(
        max_examples=wanted,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(strategy)
    def once(case: Case) -> None:
        nonlocal tried
        tried += 1
        check(case)

    once()
    assert tried >= wanted, f"only {tried} cases of {wanted}"
