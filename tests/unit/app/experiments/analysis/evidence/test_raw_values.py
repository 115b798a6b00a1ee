import numpy as np

from app.experiments.analysis.aggregates import RawValues
from app.experiments.analysis.arrays import combined

STRATA = np.array([0, 0, 1], np.int32)


def filled(size: int, **options: int) -> tuple[RawValues, np.random.Generator]:
    rng, raw = np.random.default_rng(1), RawValues(**options)
    for _ in range(4):
        user = rng.integers(0, size // 4, size)
        unit = combined(user.astype(np.uint64), np.zeros(size, np.int64))
        stratum, arm = rng.integers(0, 3, size).astype(np.int32), (user % 3).astype(np.int8)
        raw.add(rng.normal(0, 1, size), unit, stratum, arm, np.arange(size, dtype=np.float64))
    return raw, rng


def test_control_and_one_treatment_are_selected_with_units_as_codes() -> None:
    raw, _ = filled(1000)
    value, unit, stratum, arm = raw.select(2, STRATA)
    assert len(value) == len(unit) == len(stratum) == len(arm)
    assert set(arm.tolist()) == {0, 1}
    assert sorted(set(unit.tolist())) == list(range(unit.max() + 1))
    assert set(stratum.tolist()) == {0, 1}
    assert len(value) == len(raw.of_arm(0)) + len(raw.of_arm(2))


def test_whole_minutes_are_left_out() -> None:
    raw, _ = filled(1000)
    everything, some = raw.select(1, STRATA), raw.select(1, STRATA, np.array([0, 3]))
    assert 0 < len(some[0]) < len(everything[0])


def test_above_the_bound_whole_units_are_left_out() -> None:
    raw, _ = filled(2000, max_values=3000)
    full, _ = filled(2000)
    assert len(raw) <= 3000
    kept, everything = raw.select(1, STRATA), full.select(1, STRATA)
    requests = np.bincount(kept[1])
    assert sorted(requests.tolist())[0] >= 1
    assert set(requests.tolist()) <= set(np.bincount(everything[1]).tolist())
    assert abs(raw.units(1) - full.units(1)) < full.units(1) / 2
