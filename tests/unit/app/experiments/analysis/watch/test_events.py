import math

import numpy as np
import pytest

from app.experiments.analysis.guardrails import UnitDetector, UnitEvents
from app.experiments.statistics.events import Detector, EventEvidence, chance

HALF = np.array([[50, 50], [95, 5]])


def events(control: int, treated: int, weights: int = 0) -> UnitEvents:
    found = UnitEvents(1)
    arm = np.array([0] * control + [1] * treated, np.int8)
    unit = np.arange(len(arm), dtype=np.uint64)
    found.add(unit, np.zeros(len(arm)), np.full(len(arm), weights, np.int32), arm)
    return found


def test_a_unit_counts_once() -> None:
    found = UnitEvents(1)
    for at in (1.0, 2.0):
        found.add(
            np.array([5, 6], np.uint64), np.full(2, at, np.float64), np.zeros(2, np.int32), np.array([1, 0], np.int8)
        )
    assert found.units == (1, 1)


def test_events_of_other_treatments_do_not_count() -> None:
    found = UnitEvents(1)
    assert not found.add(np.array([5], np.uint64), np.zeros(1), np.zeros(1, np.int32), np.array([2], np.int8))


def test_the_evidence_is_that_of_the_events_one_by_one() -> None:
    found = UnitEvents(1)
    arms, sets = np.array([1, 1, 0, 1, 1, 1, 1], np.int8), np.array([1, 1, 1, 0, 0, 1, 1], np.int32)
    found.add(np.arange(7, dtype=np.uint64), np.arange(7, dtype=np.float64), sets, arms)
    expected = EventEvidence()
    expected.add(arms == 1, chance(HALF[sets, 1], HALF[sets, 0], 1.5))
    assert found.more(HALF, 1.5).ln_e == pytest.approx(expected.ln_e, abs=1e-9)


def test_more_and_less_are_mirror_images() -> None:
    assert events(3, 9).more(HALF, 1.0).ln_e == pytest.approx(events(9, 3).less(HALF, 1.0).ln_e)
    assert events(3, 9).difference(HALF) == pytest.approx(events(9, 3).difference(HALF))


@pytest.mark.parametrize(("weights", "control", "treated"), [(0, 4, 40), (1, 4, 40), (0, 40, 4), (0, 20, 20)])
def test_the_interval_of_the_rates_ratio_holds_the_estimate_and_excludes_1_only_with_evidence(
    weights: int, control: int, treated: int
) -> None:
    found = events(control, treated, weights)
    lift = found.lift(HALF, 0.05)
    expected = treated / control * (1 if weights == 0 else 19)
    assert lift.estimate == pytest.approx(expected - 1, rel=1e-3)
    assert lift.lower is not None
    assert lift.upper is not None
    assert lift.lower < expected - 1 < lift.upper
    for bound, evidence in ((lift.lower, found.more), (lift.upper, found.less)):
        assert evidence(HALF, bound + 1).ln_e == pytest.approx(math.log(2 / 0.05), abs=1e-3)


def test_without_events_everything_is_possible() -> None:
    lift = events(0, 0).lift(HALF, 0.05)
    assert (lift.estimate, lift.lower, lift.upper) == (None, -1.0, None)
    assert events(0, 12).lift(HALF, 0.05).upper is None
    assert events(12, 0).lift(HALF, 0.05).estimate == -1.0


def test_the_detector_of_units_knows_each_units_trial_before_in_any_batches() -> None:
    rng = np.random.default_rng(3)
    unit, at, hit = (
        rng.integers(0, 300, 2000).astype(np.uint64),
        np.arange(2000, dtype=np.float64),
        rng.random(2000) < 0.7,
    )
    before, latest = np.zeros(2000, np.int64), dict[int, int]()
    for place, number in enumerate(unit.tolist()):
        before[place], latest[number] = latest.get(number, 0), place + 1
    expected = Detector()
    expected.add(hit, 0.5, before)
    for parts in (1, 7, 2000):
        found = UnitDetector()
        for part in np.array_split(np.arange(2000), parts):
            shuffled = rng.permutation(part)
            found.add(unit[shuffled], at[shuffled], hit[shuffled], np.full(len(part), 0.5))
        assert found.ln_e == pytest.approx(expected.ln_e)
        assert found.largest == pytest.approx(expected.largest)


def test_two_records_of_one_request_are_one_trial() -> None:
    found, once = UnitDetector("exposures"), UnitDetector("exposures")
    unit, at, hit, limit = (
        np.arange(400, dtype=np.uint64),
        np.arange(400, dtype=np.float64),
        np.ones(400, np.bool_),
        np.full(400, 0.5),
    )
    once.add(unit, at, hit, limit)
    for part in (slice(0, 200), slice(100, 400), slice(0, 400)):
        found.add(np.tile(unit[part], 2), np.tile(at[part], 2), np.tile(hit[part], 2), np.tile(limit[part], 2))
    assert (found.ln_e, found.largest) == (once.ln_e, once.largest)


def test_units_that_no_start_counts_are_forgotten_without_a_difference() -> None:
    rng = np.random.default_rng(4)
    found, expected = UnitDetector(), Detector()
    for part in range(40):
        hit, at = rng.random(5000) < 0.5, np.arange(5000 * part, 5000 * (part + 1), dtype=np.float64)
        found.add(at.astype(np.uint64), at, hit, np.full(5000, 0.5))
        expected.add(hit, 0.5)
    assert found.ln_e == pytest.approx(expected.ln_e)
    assert len(found._units) < 200_000
