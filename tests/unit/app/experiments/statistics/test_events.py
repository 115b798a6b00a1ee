import itertools
import math

import numpy as np
import pytest
import ssrm_test.ssrm_test as reference
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.statistics.events import (
    CERTAIN,
    CONCENTRATION,
    EVERY,
    LATE_SHARE,
    LN_SECOND,
    MULTIPLES,
    SECOND_SHARE,
    THRESHOLD,
    Detector,
    EventEvidence,
    alarm_at,
    always_failing,
    chance,
    ln_likelihood,
    log_e_value,
    share_of_start,
    two_sided,
)

ENDS = np.array(list(itertools.product([False, True], repeat=10)))
"""Every sequence of 10 trials."""


def evidence(hits: list[bool], p0: np.ndarray | list[float]) -> np.ndarray:
    return EventEvidence().add(hits, p0)


def test_the_evidence_after_each_event_is_the_designs() -> None:
    path = evidence([True, True, False, True, True, True, True], chance([0.05] * 7, [0.95] * 7, 1.5))
    assert path == pytest.approx([1.032021, 2.643628, 1.972096, 3.738620, 5.743615, 7.862490, 10.043144], abs=1e-5)


def test_the_evidence_under_changing_weights_is_the_designs() -> None:
    w_t = np.array([0.01, 0.01, 0.05, 0.05, 0.25, 0.25, 0.5])
    path = evidence([True, True, False, True, True, True, True], chance(w_t, 1 - w_t, 1.0))
    assert path == pytest.approx([1.474887, 4.072762, 3.299645, 5.605508, 6.862509, 8.129469, 8.782308], abs=1e-5)


def test_twelve_events_on_the_treatment_are_the_designs() -> None:
    assert evidence([True] * 12, chance(1, 1, 1.0))[-1] == pytest.approx(5.997784, abs=1e-5)


def test_likelihoods_are_those_of_the_weights_and_the_rate() -> None:
    """q = w_T r / (w_T r + w_C) for r = r0 times the multiples, as the design writes it."""
    w_t, w_c, r0 = 0.2, 0.7, 1.5
    r = r0 * MULTIPLES
    q, p0 = w_t * r / (w_t * r + w_c), w_t * r0 / (w_t * r0 + w_c)
    both = ln_likelihood([True, False], chance([w_t] * 2, [w_c] * 2, r0), "events")
    assert both == pytest.approx(np.log([q / p0, (1 - q) / (1 - p0)]), abs=1e-12)


@pytest.mark.parametrize("r0", [1.0, 1.5])
@pytest.mark.parametrize("weights", ["constant", "of the number", "of the past"])
def test_the_evidence_is_a_supermartingale_over_all_sequences_of_ten_events(r0: float, weights: str) -> None:
    """The mean of E under a true ratio of at most r0 is at most 1, even if the weights react to the events."""
    taken = np.cumsum(ENDS, axis=1) - ENDS  # the treatment's events before each
    w_t = {
        "constant": np.full(ENDS.shape, 0.05),
        "of the number": np.broadcast_to(np.linspace(0.01, 0.9, 10), ENDS.shape),
        "of the past": np.where(taken >= 2, 0.01, np.where(taken == 1, 0.5, 0.2)),
    }[weights]
    paths = [evidence(ends, p0) for ends, p0 in zip(ENDS.tolist(), chance(w_t, 1 - w_t, r0), strict=True)]
    # Each prefix of n events stands for 2^(10 - n) sequences.
    e = np.exp(np.array(paths)) / 2.0 ** np.arange(9, -1, -1)

    def mean(ratio: float) -> np.ndarray:
        """The mean of E after each event, under a true ratio."""
        p = chance(w_t, 1 - w_t, ratio)
        return np.asarray((np.cumprod(np.where(ENDS, p, 1 - p), axis=1) * e).sum(axis=0))

    at_the_limit, below_it = mean(r0), mean(r0 / 2)
    assert at_the_limit == pytest.approx(np.ones(10), abs=1e-9)
    assert (below_it <= 1 + 1e-9).all()


@pytest.mark.parametrize("rate", [0.05, 0.02])
def test_the_evidence_is_a_supermartingale_over_all_sequences_of_ten_exposures(rate: float) -> None:
    total = 0.0
    for ends in ENDS:
        probability = float(np.prod(np.where(ends, rate, 1 - rate)))
        total += probability * math.exp(EventEvidence("exposures").add(ends, 0.05)[-1])
    assert total <= 1 + 1e-9


WHOLE_SHARE = 1 - LATE_SHARE - SECOND_SHARE


def test_the_shares_of_the_whole_run_of_the_second_test_and_of_all_starts_are_alpha() -> None:
    """Markov's inequality: a start's evidence is exp(threshold) or more with probability at most its share of alpha."""
    assert math.exp(-alarm_at(0.05)) == pytest.approx(0.05 * WHOLE_SHARE)
    assert math.exp(LN_SECOND - alarm_at(0.05)) == pytest.approx(0.05 * SECOND_SHARE)
    assert math.exp(share_of_start(3)) == pytest.approx(3**-1.2 / 5.591582)
    starts = np.arange(1.0, 100_001)
    shares = LATE_SHARE * starts**-1.2 / 5.591582
    beyond = LATE_SHARE * 5 * 100_000**-0.2 / 5.591582
    assert float(shares.sum()) + beyond == pytest.approx(LATE_SHARE, rel=1e-4)
    detector = Detector()
    detector.add([True], 0.5)
    whole = EventEvidence()
    whole.add([True], 0.5)
    assert detector.log_e_value - whole.log_e_value == pytest.approx(math.log(shares[0] / WHOLE_SHARE), abs=1e-6)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1)), min_size=1, max_size=8))
def test_always_failing_is_an_e_value_over_all_draws_of_the_units_arms(units: list[tuple[bool, int]]) -> None:
    """Each unit fails always or works, whatever its arm, which its set of weights draws."""
    weights = np.array([[7.0, 3.0], [1.0, 19.0]])
    total = 0.0
    for arms in itertools.product((0, 1), repeat=len(units)):
        counts, probability = np.zeros((2, 2, 2), np.int64), 1.0
        for (fails, of_set), arm in zip(units, arms, strict=True):
            counts[of_set, arm, 0 if fails else 1] += 1
            probability *= weights[of_set, arm] / weights[of_set].sum()
        total += probability * math.exp(always_failing(weights[:, 1], weights[:, 0], counts[:, :, 0], counts[:, :, 1]))
    assert total == pytest.approx(1)


def slow_detector(hits: list[bool], p0: list[float], units: list[int]) -> list[float]:
    """The largest evidence so far, trial by trial: each start counts a unit once, and lives while few others follow."""
    starts: list[tuple[set[int], EventEvidence]] = [(set(), EventEvidence())]
    path, largest = [], -math.inf
    for hit, chance_, unit in zip(hits, p0, units, strict=True):
        for seen, evidence in starts:
            if unit not in seen:
                seen.add(unit)
                evidence.add(hit, chance_)
        for number, (_, evidence) in enumerate(starts, 1):
            if len(starts) - number < 4 * (number & -number):
                share = LATE_SHARE / WHOLE_SHARE * number**-1.2 / 5.591582
                largest = max(largest, evidence.log_e_value + math.log(share))
        path.append(largest)
        if len(starts[-1][0]) == EVERY:
            starts.append((set(), EventEvidence()))
    return path


trials = st.lists(st.tuples(st.booleans(), st.sampled_from([0.01, 0.05, 0.25, 0.5, 0.99])), min_size=1, max_size=60)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 200), max_size=3))
def test_the_detector_is_the_same_process_from_each_start_in_any_batches(seed: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    hits, p0, units = rng.random(200) < 0.6, rng.choice([0.05, 0.25, 0.5], 200), rng.integers(0, 90, 200)
    before = np.zeros(200, np.int64)
    latest: dict[int, int] = {}
    for place, unit in enumerate(units.tolist()):
        before[place], latest[unit] = latest.get(unit, 0), place + 1
    detector = Detector()
    parts = np.split(np.arange(200), sorted(cuts))
    path = np.concatenate([detector.add(hits[part], p0[part], before[part]) for part in parts])
    assert path == pytest.approx(slow_detector(hits.tolist(), p0.tolist(), units.tolist()), abs=1e-6)
    assert detector.largest == path[-1]


def test_a_unit_that_fails_for_ever_is_one_coin() -> None:
    """Three units on the treatment, again and again: no start counts more than three."""
    detector = Detector()
    before = np.maximum(np.arange(1, 3001) - 3, 0)
    assert detector.add(np.ones(3000, np.bool_), 0.5, before)[-1] < 0
    assert detector.oldest == 0


def test_starts_of_all_ages_live_and_only_few() -> None:
    detector = Detector()
    detector.add(np.arange(40_000) % 2 == 0, 0.5)
    assert detector.oldest > 0
    ages = (40_000 - detector.begins).tolist()
    assert len(ages) < 60
    assert all(older < 3 * younger for older, younger in itertools.pairwise(ages[:-4]))


@given(trials, st.integers(0, 60), st.randoms())
def test_neither_order_nor_batches_nor_merging_change_the_evidence(
    trials: list[tuple[bool, float]], cut: int, random: object
) -> None:
    shuffled = sorted(trials, key=lambda _: random.random())  # type: ignore[attr-defined]
    whole, one, other = EventEvidence(), EventEvidence(), EventEvidence()
    whole.add(*zip(*trials, strict=True))
    for part, of_part in ((one, shuffled[:cut]), (other, shuffled[cut:])):
        if of_part:
            part.add(*zip(*of_part, strict=True))
    one.merge(other)
    assert one.log_e_value == pytest.approx(whole.log_e_value, abs=1e-9)
    assert (one.hits, one.misses) == (whole.hits, whole.misses)
    assert one.hits + one.misses == len(trials)


@given(trials)
def test_a_restored_state_continues(trials: list[tuple[bool, float]]) -> None:
    whole, restored = EventEvidence(), EventEvidence()
    whole.add(*zip(*trials, strict=True))
    restored.restore(whole.state())
    assert (restored.log_e_value, restored.largest, restored.hits) == (whole.log_e_value, whole.largest, whole.hits)
    assert restored.add([True], [0.05]).tolist() == whole.add([True], [0.05]).tolist()


def test_the_largest_evidence_is_kept() -> None:
    evidence = EventEvidence()
    path = evidence.add([True] * 8 + [False] * 40, 0.1)
    assert evidence.largest == max(path) > evidence.log_e_value


@pytest.mark.parametrize("p0", [0.0, 1.0, math.nan], ids=["no weight on it", "no weight on control", "no weights"])
def test_events_that_could_only_go_one_way_are_no_evidence(p0: float) -> None:
    evidence, detector = EventEvidence(), Detector()
    assert evidence.add([True, False], [p0, p0]) == pytest.approx([0, 0], abs=1e-12)
    detector.add([True, False], [p0, p0])
    assert detector.largest == detector.log_e_value < 0


def test_no_events_are_no_evidence() -> None:
    evidence, detector = EventEvidence(), Detector()
    assert evidence.add([], []).size == detector.add([], []).size == 0
    assert evidence.log_e_value == pytest.approx(0, abs=1e-12)
    assert detector.log_e_value == detector.largest == -math.inf
    assert evidence.detectable(1.5, math.log(400)) is None
    assert np.isnan(chance(0, 0, 1.5))


@pytest.mark.parametrize(("w_t", "ratio"), [(0.01, 8.8), (0.05, 4.3), (0.25, 2.9), (0.5, 2.8)])
def test_the_detectable_rate_after_20000_requests_is_more_than_the_mean_evidence_reaches(
    w_t: float, ratio: float
) -> None:
    """At 0.5 % errors, tolerance 1.5, a quarter of a percent of false alarms. The ratios are the design's, at which the
    mean evidence is enough: half of the runs have less.
    """
    evidence = EventEvidence()
    evidence.add([False] * round(20_000 * (1 - w_t) * 0.005), chance(w_t, 1 - w_t, 1.5))
    detectable = evidence.detectable(1.5, math.log(400))
    assert detectable is not None
    assert 1.05 * ratio < detectable < 1.6 * ratio


@pytest.mark.parametrize(("w_t", "control"), [(0.5, 10), (0.5, 100), (0.05, 190)])
def test_what_is_called_detectable_is_detected_in_four_of_five_runs(w_t: float, control: int) -> None:
    p0, threshold, runs = float(chance(w_t, 1 - w_t, 1.5)), math.log(400), 200
    quiet = EventEvidence()
    quiet.add([False] * control, p0)
    ratio = quiet.detectable(1.5, threshold)
    assert ratio is not None
    rng, found = np.random.default_rng(3), 0
    for _ in range(runs):
        of_control, of_treatment = rng.poisson(control), rng.poisson(control * w_t / (1 - w_t) * ratio)
        events = rng.permutation(np.repeat([True, False], [of_treatment, of_control]))
        found += EventEvidence().add(events, p0).max(initial=0.0) >= threshold
    assert 0.75 * runs <= found <= 0.95 * runs


def test_a_rate_is_detectable_from_exposures() -> None:
    evidence = EventEvidence("exposures")
    evidence.add([False] * 9, 0.05)
    assert (evidence.detectable(0.05, math.log(400)) or 1) > 0.3
    evidence.add([True] * 50 + [False] * 941, 0.05)
    rate = evidence.detectable(0.05, math.log(400))
    assert rate is not None
    assert 0.07 < rate < 0.11


@pytest.mark.parametrize("limit", [0.5, 0.98, 0.995])
def test_an_absolute_limit_near_one_is_no_evidence_for_less(limit: float) -> None:
    assert EventEvidence("exposures").add([False] * 20, limit)[-1] <= 0
    assert EventEvidence("exposures").add([True] * 20, limit)[-1] >= -1e-12


def test_the_detector_sees_a_late_regression_that_a_healthy_past_hides() -> None:
    rng = np.random.default_rng(4)
    p0, bad = float(chance(1, 1, 1.5)), 20 / 21
    healthy, late = rng.random(5000) < 0.5, rng.random(200) < bad
    whole, detector = EventEvidence(), Detector()
    whole.add(np.r_[healthy, late], p0)
    detector.add(np.r_[healthy, late], p0)
    assert detector.largest > alarm_at(0.0025) > whole.largest


def test_a_missing_value_in_either_arm_is_evidence_in_both_directions() -> None:
    for hit in (True, False):
        more, less = EventEvidence(), EventEvidence()
        more.add([hit] * 20, chance(1, 1, 1.0))
        less.add([not hit] * 20, chance(1, 1, 1.0))
        assert two_sided(more.log_e_value, less.log_e_value) > math.log(1000)
    assert two_sided(EventEvidence().log_e_value, EventEvidence().log_e_value) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("counts", "weights", "expected"),
    [((5100, 4900), (50, 50), 0.619272), ((10300, 9700), (1, 1), 7.050504), ((120, 9880), (1, 99), 0.446162)],
)
def test_the_evidence_is_the_designs(counts: tuple[int, int], weights: tuple[int, int], expected: float) -> None:
    assert log_e_value([(counts, weights)]) == pytest.approx(expected, abs=1e-5)


arms = st.integers(2, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 30_000), min_size=n, max_size=n), st.lists(st.integers(1, 99), min_size=n, max_size=n)
    )
)


@given(arms)
def test_the_evidence_is_that_of_ssrm_test(arms: tuple[list[int], list[int]]) -> None:
    counts, weights = np.array(arms[0], dtype=float), np.array(arms[1], dtype=float)
    p = weights / weights.sum()
    expected = reference.log_posterior_predictive(counts, CONCENTRATION * p) - reference.multinomiallogpmf(
        counts, counts.sum(), p
    )
    assert log_e_value([arms]) == pytest.approx(float(expected), abs=1e-6)


@given(st.lists(arms, max_size=4))
def test_plans_add_up(plans: list[tuple[list[int], list[int]]]) -> None:
    assert log_e_value(plans) == pytest.approx(sum(log_e_value([plan]) for plan in plans), abs=1e-9)


def test_no_units_are_no_evidence() -> None:
    assert log_e_value([]) == 0
    assert log_e_value([((0, 0), (50, 50))]) == pytest.approx(0, abs=1e-9)
    assert log_e_value([((70, 0), (100, 0))]) == 0


def test_a_unit_in_an_arm_without_weight_is_certain() -> None:
    assert log_e_value([((70, 1), (100, 0))]) == CERTAIN
    assert math.log(1000) == THRESHOLD


def test_the_evidence_is_a_martingale_of_the_units() -> None:
    """The mean of E after one more unit is E, whatever the units before were."""
    p = np.array([0.2, 0.8])
    for counts in [(0, 0), (7, 3), (200, 900)]:
        after = [log_e_value([((counts[0] + (arm == 0), counts[1] + (arm == 1)), (20, 80))]) for arm in (0, 1)]
        assert p @ np.exp(after) == pytest.approx(math.exp(log_e_value([(counts, (20, 80))])), rel=1e-9)
