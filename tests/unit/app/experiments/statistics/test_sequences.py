import math

import numpy as np
import pytest
import ville
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics import sequences
from app.experiments.statistics.sequences import boundary, confidence_sequence, log_e_mixture

DELTA = 0.05
ALPHA = 0.05


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(("alpha", "rho", "k"), [(0.05, 0.12177349, 3.035122), (0.01, 0.08506026, 3.571606)])
def test_the_best_precision_is_the_designs(alpha: float, rho: float, k: float) -> None:
    assert sequences.best_rho(1, alpha) == pytest.approx(rho, abs=1e-8)
    assert sequences.smallest_boundary(alpha) == near(k)


def test_the_precision_of_an_effect_is_the_designs() -> None:
    assert sequences.smallest_boundary(0.001) == near(4.205760)
    assert sequences.rho_for(0.05, ALPHA) == pytest.approx(448.7094, abs=1e-4)
    assert sequences.rho_for(0.2, ALPHA) == pytest.approx(28.0443, abs=1e-4)


@pytest.mark.parametrize(
    ("se", "nu", "k"),
    [(0.02, 400, 3.203747), (0.01, 2000, 3.256334), (0.05, 100, 3.382054), (0.02, 50, 3.338156), (0.1, 30, 3.702608)],
)
def test_the_boundary_solves_the_formulas(se: float, nu: float, k: float) -> None:
    """The roots of the product form of the e-values, mixed, at forty digits (mpmath)."""
    assert float(boundary(se, nu, effect=DELTA, alpha=ALPHA)) == near(k)


def test_one_scale_alone_is_the_designs() -> None:
    assert float(boundary(0.02, 400, effect=DELTA, alpha=ALPHA, mixture={1.0: 1.0})) == near(3.06420)


def test_an_effect_of_four_errors_has_its_evidence_and_its_interval() -> None:
    """By the same formulas at forty digits."""
    assert float(log_e_mixture(-0.08, 0.02, 400, effect=DELTA, alpha=ALPHA)) == near(5.477191)
    interval = confidence_sequence(-0.08, 0.02, 400, effect=DELTA, alpha=ALPHA)
    assert interval is not None
    assert interval == (near(-0.144075), near(-0.015925))
    assert [round(100 * math.expm1(end), 2) for end in interval] == [-13.42, -1.58]


def test_a_relative_effect_is_a_logarithm_and_an_absolute_one_itself() -> None:
    assert sequences.effect_size(0.05, "relative") == pytest.approx(math.log(1.05), rel=1e-12)
    assert sequences.effect_size(0.05, "absolute") == 0.05


@given(st.floats(1e-3, 1), st.floats(11, 1e6), st.floats(0.01, 0.5), st.sampled_from([0.05, 0.01, 0.001]))
def test_the_interval_excludes_zero_exactly_where_the_evidence_suffices(
    se: float, nu: float, effect: float, alpha: float
) -> None:
    k = float(boundary(se, nu, effect=effect, alpha=alpha))
    if math.isinf(k):
        assert float(log_e_mixture(1e6 * se, se, nu, effect=effect, alpha=alpha)) < math.log(1 / alpha)
        return
    assert float(log_e_mixture(k * se, se, nu, effect=effect, alpha=alpha)) == pytest.approx(
        math.log(1 / alpha), abs=1e-9
    )
    for factor, excludes in ((1.001, True), (0.999, False)):
        interval = confidence_sequence(factor * k * se, se, nu, effect=effect, alpha=alpha)
        assert interval is not None
        assert (interval.lower > 0) is excludes


def test_what_is_never_to_be_missed_has_no_interval() -> None:
    assert confidence_sequence(1.0, 0.1, 100.0, effect=DELTA, alpha=ALPHA) is not None
    assert confidence_sequence(1.0, 0.1, 100.0, effect=DELTA, alpha=ALPHA, level=0.0) is None


@given(st.floats(0.5, 1e5), st.sampled_from([0.05, 0.01]), st.floats(0.01, 0.5))
def test_without_students_correction_one_scale_is_villes_normal_mixture(v: float, alpha: float, effect: float) -> None:
    """ville's boundary is for the sum of unit variances: k times the square root of the information."""
    rho = sequences.rho_for(effect, alpha)
    k = float(boundary(1 / math.sqrt(v), math.inf, effect=effect, alpha=alpha, mixture={1.0: 1.0}))
    expected = float(ville.normal_mixture(v, alpha, rho)) / math.sqrt(v)
    assert k == pytest.approx(expected, rel=1e-9)
    assert rho == pytest.approx(ville.best_rho((sequences.smallest_boundary(alpha) / effect) ** 2, alpha), rel=1e-4)


@pytest.mark.parametrize(
    ("est", "se", "nu"),
    [
        pytest.param(1.0, 0.1, 10.0, id="too few degrees of freedom"),
        pytest.param(1.0, 0.0, 100.0, id="no error"),
        pytest.param(1.0, math.inf, 100.0, id="infinite error"),
        pytest.param(1.0, math.nan, 100.0, id="no number"),
        pytest.param(math.inf, 0.1, 100.0, id="infinite estimate"),
        pytest.param(math.nan, 0.1, 100.0, id="no estimate"),
        pytest.param(1e200, 1e-200, 100.0, id="overflow"),
        pytest.param(1.0, 0.1, -2.0, id="negative degrees"),
        pytest.param(1.0, 0.1, math.nan, id="no degrees"),
    ],
)
def test_unusable_input_is_no_evidence_and_has_no_interval(est: float, se: float, nu: float) -> None:
    assert confidence_sequence(est, se, nu, effect=DELTA, alpha=ALPHA) is None
    assert float(log_e_mixture(est, se, nu, effect=DELTA, alpha=ALPHA)) == 0.0


def test_with_little_information_and_few_units_no_estimate_suffices() -> None:
    """Student's e-value is bounded: here even an infinite effect stays below 1/alpha."""
    assert math.isinf(float(boundary(1.0, 11, effect=DELTA, alpha=1e-9)))
    assert confidence_sequence(5.0, 1.0, 11, effect=DELTA, alpha=1e-9) is None


def test_arrays_are_computed_element_by_element() -> None:
    est, se, nu = np.array([0.1, -0.3, 1.0]), np.array([0.02, 0.1, 0.0]), np.array([50.0, 400.0, 9.0])
    together = log_e_mixture(est, se, nu, effect=DELTA, alpha=ALPHA)
    alone = [float(log_e_mixture(*each, effect=DELTA, alpha=ALPHA)) for each in zip(est, se, nu, strict=True)]
    assert together.tolist() == alone
    roots = boundary(se, nu, effect=DELTA, alpha=ALPHA)
    assert np.isinf(roots).tolist() == [False, False, True]
    assert roots.tolist() == [float(boundary(*each, effect=DELTA, alpha=ALPHA)) for each in zip(se, nu, strict=True)]
