from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.at_risk import ALWAYS, AtRisk, Units
from app.experiments.statistics.events import always_failing_at

EXPOSURES = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 1), st.integers(0, 2), st.booleans()), max_size=60
)
"""Each one's unit, whether it had the event, its set of weights, its arm, and whether its plan drew the arm."""

WEIGHTS = np.array([[60, 30, 10], [20, 40, 40]], np.int64)


def added(exposures: list[tuple[int, bool, int, int, bool]], parts: int, max_units: int = 100) -> AtRisk:
    units = Units(max_units)
    at_risk = AtRisk(units, 3)
    for part in np.array_split(np.arange(len(exposures)), parts):
        if not len(part):
            continue
        unit, hit, sets, arm, known = (np.array(column) for column in zip(*(exposures[i] for i in part), strict=True))
        sets, arm = sets.astype(np.int32), arm.astype(np.int8)
        number = units.add(unit.astype(np.uint64), sets, arm, known)
        at_risk.add(number, hit, sets, arm, known, ended=True)
    return at_risk


@given(EXPOSURES, st.integers(1, 8))
def test_requests_per_unit_are_counted_until_the_first_event_in_any_batches(
    exposures: list[tuple[int, bool, int, int, bool]], parts: int
) -> None:
    requests, entries = np.zeros((2, 3)), np.zeros((2, 3))
    had: set[int] = set()
    place: dict[int, tuple[int, int]] = {}
    for unit, hit, sets, arm, known in exposures:
        if unit not in had and known:
            requests[sets, arm] += 1
            entries[sets, arm] += place.get(unit) != (sets, arm)
            place[unit] = sets, arm
        had |= {unit} if hit else set()
    counts = added(exposures, parts)
    for treatment in (1, 2):
        busier = counts.busier(treatment) if exposures else np.zeros(0)
        for sets, ratio in enumerate(busier.tolist()):
            if entries[sets, 0] and entries[sets, treatment]:
                ratios = requests[sets] / np.maximum(entries[sets], 1) * entries[sets, 0] / requests[sets, 0]
                assert ratio == pytest.approx(max(1.0, ratios[treatment]))
            else:
                assert ratio == 1.0


@given(EXPOSURES, st.integers(1, 8))
def test_a_unit_always_fails_by_its_first_requests_and_control_by_one(
    exposures: list[tuple[int, bool, int, int, bool]], parts: int
) -> None:
    drawn: dict[int, tuple[int, int, bool]] = {}
    outcomes: dict[int, list[bool]] = defaultdict(list)
    for unit, hit, sets, arm, known in exposures:
        of = drawn.setdefault(unit, (sets, arm, known))
        if of[2] and of[1] == arm:
            outcomes[unit].append(hit)
    fails = {
        unit
        for unit, hits in outcomes.items()
        if all(hits[: (need := ALWAYS if drawn[unit][1] else 1)]) and len(hits) >= need
    }
    counts = added(exposures, parts)
    for treatment in (1, 2):
        _, failing = counts.always_failing(treatment, WEIGHTS)
        assert failing == sum(drawn[unit][1] == treatment for unit in fails)


def test_units_that_are_dropped_are_never_counted_again() -> None:
    units = Units(max_units=12)
    unit = np.arange(16, dtype=np.uint64)
    ones = np.ones(16, np.bool_)
    units.add(unit, np.zeros(16, np.int32), np.ones(16, np.int8), ones)
    kept = units.thin()
    assert kept is not None
    assert units.kept(unit).sum() == len(kept) == len(units) < 16
    assert units.thin() is None


@pytest.mark.parametrize(("weights", "fails", "works"), [((50, 50), 5, 5), ((75, 25), 4, 6), ((95, 5), 3, 0)])
def test_a_handful_of_units_that_always_fail_is_evidence(weights: tuple[int, int], fails: int, works: int) -> None:
    exposures = [(unit, True, 0, 1, True) for unit in range(fails) for _ in range(ALWAYS)]
    exposures += [(fails + unit, False, 0, 0, True) for unit in range(works)]
    log_e_value, failing = added(exposures, 3).always_failing(1, np.array([weights], np.int64))
    assert failing == fails
    assert log_e_value >= always_failing_at(0.02)
