"""Paired looks and discordant pairs, against slow transcriptions of their definitions."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.events import EventEvidence
from app.experiments.statistics.look import MIN_UNITS
from app.experiments.statistics.pairs import Discordant, paired_look
from app.experiments.statistics.sequences import MIN_NU, confidence_sequence, log_e_mixture

PAIRS = st.lists(st.tuples(st.integers(0, 12), st.floats(-50, 50)), min_size=2, max_size=60)


def slow(pairs: list[tuple[int, float]]) -> tuple[float, float | None, int]:
    """est = ΣD/n, U[u] = Σ(D - est), se = sqrt(m/(m-1) ΣU²)/n."""
    est = sum(d for _, d in pairs) / len(pairs)
    residuals: defaultdict[int, float] = defaultdict(float)
    for unit, d in pairs:
        residuals[unit] += d - est
    m = len(residuals)
    if m < 2:
        return est, None, m - 1
    return est, math.sqrt(m / (m - 1) * sum(residual**2 for residual in residuals.values())) / len(pairs), m - 1


@given(PAIRS)
def test_a_look_is_its_definition(pairs: list[tuple[int, float]]) -> None:
    unit = np.array([unit for unit, _ in pairs])
    x = np.array([d for _, d in pairs])
    look = paired_look(unit, np.ones(len(pairs)), x)
    est, se, nu = slow(pairs)
    assert look is not None
    assert look.est == pytest.approx(est, abs=1e-9)
    assert (look.units, look.pairs, look.nu) == (nu + 1, len(pairs), nu)
    if se is not None and se > 1e-6:
        assert look.se == pytest.approx(se, rel=1e-6)


@given(PAIRS)
def test_lines_of_whole_units_are_the_same_as_single_pairs(pairs: list[tuple[int, float]]) -> None:
    sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for unit, d in pairs:
        sums[unit][0] += 1
        sums[unit][1] += d
    units = np.arange(len(sums))
    lines = np.array(list(sums.values()))
    whole = paired_look(units, lines[:, 0], lines[:, 1])
    single = paired_look(np.array([u for u, _ in pairs]), np.ones(len(pairs)), np.array([d for _, d in pairs]))
    assert whole is not None
    assert single is not None
    assert whole.est == pytest.approx(single.est, abs=1e-9)
    if whole.se is not None and single.se is not None and single.se > 1e-6:
        assert whole.se == pytest.approx(single.se, rel=1e-6)


def test_there_is_no_claim_before_30_units_nor_of_values_that_do_not_vary() -> None:
    random = np.random.default_rng(1)
    for units, claims in ((MIN_UNITS - 1, False), (MIN_UNITS, True)):
        look = paired_look(np.arange(units), np.ones(units), 1 + random.normal(size=units))
        assert look is not None
        assert look.se is not None
        assert units > MIN_NU
        assert (look.interval(effect=0.5, alpha=0.05) is not None) == claims
        assert (look.log_e_value(effect=0.5, alpha=0.05) != 0) == claims
    same = paired_look(np.arange(50), np.ones(50), np.full(50, 0.1))
    assert same is not None
    assert (same.se, same.interval(effect=0.5, alpha=0.05), same.log_e_value(effect=0.5, alpha=0.05)) == (
        None,
        None,
        0.0,
    )
    assert paired_look(np.arange(2), np.zeros(2), np.zeros(2)) is None


def test_intervals_and_evidence_are_those_of_the_sequences() -> None:
    random = np.random.default_rng(2)
    look = paired_look(np.arange(400) // 4, np.ones(400), 0.03 + 0.1 * random.normal(size=400))
    assert look is not None
    assert look.se is not None
    expected = confidence_sequence(look.est, look.se, 99, effect=0.02, alpha=0.05)
    assert look.interval(effect=0.02, alpha=0.05) == expected
    assert look.log_e_value(effect=0.02, alpha=0.05) == float(
        log_e_mixture(look.est, look.se, 99, effect=0.02, alpha=0.05)
    )


@given(st.lists(st.booleans(), max_size=80), st.integers(0, 80))
def test_discordant_pairs_are_tested_both_ways_whatever_their_order(sides: list[bool], cut: int) -> None:
    evidence = Discordant()
    for part in (sides[:cut], sides[cut:]):
        evidence.add(np.array(part, np.bool_))
    more, less = EventEvidence(), EventEvidence()
    more.add(np.array(sides, np.bool_), 0.5)
    less.add(~np.array(sides, np.bool_), 0.5)
    both = math.log((math.exp(more.log_e_value) + math.exp(less.log_e_value)) / 2)
    assert evidence.log_e_value == pytest.approx(max(0.0, both), abs=1e-9)
    assert evidence.units == (sides.count(False), sides.count(True))


def test_the_reference_value_of_12_events_on_one_side() -> None:
    """§4.13 of the design: 5.997784 one-sided; averaged with the other side, which is nearly zero."""
    evidence, other = Discordant(), EventEvidence()
    evidence.add(np.ones(12, np.bool_))
    other.add(np.zeros(12, np.bool_), 0.5)
    assert evidence.log_e_value == pytest.approx(
        math.log((math.exp(5.997784) + math.exp(other.log_e_value)) / 2), abs=1e-5
    )
