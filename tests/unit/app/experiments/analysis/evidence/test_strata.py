from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.experiments import Stratum
from app.experiments.analysis.cells import MAX_SHARES, FirstRequests, Strata
from tests.simulation import reports
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.exposures import NAMES

ONES = np.ones(1000)


def test_prompts_are_compared_within_five_sizes() -> None:
    sizes = [0, 255, 256, 1023, 1024, 4095, 4096, 16383, 16384, 10**6]
    rows = Recorder().rows(*({"prompt_bytes": size} for size in sizes))
    strata = Strata(("prompt_bytes",)).of(rows, np.zeros(len(rows), np.int32))
    assert strata.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_hour_dialect_and_stream_are_strata_where_declared() -> None:
    recorder = Recorder()
    rows = recorder.rows(
        {"at": 0.0}, {"at": 3601.0}, {"at": 86400.0}, {"at": 0.0, "dialect": 3}, {"at": 0.0, "stream": False}
    )
    zeros = np.zeros(5, np.int32)
    first, hour, day, dialect, whole = Strata(("hour", "dialect", "stream")).of(rows, zeros).tolist()
    assert first == day
    assert len({first, hour, dialect, whole}) == 4
    assert Strata(("hour",)).of(rows, zeros).tolist() == [0, 1, 0, 0, 0]
    assert Strata(()).of(rows, zeros).tolist() == [0] * 5


def test_plans_with_the_same_share_are_one_stratum_for_a_treatment() -> None:
    strata, rows = Strata(()), Recorder().rows({}, {}, {})
    recorded = strata.of(rows, np.array([0, 1, 2], np.int32))
    weights = np.array([[80, 10, 10], [40, 5, 55], [50, 50, 0]])
    first = strata.for_treatment(1, weights, ONES[:3])[recorded]
    second = strata.for_treatment(2, weights, ONES[:3])[recorded]
    assert first[0] == first[1] != first[2]
    assert len(set(second.tolist())) == 3


def test_many_shares_become_twelve_bands_of_neighbours_with_about_as_many_requests() -> None:
    strata = Strata(())
    rows = Recorder().rows(*({} for _ in range(60)))
    strata.of(rows, np.arange(60, dtype=np.int32))
    share = np.random.default_rng(1).permutation(60)
    weights = np.stack([100 - share, share], axis=1)
    requests = np.random.default_rng(2).integers(50, 150, 60).astype(float)
    band = strata.for_treatment(1, weights, requests)
    assert set(band.tolist()) == set(range(MAX_SHARES))
    order = np.argsort(share)
    assert (np.diff(band[order]) >= 0).all()
    sums = np.bincount(band, requests)
    assert sums.max() < 2 * sums.min()


LATER = {
    "prompt_bytes": st.integers(0, 10**6),
    "at": st.floats(1, 10**6),
    "dialect": st.integers(0, len(NAMES) - 1),
    "stream": st.booleans(),
    "turn": st.integers(1, 100),
}


@given(
    st.lists(st.tuples(st.integers(1, 4), st.fixed_dictionaries(LATER)), max_size=20), st.randoms(use_true_random=False)
)
def test_nothing_after_a_units_first_request_changes_its_strata(
    later: list[tuple[int, dict[str, object]]], random: Random
) -> None:
    """For every declared stratum, and the prompt's size: a later request comes after the unit has met its arm."""
    recorder = Recorder()
    first = [
        {"unit": unit, "at": 0.0, "prompt_bytes": 300 * unit, "dialect": unit % len(NAMES)} for unit in (1, 2, 3, 4)
    ]
    alone, after = FirstRequests(get_args(Stratum)), FirstRequests(get_args(Stratum))
    alone.add(recorder.rows(*first))
    rows: list[Fields] = [*first, *({"unit": unit, **values} for unit, values in later)]
    after.add(recorder.rows(*first))
    random.shuffle(rows)
    after.add(recorder.rows(*rows))
    units = np.array([1, 2, 3, 4], np.uint64)
    assert after.codes(units).tolist() == alone.codes(units).tolist()
    assert after.sizes(units).tolist() == alone.sizes(units).tolist()
    assert alone.sizes(units) == pytest.approx(np.log(300 * np.arange(1, 5)), abs=0.05)
    assert np.isnan(alone.sizes(np.array([9], np.uint64)))


def test_prompts_that_hold_the_arms_own_answers_are_no_stratum() -> None:
    """The treatment is faster for a prompt of the same size, and slower for its users."""
    missed, better, worse = reports.converse(["prompt_bytes"], reports.truth(), 2)
    assert not missed
    assert not better
    assert worse
