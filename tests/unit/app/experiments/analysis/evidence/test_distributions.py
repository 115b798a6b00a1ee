"""Distributions by arm: of fixed size, and accurate within 2 %."""

import numpy as np
import pytest

from app.experiments.analysis.aggregates import METRICS, SHARES, Distributions
from app.experiments.analysis.arms import Placement
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
        placed = Placement(np.ones(len(arm), np.bool_), arm, np.zeros(len(arm), np.int64))
        distributions.add(rows, placed, facts_of(config(), recorder.tables))
    return {it.metric: it for it in distributions.report()}


def test_quantiles_of_both_arms_are_within_two_percent() -> None:
    rng = np.random.default_rng(5)
    ttft = rng.lognormal(-1.2, 0.8, 4000)
    ttft[1::2] *= 3
    arms = [number % 2 for number in range(4000)]
    curve = found(arms, [{"ttft_s": float(it)} for it in ttft])["ttft"]
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


def test_missing_values_are_not_counted() -> None:
    whole: Fields = {"stream": False, "ttft_s": None, "itl_mean_s": None}
    curves = found([0, 0, 1], [FAILED, whole, {}])
    assert [it.requests for it in curves["ttft"].arms] == [0, 1]
    assert [it.requests for it in curves["duration"].arms] == [1, 1]
    assert found([], []) == {}


@pytest.mark.parametrize("value", [1e-9, 1e9])
def test_absurd_values_stay_at_the_ends(value: float) -> None:
    (arm, _) = found([0], [{"ttft_s": value}])["ttft"].arms
    assert arm.requests == 1
    assert 0 <= arm.values[-1] <= 1.1e6


def test_the_size_does_not_grow_with_requests() -> None:
    (some, more) = (found([0] * size, [{"ttft_s": 0.1 + number / size} for number in range(size)]) for size in (3, 999))
    assert [len(it.arms[0].values) for it in some.values()] == [len(it.arms[0].values) for it in more.values()]
    assert list(some) == list(more) == list(METRICS)
