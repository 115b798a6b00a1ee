import math

import numpy as np
import ville
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.planner import e_bh, levels


def test_the_discoveries_are_the_designs() -> None:
    assert e_bh([math.log(e) for e in (200, 3, 45, 0.5, 22, 1)], 0.1) == [0, 2, 4]


@given(st.lists(st.floats(-5, 9), max_size=30), st.sampled_from([0.05, 0.1, 0.25]))
def test_the_discoveries_are_villes(ln_e_values: list[float], level: float) -> None:
    assert e_bh(ln_e_values, level) == np.flatnonzero(ville.evalues.ebh(np.exp(ln_e_values), level)).tolist()


@given(st.lists(st.floats(-5, 9), min_size=1, max_size=30), st.sampled_from([0.05, 0.1, 0.25]))
def test_exactly_the_discoveries_have_an_interval_without_zero(ln_e_values: list[float], level: float) -> None:
    """An interval at level a excludes 0 if the e-value is at least 1/a."""
    excluding = [
        number
        for number, (ln_e, own) in enumerate(zip(ln_e_values, levels(ln_e_values, level), strict=True))
        if ln_e >= math.log(1 / own)
    ]
    assert excluding == e_bh(ln_e_values, level)
    assert max(levels(ln_e_values, level)) <= level


def test_evidence_beyond_a_floats_range_is_a_discovery() -> None:
    assert e_bh([5000.0, 0.0, -5000.0], 0.05) == [0]
    assert e_bh([], 0.05) == levels([], 0.05) == []
