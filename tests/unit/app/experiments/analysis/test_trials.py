"""Trials of units: what counts does not depend on batches, and what fails on control, too, is no evidence."""

import numpy as np
import pytest

from app.experiments.analysis.unit_events import Arm, UnitDetector, UnitExposures, UnitTrials
from app.experiments.analysis.witnesses import UNBOUNDED
from app.experiments.statistics.events import Detector
from tests.conftest import NIGHTLY

ALPHA, LIMIT = 0.01, 0.02


def made(unit: list[int], at: list[float], hit: list[bool]) -> UnitExposures:
    """Exposures of first turns, whose records come within a second."""
    return UnitExposures(
        np.array(unit, np.uint64),
        np.array(at, np.float64),
        np.array(hit, np.bool_),
        np.zeros(len(unit), np.uint16),
        np.ceil(np.array(at, np.float64)),
        np.full(len(unit), UNBOUNDED, np.int8),
        np.zeros(len(unit), np.bool_),
    )


def random_exposures(seed: int) -> tuple[UnitExposures, Arm]:
    rng = np.random.default_rng([12, seed])
    count = 600
    at = np.sort(rng.random(count) * rng.choice([300.0, 12_000.0]))
    unit = rng.integers(0, rng.choice([40, 5000]), count)
    outage = (at > 0.4 * at[-1]) & (at < 0.5 * at[-1])
    hit = rng.random(count) < np.where(outage, 0.9, 0.02)
    arm = rng.choice(3, count, p=rng.choice([[0.45, 0.45, 0.1], [0.1, 0.8, 0.1]])).astype(np.int8)
    return made(unit.tolist(), at.tolist(), hit.tolist()), arm


def counted_one_by_one(exposures: UnitExposures, arm: Arm) -> list[int]:
    """The places of the treatment's exposures that are trials, written as the module describes it."""
    latest: dict[int, bool] = {}
    hours: dict[int, dict[int, bool]] = {}
    places: list[int] = []
    fails, followed = False, 0
    after: list[list[int]] = [[]]
    failing, had = [False], [False]
    for place, (unit, _, hit, _, came, *_) in enumerate(zip(*(column.tolist() for column in exposures), strict=True)):
        if arm[place] == 0:
            latest.pop(unit, None)
            latest[unit] = hit
            hours.setdefault(int(came // 3600), {}).setdefault(unit, hit)
            last = list(latest.values())[-20:]
            recent = [first for hour, table in hours.items() if hour >= max(hours) - 1 for first in table.values()]
            known = recent if len(recent) >= 20 else [first for table in hours.values() for first in table.values()]
            fails = hit or sum(last) > 1 or sum(known) > LIMIT * len(known)
            failing.append(fails)
            had.append(hit)
            after.append([])
        elif arm[place] == 1:
            after[-1].append(place)
    for number, group in enumerate(after):
        for followed, place in enumerate(group):
            patient = exposures.came[group[-1]] - exposures.came[place] <= 60
            is_last = number == len(after) - 1
            if failing[number] or (followed >= 2 and patient and (is_last or had[number + 1])):
                continue
            places.append(place)
    return sorted(places)


@pytest.mark.parametrize("seed", range(12 if NIGHTLY else 3))
def test_what_is_a_trial_is_what_was_described_in_any_batches(seed: int) -> None:
    exposures, arm = random_exposures(seed)
    places = counted_one_by_one(exposures, arm)
    expected = UnitDetector("exposures")
    unit, at, hit = exposures.unit[places], exposures.at[places], exposures.hit[places]
    expected.add(unit, at, hit, np.full(len(places), LIMIT))
    rates: set[float | None] = set()
    for parts in (1, 9, 600):
        trials = UnitTrials(LIMIT, 1, ALPHA)
        for part in np.array_split(np.arange(len(arm)), parts):
            trials.add(UnitExposures._make(column[part] for column in exposures), arm[part])
        assert trials.course.detector.log_e_value == pytest.approx(expected.log_e_value)
        assert trials.course.detector.largest == pytest.approx(expected.largest)
        assert trials.evidence.hits + trials.evidence.misses == len(np.unique(unit))
        rates.add(trials.control_rate)
    assert len(rates) == 1


def test_a_router_whose_clock_is_a_day_ahead_hides_no_hour_of_control() -> None:
    trials, arm = UnitTrials(LIMIT, 1, ALPHA), np.zeros(60, np.int8)
    ahead = made([9999], [86_400.0], [False])._replace(came=np.array([10.0]))
    trials.add(ahead, arm[:1])
    trials.add(made(list(range(60)), [3700.0 + number for number in range(60)], [True] * 60), arm)
    assert trials.control_exceeds


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
        detector = UnitDetector()
        for part in np.array_split(np.arange(2000), parts):
            detector.add(unit[part], at[part], hit[part], np.full(len(part), 0.5))
        assert detector.log_e_value == pytest.approx(expected.log_e_value)
        assert detector.largest == pytest.approx(expected.largest)


def test_trials_count_in_the_order_in_which_they_came_whenever_their_requests_began() -> None:
    rng = np.random.default_rng(5)
    unit, hit, at = rng.integers(0, 300, 400).astype(np.uint64), rng.random(400) < 0.3, rng.random(400) * 900
    together, one_by_one = UnitDetector("exposures"), UnitDetector("exposures")
    together.add(unit, at, hit, np.full(400, 0.1))
    for place in range(400):
        one = slice(place, place + 1)
        one_by_one.add(unit[one], at[one], hit[one], np.full(1, 0.1))
    assert (together.log_e_value, together.largest) == pytest.approx((one_by_one.log_e_value, one_by_one.largest))


def test_two_records_of_one_request_are_one_trial() -> None:
    detector, once = UnitDetector("exposures"), UnitDetector("exposures")
    unit, at, hit, limit = (
        np.arange(400, dtype=np.uint64),
        np.arange(400, dtype=np.float64),
        np.ones(400, np.bool_),
        np.full(400, 0.5),
    )
    once.add(unit, at, hit, limit)
    for part in (slice(0, 200), slice(100, 400), slice(0, 400)):
        detector.add(np.tile(unit[part], 2), np.tile(at[part], 2), np.tile(hit[part], 2), np.tile(limit[part], 2))
    assert (detector.log_e_value, detector.largest) == (once.log_e_value, once.largest)


def test_units_that_no_start_counts_are_forgotten_without_a_difference() -> None:
    rng = np.random.default_rng(4)
    detector, expected = UnitDetector(), Detector()
    for part in range(10):
        hit, at = rng.random(5000) < 0.5, np.arange(5000 * part, 5000 * (part + 1), dtype=np.float64)
        detector.add(at.astype(np.uint64), at, hit, np.full(5000, 0.5))
        expected.add(hit, 0.5)
    assert detector.log_e_value == pytest.approx(expected.log_e_value)
    assert len(detector.units) < 50_000
