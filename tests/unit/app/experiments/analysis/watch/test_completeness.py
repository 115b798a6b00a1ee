import numpy as np

from app.experiments.analysis.guardrails import FEW, RareEvents
from app.experiments.analysis.metrics import Values
from app.experiments.analysis.traffic import Completeness

HALF = np.array([[50, 50]])


def add(found: Completeness, arm: int, units: range, missing: bool = True) -> None:
    size = len(units)
    found.add(
        np.full(size, missing), np.array(units, np.uint64), np.zeros(size), np.zeros(size, np.int32),
        np.full(size, arm, np.int8), HALF,
    )  # fmt: skip


def test_values_that_are_missing_more_often_on_either_arm_are_an_alarm() -> None:
    for arm in (0, 1):
        found = Completeness(1)
        add(found, arm, range(12))
        assert not found.is_new_alarm()
        add(found, arm, range(12, 25))
        assert found.is_new_alarm()


def test_values_that_are_missing_on_both_arms_alike_are_no_alarm() -> None:
    found = Completeness(1)
    add(found, 0, range(500))
    add(found, 1, range(500, 1000))
    add(found, 1, range(1000, 2000), missing=False)
    assert not found.is_new_alarm()
    assert found.units == (500, 500)


def test_the_exact_test_ends_where_both_arms_have_enough_events() -> None:
    rare = RareEvents(1)

    def add_rows(arm: int, units: range) -> None:
        size = len(units)
        ones = np.ones(size)
        values = Values(ones, ones, ones > 0, ones < 0)
        unit = np.array(units, np.uint64)
        rare.add(values, unit, np.zeros(size), np.zeros(size, np.int32), np.full(size, arm, np.int8))

    add_rows(0, range(40))
    add_rows(1, range(40, 40 + FEW - 1))
    assert rare.applies
    effect, ln_e = rare.effect(HALF, 0.05)
    assert effect.upper is not None
    assert effect.upper < 0
    assert ln_e > 3
    add_rows(1, range(100, 101))
    assert not rare.applies
