import math

import numpy as np
import ville
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.discovery import e_bh


def test_the_discoveries_are_the_designs() -> None:
    assert e_bh([math.log(e) for e in (200, 3, 45, 0.5, 22, 1)]) == [0, 2, 4]


@given(st.lists(st.floats(-5, 9), max_size=30), st.sampled_from([0.05, 0.1, 0.25]))
def test_the_discoveries_are_villes(ln_e_values: list[float], level: float) -> None:
    assert e_bh(ln_e_values, level) == np.flatnonzero(ville.evalues.ebh(np.exp(ln_e_values), level)).tolist()


def test_evidence_beyond_a_floats_range_is_a_discovery() -> None:
    assert e_bh([5000.0, 0.0, -5000.0]) == [0]
    assert e_bh([]) == []
