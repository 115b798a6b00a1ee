import math
from collections import defaultdict
from dataclasses import astuple
from typing import get_args

import numpy as np
import pytest
import ville
from hypothesis import assume, given
from hypothesis import strategies as st

from app.experiments.statistics.look import (
    Covariates,
    Estimate,
    LookScale,
    Moments,
    UnitSums,
    extremes,
    look,
    look_of_requests,
)
from app.experiments.statistics.sequences import boundary, smallest_boundary

Line = tuple[int, int, int, float, float]
"""unit, stratum, arm, x, d of one request."""

SCALES: tuple[LookScale, ...] = get_args(LookScale)


def lines_of(requests: list[Line]) -> UnitSums:
    unit, stratum, arm, x, d = (np.array(column) for column in zip(*requests, strict=True))
    return UnitSums(unit, stratum, arm, np.ones(len(requests)), x.astype(float), d.astype(float))


def moments_of(requests: list[Line]) -> Moments:
    sums = np.zeros((6, 1 + max(stratum for _, stratum, *_ in requests), 2))
    for _, stratum, arm, x, d in requests:
        sums[:, stratum, arm] += [1, x, d, x * x, x * d, d * d]
    return Moments(*sums)


def slow_look(requests: list[Line], scale: LookScale) -> tuple[float, float, float] | None:
    """The formulas word for word, without arrays: estimate, error, degrees of freedom."""
    n: dict[tuple[int, int], int] = defaultdict(int)
    total_x: dict[tuple[int, int], float] = defaultdict(float)
    total_d: dict[tuple[int, int], float] = defaultdict(float)
    for _, s, a, x, d in requests:
        n[s, a] += 1
        total_x[s, a] += x
        total_d[s, a] += d
    ok = [s for s in {s for s, _ in n} if n[s, 0] >= 2 and n[s, 1] >= 2]
    if not ok:
        return None
    w = {s: total_d[s, 0] * total_d[s, 1] / (total_d[s, 0] + total_d[s, 1]) for s in ok}
    mean = {(s, a): total_x[s, a] / total_d[s, a] for s in ok for a in (0, 1)}
    sums = [sum(w[s] * mean[s, a] for s in ok) for a in (0, 1)]
    overlap = sum(w.values())
    units = [{u for u, s, a, *_ in requests if s in ok and a == arm} for arm in (0, 1)]
    free = [len(mine) - len(ok) for mine in units]
    if min(free) <= 0 or (scale == "ratio" and min(sums) <= 0):
        return None
    by = (-overlap, overlap) if scale == "difference" else (-sums[0], sums[1])

    def variances(power: float, about: dict[tuple[int, int], float]) -> list[float]:
        return slow_variances(
            [
                (
                    u,
                    a,
                    (total_d[s, a] / total_d[s, 1 - a]) ** power * w[s] / total_d[s, a] / by[a] * (x - about[s, a] * d),
                )
                for u, s, a, x, d in requests
                if s in ok
            ],
            [len(mine) / mine_free for mine, mine_free in zip(units, free, strict=True)],
        )

    about = mean
    if sum(variances(0, mean)) < 1e-18:
        together = {s: (total_x[s, 0] + total_x[s, 1]) / (total_d[s, 0] + total_d[s, 1]) for s in ok}
        about = {(s, a): together[s] for s, a in mean}
        if scale == "ratio":
            by = (-sum(w[s] * together[s] for s in ok), sum(w[s] * together[s] for s in ok))
    own, exchanged = (variances(power, about) for power in (0, 0.5))

    def degrees(parts: list[float]) -> float:
        return sum(parts) ** 2 / sum(parts[arm] ** 2 / free[arm] for arm in (0, 1))

    est = (sums[1] - sums[0]) / overlap if scale == "difference" else math.log(sums[1] / sums[0])
    if sum(exchanged) > sum(own):
        return est, math.sqrt(sum(exchanged)), degrees([len(units[1]), len(units[0])])
    return est, math.sqrt(sum(own)), degrees(own) if sum(own) else 0.0


def slow_variances(influences: list[tuple[int, int, float]], corrections: list[float]) -> list[float]:
    """The arms' variances, from each request's unit, arm and influence."""
    residuals: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for unit, arm, influence in influences:
        residuals[unit][arm] += influence
    squares = [0.0, 0.0]
    for parts in residuals.values():
        for arm in (0, 1):
            if parts[arm]:
                squares[arm] += sum(parts) ** 2 * parts[arm] ** 2 / (parts[0] ** 2 + parts[1] ** 2)
    return [square * correction for square, correction in zip(squares, corrections, strict=True)]


a_request = st.tuples(
    st.integers(0, 14),
    st.integers(0, 3),
    st.integers(0, 1),
    st.floats(0.125, 50, width=32),
    st.floats(0.125, 10, width=32),
)
requests = st.lists(a_request, min_size=1, max_size=80)


def same(one: Estimate | None, other: Estimate | None, tolerance: float = 1e-9) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert astuple(one)[:3] == pytest.approx(astuple(other)[:3], rel=tolerance, abs=tolerance)
        assert (one.units, one.clusters) == (other.units, other.clusters)


UNIT = [1, 1, 2, 3, 3, 3, 4, 5, 6, 6, 7, 8]
ARM = [1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0]
STRATUM = [0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1]
X = [3.0, 4, 2, 5, 6, 1, 2, 7, 4, 3, 5, 2]
D = [1.0, 2, 1, 2, 2, 1, 1, 2, 1, 1, 1, 1]
REFERENCE = list(zip(UNIT, STRATUM, ARM, X, D, strict=True))


@pytest.mark.parametrize(("scale", "est", "se"), [("ratio", 0.159065, 0.228531), ("difference", 0.434783, 0.634068)])
def test_the_reference_look(scale: LookScale, est: float, se: float) -> None:
    result = look(lines_of(REFERENCE), scale)
    assert result is not None
    assert (result.s1, result.s0, result.overlap) == pytest.approx((11.333333, 9.666667, 3.833333), abs=1e-5)
    assert (result.est, result.se) == pytest.approx((est, se), abs=1e-5)
    assert 2 < result.nu <= 4
    assert (result.units, result.clusters) == ((4, 4), 8)


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests)
def test_a_look_is_the_slow_transcription_of_the_formulas(scale: LookScale, requests: list[Line]) -> None:
    expected = slow_look(requests, scale)
    result = look(lines_of(requests), scale)
    if expected is None or expected[1] < 1e-9:
        assert result is None
    else:
        assert result is not None
        assert astuple(result)[:3] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@given(
    counts=st.one_of(st.tuples(st.integers(30, 400), st.integers(30, 400)), st.just((30, 30))),
    values=st.tuples(st.floats(0.125, 50, width=32), st.floats(0.125, 50, width=32)),
)
def test_arms_whose_values_never_vary_differ_if_the_values_do(
    scale: LookScale, counts: tuple[int, int], values: tuple[float, float]
) -> None:
    assume(values[0] == values[1] or abs(math.log(values[1] / values[0])) > 1e-3)
    requests = [(arm * 1000 + unit, 0, arm, values[arm], 1.0) for arm in (0, 1) for unit in range(counts[arm])]
    result = look(lines_of(requests), scale)
    same(result, look_of_requests(moments_of(requests), scale), 1e-6)
    if values[0] == values[1]:
        assert result is None
    else:
        assert result is not None
        effect = values[1] - values[0] if scale == "difference" else math.log(values[1] / values[0])
        assert result.est == pytest.approx(effect, rel=1e-6)
        assert abs(result.est / result.se) > (5 if counts[0] == counts[1] else 2)


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests)
def test_without_users_the_moments_are_enough(scale: LookScale, requests: list[Line]) -> None:
    alone = [(number, *rest) for number, (_, *rest) in enumerate(requests)]
    same(look_of_requests(moments_of(alone), scale), look(lines_of(alone), scale), 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests, data=st.data())
def test_neither_order_nor_merging_of_lines_changes_a_look(
    scale: LookScale, requests: list[Line], data: st.DataObject
) -> None:
    shuffled = lines_of(data.draw(st.permutations(requests)))
    sums: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for unit, stratum, arm, x, d in requests:
        for place, value in enumerate((1.0, x, d)):
            sums[unit, stratum, arm][place] += value
    merged = UnitSums(*np.array(list(sums), dtype=int).T, *np.array(list(sums.values())).T)
    same(look(shuffled, scale), look(lines_of(requests), scale))
    same(look(merged, scale), look(lines_of(requests), scale))


@given(requests=requests, factor=st.floats(0.01, 100))
def test_a_common_factor_changes_no_lift(requests: list[Line], factor: float) -> None:
    times = [(*line[:3], factor * line[3], line[4]) for line in requests]
    same(look(lines_of(times), "ratio"), look(lines_of(requests), "ratio"), 1e-7)
    logs = [(*line[:3], math.log(line[3]), 1.0) for line in requests]
    shifted = [(*line[:3], line[3] + math.log(factor), 1.0) for line in logs]
    same(look(lines_of(shifted), "difference"), look(lines_of(logs), "difference"), 1e-7)


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests)
def test_swapped_arms_negate_the_effect(scale: LookScale, requests: list[Line]) -> None:
    one = look(lines_of(requests), scale)
    other = look(lines_of([(u, s, 1 - a, x, d) for u, s, a, x, d in requests]), scale)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert other.est == pytest.approx(-one.est, abs=1e-9)
        assert other.se == pytest.approx(one.se, rel=1e-9)
        assert other.units == one.units[::-1]


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests, empty=st.integers(0, 1), more=st.integers(1, 5))
def test_a_stratum_with_an_empty_arm_changes_nothing(
    scale: LookScale, requests: list[Line], empty: int, more: int
) -> None:
    others: list[Line] = [(unit, 4, 1 - empty, 3.0 + unit, 2.0) for unit in range(more + 15)]
    same(look(lines_of(requests + others), scale), look(lines_of(requests), scale))


@given(seed=st.integers(0, 1000), t_opt=st.integers(50, 5000), n=st.integers(100, 2000))
def test_with_one_unit_per_request_one_stratum_and_one_scale_it_is_villes_sequence(
    seed: int, t_opt: int, n: int
) -> None:
    """Control is constant, so the difference is a mean; ville uses the normal limit in place of Student's t."""
    y = np.random.default_rng(seed).normal(0.2, 3, n)
    theirs = ville.AsymptoticCS(alpha=0.05, t_opt=t_opt, min_samples=2).fit(y)
    arm, zeros = np.repeat([1, 0], n), np.zeros(2 * n)
    lines = UnitSums(np.arange(2 * n), zeros.astype(int), arm, zeros + 1, np.r_[y, np.zeros(n)], zeros + 1)
    mine = look(lines, "difference")
    assert mine is not None
    effect = smallest_boundary(0.05) * y.std(ddof=1) / math.sqrt(t_opt)
    reach = float(boundary(mine.se, math.inf, effect=effect, alpha=0.05, mixture={1.0: 1.0})) * mine.se
    assert (mine.est - reach, mine.est + reach) == pytest.approx(theirs.interval(), abs=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([], id="nothing"),
        pytest.param([(0, 0, 0, 1.0, 1.0)] * 9, id="one arm"),
        pytest.param([(u, 0, u % 2, 2.5, 1.0) for u in range(50)], id="no variance"),
        pytest.param([(u, 0, u % 2, 0.1, 1.0) for u in range(49)], id="no variance, rounded"),
        pytest.param([(u, 0, u % 2, 0.0, 1.0) for u in range(50)], id="all zero"),
        pytest.param([(u, 0, u % 2, 1.0 + u, 0.0) for u in range(50)], id="no denominator"),
        pytest.param([(u, u, u % 2, 1.0 + u, 1.0) for u in range(50)], id="a stratum each"),
        pytest.param([(u % 2, 0, u % 2, 1.0 + u, 1.0) for u in range(50)], id="a unit each"),
        pytest.param([(u, 0, u % 2, math.inf, 1.0) for u in range(50)], id="infinite"),
        pytest.param([(u, 0, u % 2, math.nan, 1.0) for u in range(50)], id="no number"),
        pytest.param([(u, 0, u % 2, (u + 1) * 1e200, 1.0) for u in range(50)], id="overflow"),
    ],
)
def test_without_enough_data_there_is_no_look(scale: LookScale, requests: list[Line]) -> None:
    empty = np.empty(0)
    lines = (
        lines_of(requests)
        if requests
        else UnitSums(empty.astype(int), empty.astype(int), empty.astype(int), *[empty] * 3)
    )
    moments = moments_of(requests) if requests else Moments(*np.empty((6, 0, 2)))
    result = look(lines, scale)
    assert result is None or math.isfinite(result.est + result.se)
    if len({x for *_, x, _ in requests}) < 2 or requests[0][3] != requests[0][3]:
        assert result is None
        assert look_of_requests(moments, scale) is None or len({unit for unit, *_ in requests}) < 9


def test_a_ratio_without_a_single_event_in_one_arm_has_no_look() -> None:
    requests: list[Line] = [(u, 0, u % 2, float(u % 4 == 1), 1.0) for u in range(80)]
    assert look(lines_of(requests), "ratio") is None
    assert look_of_requests(moments_of(requests), "ratio") is None
    assert look(lines_of(requests), "difference") is not None


def test_no_claim_before_thirty_units_in_each_arm() -> None:
    rng = np.random.default_rng(1)
    requests: list[Line] = [(u, 0, int(u >= 200), float(rng.normal(5 * (u >= 200))), 1.0) for u in range(229)]
    few = look(lines_of(requests), "difference")
    assert few is not None
    assert few.units == (200, 29)
    assert few.interval(effect=0.05, alpha=0.05) is None
    assert few.log_e_value(effect=0.05, alpha=0.05) == 0
    enough = look(lines_of([*requests, (229, 0, 1, 5.0, 1.0)]), "difference")
    assert enough is not None
    assert enough.interval(effect=0.05, alpha=0.05) is not None
    assert enough.log_e_value(effect=0.05, alpha=0.05) > 10


def test_sigma_gives_back_the_error() -> None:
    rng = np.random.default_rng(2)
    requests: list[Line] = [(u % 500, 0, int(u % 500 < 100), float(rng.normal(3)), 1.0) for u in range(2000)]
    result = look(lines_of(requests), "difference")
    assert result is not None
    assert result.sigma**2 / (500 * 0.2 * 0.8) == pytest.approx(result.se**2, rel=1e-9)
    assert result.information == pytest.approx(1 / result.se**2)


def test_repeats_of_a_user_are_no_information() -> None:
    rng = np.random.default_rng(3)
    once: list[Line] = [(u, 0, u % 2, float(rng.normal()), 1.0) for u in range(400)]
    clustered, single = look(lines_of(once * 4), "difference"), look_of_requests(moments_of(once * 4), "difference")
    alone = look(lines_of(once), "difference")
    assert clustered is not None
    assert single is not None
    assert alone is not None
    assert clustered.se == pytest.approx(alone.se, rel=1e-9)
    assert clustered.se**2 / single.se**2 == pytest.approx(4, rel=0.02)


def test_the_error_and_its_degrees_are_those_of_a_small_treatment() -> None:
    """The first step of a ramp: 3,000 units of control and 40 of the treatment, in 12 strata that differ."""
    rng = np.random.default_rng(5)
    looks = []
    for _ in range(400):
        stratum = np.concatenate([np.arange(3000) % 12, np.arange(40) % 12])
        arm = np.repeat([0, 1], [3000, 40])
        ones = np.ones(3040)
        found = look(
            UnitSums(np.arange(3040), stratum, arm, ones, stratum + rng.normal(0, 1, 3040), ones), "difference"
        )
        assert found is not None
        looks.append(found)
    assert all(28 <= estimate.nu < 35 for estimate in looks)
    assert np.mean([estimate.est**2 for estimate in looks]) == pytest.approx(
        np.mean([estimate.se**2 for estimate in looks]), rel=0.1
    )


def clustered(rng: np.random.Generator, units: int = 300, share: float = 0.4) -> tuple[list[Line], Covariates]:
    """Requests of units that differ, in two strata, and two numbers of each unit that tell of its level."""
    level, treated = rng.normal(3, 1, units), rng.random(units) < share
    drawn = rng.integers(0, units, 5 * units)
    requests: list[Line] = [
        (int(u), int(u) % 2, int(treated[u]), float(abs(level[u] + rng.normal(0, 0.5)) + 0.1), float(1 + u % 3))
        for u in drawn
    ]
    unit = np.unique(drawn)
    values = np.stack([level + rng.normal(0, 0.3, units), level**2], axis=1)[unit]
    return requests, Covariates(unit, unit % 2, treated[unit].astype(np.int64), values)


@pytest.mark.parametrize("scale", SCALES)
@given(seed=st.integers(0, 1000), shift=st.floats(-100, 100), factor=st.floats(0.01, 100))
def test_an_adjusted_look_does_not_depend_on_the_covariates_units(
    scale: LookScale, seed: int, shift: float, factor: float
) -> None:
    """Nor on which of their combinations are given."""
    requests, known = clustered(np.random.default_rng(seed))
    adjusted = look(lines_of(requests), scale, known)
    other = factor * known.values + shift
    same(look(lines_of(requests), scale, known._replace(values=other)), adjusted, 1e-6)
    same(look(lines_of(requests), scale, known._replace(values=other @ np.array([[1, 2], [1, -1]]))), adjusted, 1e-6)
    doubled = known._replace(values=np.hstack([known.values, known.values[:, :1]]))
    same(look(lines_of(requests), scale, doubled), adjusted, 1e-6)
    order = np.random.default_rng(seed + 1).permutation(len(known.unit))
    same(look(lines_of(requests), scale, Covariates._make(column[order] for column in known)), adjusted)


@pytest.mark.parametrize("scale", SCALES)
@given(seed=st.integers(0, 1000))
def test_swapped_arms_negate_an_adjusted_effect(scale: LookScale, seed: int) -> None:
    requests, known = clustered(np.random.default_rng(seed))
    one = look(lines_of(requests), scale, known)
    swapped = [(u, s, 1 - a, x, d) for u, s, a, x, d in requests]
    other = look(lines_of(swapped), scale, known._replace(arm=1 - known.arm))
    assert one is not None
    assert other is not None
    assert other.est == pytest.approx(-one.est, abs=1e-9)
    assert other.se == pytest.approx(one.se, rel=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests, seed=st.integers(0, 1000), value=st.floats(-1e6, 1e6))
def test_a_covariate_that_tells_nothing_changes_nothing(
    scale: LookScale, requests: list[Line], seed: int, value: float
) -> None:
    """It is the same for all units, or known of too few, or of none."""
    plain = look(lines_of(requests), scale)
    nobody = Covariates(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), np.zeros((0, 2)))
    assert look(lines_of(requests), scale, nobody) == plain
    more, known = clustered(np.random.default_rng(seed))
    plain = look(lines_of(more), scale)
    for values in (np.full_like(known.values, value), np.where(known.unit < 9, known.values.T, 0.0).T):
        assert look(lines_of(more), scale, known._replace(values=values)) == plain


def test_with_one_request_per_unit_it_is_the_analysis_of_covariance() -> None:
    """Least squares on the arm and the covariates, weighted by what each unit counts."""
    rng = np.random.default_rng(4)
    n, m = 130, 70
    arm, z = np.repeat([0, 1], [n, m]), rng.normal(0, 1, (n + m, 2))
    x = 1 + 0.5 * arm + z @ [0.8, -0.3] + rng.normal(0, 1, n + m)
    unit, ones = np.arange(n + m), np.ones(n + m)
    nothing = np.zeros(n + m, int)
    estimate = look(UnitSums(unit, nothing, arm, ones, x, ones), "difference", Covariates(unit, nothing, arm, z))
    root = 1 / np.where(arm == 1, m, n)
    slopes = np.linalg.lstsq(np.column_stack([ones, arm, z]) * root[:, None], x * root, rcond=None)[0]
    assert estimate is not None
    assert estimate.est == pytest.approx(slopes[1], rel=1e-9)
    left = x - np.column_stack([ones, arm, z]) @ slopes
    squares = [np.square(left[arm == a]).sum() / k / (k - 3) for a, k in ((0, n), (1, m))]
    assert estimate.se == pytest.approx(math.sqrt(sum(squares)), rel=1e-9)
    assert estimate.unadjusted == look(UnitSums(unit, nothing, arm, ones, x, ones), "difference")


def test_an_adjusted_look_has_the_error_that_it_says_and_a_smaller_one() -> None:
    """Whatever the draw; and given that the arms' covariates differ much by chance, when the other look is biased."""
    looks, differences = [], []
    for seed in range(600):
        rng = np.random.default_rng(seed)
        requests, known = clustered(rng)
        lines = lines_of(requests)
        looks.append(look(lines._replace(d=lines.n), "difference", known))
        differences.append(known.values[known.arm == 1, 0].mean() - known.values[known.arm == 0, 0].mean())
    unlucky = np.abs(differences) > np.quantile(np.abs(differences), 0.8)
    for which, rel in ((np.ones(600, bool), 0.15), (unlucky, 0.3)):
        mine = [estimate for estimate, is_in in zip(looks, which, strict=True) if is_in and estimate is not None]
        assert np.mean([estimate.est**2 for estimate in mine]) == pytest.approx(
            np.mean([estimate.se**2 for estimate in mine]), rel=rel
        )
    plain = [estimate.unadjusted for estimate in looks if estimate is not None]
    assert all(estimate is not None for estimate in plain)
    ratio = np.mean(
        [(estimate.se / other.se) ** 2 for estimate, other in zip(looks, plain, strict=True) if estimate and other]
    )
    assert ratio < 0.4
    far = [
        estimate.est**2 / estimate.se**2
        for estimate, is_in in zip(plain, unlucky, strict=True)
        if is_in and estimate is not None
    ]
    assert np.mean(far) > 1.7


@pytest.mark.parametrize("scale", SCALES)
@given(requests=requests)
def test_the_variance_is_never_below_that_of_exchanged_arms(scale: LookScale, requests: list[Line]) -> None:
    """In one stratum with a request per unit: both arms' squares together, over both arms' numbers."""
    alone: list[Line] = [(unit, 0, arm, x, 1.0) for unit, (_, _, arm, x, _) in enumerate(requests)]
    result = look(lines_of(alone), scale)
    if result is None:
        return
    values = [np.array([x for _, _, arm, x, _ in alone if arm == mine]) for mine in (0, 1)]
    by = [float(of_arm.mean()) if scale == "ratio" else 1.0 for of_arm in values]
    variances = [float((of_arm / mean).var(ddof=1)) for of_arm, mean in zip(values, by, strict=True)]
    own = sum(variance / len(of_arm) for variance, of_arm in zip(variances, values, strict=True))
    exchanged = sum(variance / len(of_arm) for variance, of_arm in zip(variances, values[::-1], strict=True))
    assert result.se**2 == pytest.approx(max(own, exchanged), rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_an_arm_without_the_rare_value_that_control_has_is_as_uncertain_as_control(scale: LookScale) -> None:
    """One of a hundred takes 8 s: the treatment's fifty have not met it yet."""
    ones = np.ones(2050)
    x = np.where(np.arange(2050) % 100 == 0, 8.0, 0.3) + 0.001 * (np.arange(2050) % 7)
    x[2000:] = 0.3 + 0.001 * (np.arange(50) % 7)
    estimate = look(
        UnitSums(np.arange(2050), np.zeros(2050, int), (np.arange(2050) >= 2000).astype(int), ones, x, ones), scale
    )
    assert estimate is not None
    assert estimate.se > 0.9 * x[:2000].std() / math.sqrt(50) / (1.0 if scale == "difference" else x[:2000].mean())
    assert estimate.nu < 60
    assert estimate.log_e_value(effect=0.05, alpha=0.05) < math.log(20)


@given(
    seen=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=12),
    known=st.tuples(st.integers(0, 100), st.integers(1, 100)),
    unknown=st.lists(st.integers(0, 11), min_size=1, max_size=6),
)
def test_no_mixture_of_what_was_seen_makes_a_ratio_of_sums_larger_or_smaller_than_its_extremes(
    seen: list[tuple[int, int]], known: tuple[int, int], unknown: list[int]
) -> None:
    pairs = np.array(seen, np.float64)
    found = extremes(pairs)
    numerators, denominators = len(unknown) * found.T
    ratios = (known[0] + numerators) / (known[1] + denominators)
    x, d = np.array(known) + pairs[[place % len(pairs) for place in unknown]].sum(axis=0)
    assert ratios.min() - 1e-12 <= x / d <= ratios.max() + 1e-12
    assert {tuple(pair) for pair in found} <= set(seen), "only what was seen"
    assert extremes(np.vstack([found, pairs])).tolist() == found.tolist(), "in whatever order they come"
