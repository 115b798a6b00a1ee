"""Distributions by arm: of fixed size, and accurate within 2 %. Values one by one: of whole units, up to a bound."""

import numpy as np
import pytest

from app.experiments.analysis.arms import ArmAssignment
from app.experiments.analysis.arrays import combined
from app.experiments.analysis.distributions import METRICS, SHARES, Distributions, RawValues
from app.experiments.analysis.metrics import facts_of
from app.experiments.contract.report import Distribution
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config

FAILED: Fields = {
    "error": 1, "status": 502, "served": -1, "ttft_s": None, "itl_mean_s": None, "completion_tokens": None,
}  # fmt: skip


def found(arms: list[int], fields: list[Fields], batch: int = 10**9) -> dict[str, Distribution]:
    distributions = Distributions(["control", "treatment"])
    for start in range(0, len(fields), batch):
        recorder = Recorder()
        rows = recorder.rows(*fields[start : start + batch])
        arm = np.array(arms[start : start + batch], np.int8)
        placed = ArmAssignment(np.ones(len(arm), np.bool_), arm, np.zeros(len(arm), np.int64))
        distributions.add(rows, placed, facts_of(config(), recorder.tables))
    return {distribution.metric: distribution for distribution in distributions.report()}


def test_quantiles_of_both_arms_are_within_two_percent() -> None:
    rng = np.random.default_rng(5)
    ttft = rng.lognormal(-1.2, 0.8, 4000)
    ttft[1::2] *= 3
    arms = [number % 2 for number in range(4000)]
    curve = found(arms, [{"ttft_s": float(seconds)} for seconds in ttft])["ttft"]
    assert curve.shares == list(SHARES)
    for number, arm in enumerate(curve.arms):
        assert arm.requests == 2000
        assert arm.values == sorted(arm.values)
        for share, value in zip(SHARES, arm.values, strict=True):
            low, high = np.quantile(ttft[number::2], [share - 0.002, share + 0.002])
            assert 0.98 * low <= value <= 1.02 * high, (arm.arm, share)


def test_batches_change_nothing() -> None:
    fields: list[Fields] = [{"ttft_s": 0.1 * (number + 1)} for number in range(60)]
    arms = [number % 2 for number in range(60)]
    assert found(arms, fields) == found(arms, fields, batch=7)


def test_tokens_are_whole_numbers_and_no_values_give_no_quantiles() -> None:
    fields: list[Fields] = [{"completion_tokens": tokens} for tokens in (0, 0, 3, 3, 3, 3, 17, 17)]
    tokens = found([0] * 8, fields)["output_tokens"]
    assert set(tokens.arms[0].values) == {0, 3, 17}
    assert (tokens.arms[1].requests, tokens.arms[1].values) == (0, [])


def test_quantiles_of_tokens_are_numbers_that_occur() -> None:
    same = found([0] * 9, [{"completion_tokens": 50} for _ in range(9)])["output_tokens"]
    assert set(same.arms[0].values) == {50}
    occurring = (30, 50, 51, 1234, 4095)
    mixed = found([0] * 500, [{"completion_tokens": occurring[number % 5]} for number in range(500)])["output_tokens"]
    assert set(mixed.arms[0].values) == set(occurring)
    (large,) = set(found([0], [{"completion_tokens": 50_000}])["output_tokens"].arms[0].values[-1:])
    assert 0.96 * 50_000 < large < 1.04 * 50_000


def test_missing_values_are_not_counted() -> None:
    whole: Fields = {"stream": False, "ttft_s": None, "itl_mean_s": None}
    curves = found([0, 0, 1], [FAILED, whole, {}])
    assert [arm.requests for arm in curves["ttft"].arms] == [0, 1]
    assert [arm.requests for arm in curves["duration"].arms] == [1, 1]
    assert found([], []) == {}


@pytest.mark.parametrize("value", [1e-9, 1e9])
def test_absurd_values_stay_at_the_ends(value: float) -> None:
    (arm, _) = found([0], [{"ttft_s": value}])["ttft"].arms
    assert arm.requests == 1
    assert 0 <= arm.values[-1] <= 1.1e6


def test_the_size_does_not_grow_with_requests() -> None:
    (some, more) = (found([0] * size, [{"ttft_s": 0.1 + number / size} for number in range(size)]) for size in (3, 999))
    assert [len(distribution.arms[0].values) for distribution in some.values()] == [
        len(distribution.arms[0].values) for distribution in more.values()
    ]
    assert list(some) == list(more) == list(METRICS)


STRATA = np.array([0, 0, 1], np.int32)
BANDS = STRATA.astype(np.int64)


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
    value, unit, stratum, arm = raw.select(2, STRATA, BANDS)
    assert len(value) == len(unit) == len(stratum) == len(arm)
    assert set(arm.tolist()) == {0, 1}
    assert sorted(set(unit.tolist())) == list(range(unit.max() + 1))
    assert set(stratum.tolist()) == {0, 1}
    assert len(value) == len(raw.of_arm(0)) + len(raw.of_arm(2))


def test_whole_minutes_are_left_out() -> None:
    raw, _ = filled(1000)
    everything, some = raw.select(1, STRATA, BANDS), raw.select(1, STRATA, BANDS, np.array([0, 3]))
    assert 0 < len(some[0]) < len(everything[0])


def test_above_the_bound_whole_units_are_left_out() -> None:
    raw, _ = filled(2000, max_values=3000)
    full, _ = filled(2000)
    assert len(raw) <= 3000
    kept, everything = raw.select(1, STRATA, BANDS), full.select(1, STRATA, BANDS)
    requests = np.bincount(kept[1])
    assert sorted(requests.tolist())[0] >= 1
    assert set(requests.tolist()) <= set(np.bincount(everything[1]).tolist())
    assert abs(raw.units(1) - full.units(1)) < full.units(1) / 2


def test_values_of_strata_with_few_requests_are_compared_together() -> None:
    raw = RawValues()
    unit, stratum = np.arange(100, dtype=np.uint64), np.repeat([0, 1], [90, 10]).astype(np.int32)
    raw.add(np.zeros(100), unit, stratum, (np.arange(100) % 2).astype(np.int8), np.zeros(100))
    apart = np.array([0, 1], np.int32)
    assert set(raw.select(1, apart, np.array([0, 1]))[2].tolist()) == {0, 1}
    assert set(raw.select(1, apart, np.array([0, 0]))[2].tolist()) == {0}
