import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest

from app.experiments.analysis.comparing import (
    MAX_POINTS,
    EffectHistory,
    LatestLook,
    MetricComparison,
    decision_of,
    effect_of,
    is_non_inferior,
    verdict_of,
)
from app.experiments.analysis.effect_changes import EffectChanges, EffectWatch
from app.experiments.analysis.metrics import Measure
from app.experiments.analysis.monitoring import changed, verdict_occurrence
from app.experiments.contract.report import Better, Comparison, Decision, Effect, Verdict
from app.experiments.statistics.look import Moments, look_of_requests
from tests.conftest import NIGHTLY

MINIMAL = math.log(1.05)
FASTER, SLOWER = math.log(0.8), math.log(1.5)
SPREAD = 0.6
"""The standard deviation of a unit's ln time."""
FIXED = 2 * (2.8 * SPREAD / SLOWER) ** 2
"""Units in each arm with which a test at a fixed time finds +50 % in eight of ten runs."""


def filled(minutes: float, every_s: float = 20.0) -> EffectHistory:
    history = EffectHistory()
    for number in range(int(minutes * 60 / every_s)):
        history.add(number * every_s, Effect(estimate=float(number), lower=None, upper=1.0), 0.5, "undecided")
    return history


def test_one_look_a_minute_is_kept_and_the_latest() -> None:
    assert [point.at for point in filled(4).points] == [0.0, 60.0, 120.0, 180.0, 220.0]
    assert [point.at for point in filled(1 / 3).points] == [0.0]


def test_many_looks_are_thinned_evenly_over_the_whole_run() -> None:
    points = filled(60 * 24 * 3, every_s=60).points
    assert len(points) <= MAX_POINTS
    gaps = {after.at - before.at for before, after in itertools.pairwise(points[:-1])}
    assert gaps == {960.0}


def test_a_state_is_plain_data_from_which_it_continues() -> None:
    history, other = filled(30, every_s=60), EffectHistory()
    other.restore(json.loads(json.dumps(history.state())))
    assert other.points == history.points
    other.add(30 * 60.0 + 1, Effect(), None, "invalid")
    assert len(other.points) == 31


def looks(before: int, after: int, seed: int) -> Iterator[tuple[float, float, float, float, float]]:
    """Looks at units that come one by one to each arm, first `FASTER`, then `SLOWER`: estimate, se, nu, size, time."""
    at = [*range(30, before, 50), *range(before, before + after + 1, 2)]
    return _looks([FASTER] * before + [SLOWER] * after, at, seed)


def _looks(
    effects: list[float], at: list[int], seed: int, spreads: list[float] | float = SPREAD
) -> Iterator[tuple[float, float, float, float, float]]:
    random = np.random.default_rng(seed)
    treated, control = random.normal(effects, spreads), random.normal(0, spreads, len(effects))
    for units in at:
        t, c = treated[:units], control[:units]
        se = math.sqrt((t.var(ddof=1) + c.var(ddof=1)) / units)
        yield float(t.mean() - c.mean()), se, 2.0 * units - 2, units / 2, float(units)


def watched(before: int, after: int, seed: int) -> EffectWatch:
    watch = EffectWatch(MINIMAL, alpha=0.01)
    for look in looks(before, after, seed):
        watch.add(*look)
    return watch


def test_a_constant_effect_has_not_changed() -> None:
    """At most 1 % of runs may say so."""
    assert not [seed for seed in range(20) if watched(1000, 0, seed).change]


@pytest.mark.parametrize("noisier", [0.2, 3.0, 8.0])
@pytest.mark.parametrize("size", [0.0, FASTER])
def test_traffic_that_varies_more_or_less_from_some_time_on_is_no_change_of_the_effect(
    size: float, noisier: float
) -> None:
    """At most 1 % of runs may say so."""
    alarms = 0
    for seed in range(30 if NIGHTLY else 10):
        watch = EffectWatch(MINIMAL, alpha=0.01)
        spreads = [SPREAD] * 500 + [noisier * SPREAD] * 500
        for look in _looks([size] * 1000, [*range(30, 1001, 10)], seed, spreads):
            watch.add(*look)
        alarms += watch.change is not None
    assert alarms <= 1


@pytest.mark.parametrize("before", [200, 1000])
def test_half_of_the_flips_are_found_within_twice_the_fixed_horizon_and_all_soon_after(before: int) -> None:
    units = []
    for seed in range(20):
        watch = EffectWatch(MINIMAL, alpha=0.01)
        for look in looks(before, math.ceil(4 * FIXED), seed):
            watch.add(*look)
            if watch.change is not None:
                break
        units.append(look[4] - before)
        assert watch.change is not None
        assert watch.change.until < 0 < watch.change.since
    assert min(units) > 0
    assert np.median(units) <= 2 * FIXED, units


@pytest.mark.parametrize(("after", "flips"), [(math.log(0.95), False), (SLOWER, True)])
def test_a_change_of_direction_is_told_from_one_of_size(after: float, flips: bool) -> None:
    for seed in range(6):
        watch = EffectWatch(MINIMAL, alpha=0.01)
        for look in _looks([math.log(0.5)] * 300 + [after] * 300, [*range(30, 601, 10)], seed):
            watch.add(*look)
        assert watch.change is not None
        assert watch.change.flips == flips
        assert watch.change.at == pytest.approx(300, abs=60)


def level_steps(step: float, seed: int, effect: float = 1.0) -> EffectChanges:
    """Both arms' level moves half-way by e to the power of twice `step`, and green's is `effect` times blue's in the
    second half.
    """
    rng, count, steps = np.random.default_rng(seed), 20_000, 40
    green, later = rng.random(count) < 0.5, np.arange(count) >= count // 2
    x = np.exp(np.where(later, step, -step) + rng.normal(0, 0.7, count)) * np.where(green & later, effect, 1.0)
    watch = EffectChanges(math.log1p(0.05), 0.01, by_level=True)
    for end in range(count // steps, count + 1, count // steps):
        sums = [
            [values[:end][green[:end] == arm].sum() for arm in (False, True)] for values in (np.ones(count), x, x * x)
        ]
        n, total, squares = (np.array([each]) for each in sums)
        found = look_of_requests(Moments(n, total, n, squares, total, n), "ratio")
        assert found is not None
        watch.add(found, float(end))
    return watch


@pytest.mark.parametrize("step", [1.15, -1.15])
def test_a_level_that_moves_in_both_arms_is_no_change_of_a_ratio(step: float) -> None:
    """At most 1 % of runs may say so; weighted by requests alone, a fifth did."""
    assert not [seed for seed in range(20) if level_steps(step, seed).change is not None]


@pytest.mark.parametrize("step", [0.0, 0.35, -0.35])
def test_a_ratio_that_changes_is_found_whatever_its_level_does(step: float) -> None:
    for seed in range(3):
        found = level_steps(step, seed, effect=1.5).change
        assert found is not None
        assert found.since == pytest.approx(math.log(1.5), abs=0.15)


def test_a_restarted_watch_continues_before_and_after_the_change() -> None:
    watch, whole = EffectWatch(MINIMAL, alpha=0.01), watched(200, 150, seed=1)
    for look in looks(200, 150, seed=1):
        watch.add(*look)
        other = EffectWatch(MINIMAL, alpha=0.01)
        other.restore(json.loads(json.dumps(watch.state())))
        watch = other
    assert watch.change == whole.change is not None


def test_a_look_at_fewer_records_than_before_the_change_leaves_its_estimates() -> None:
    """Records are counted again after a restart, and some may be gone."""
    watch, few = watched(200, 150, seed=1), list(looks(200, 0, seed=1))[:2]
    other = EffectWatch(MINIMAL, alpha=0.01)
    other.restore(json.loads(json.dumps(watch.landmarks())))
    found = other.change
    assert found is not None
    assert found.until < 0 < found.since
    for look in few:
        other.add(*look)
    assert other.change == found
    landmarks = json.loads(json.dumps(watch.landmarks()))
    watch.restore(landmarks)
    assert watch.change == watched(200, 150, seed=1).change
    assert json.loads(json.dumps(watch.landmarks())) == landmarks


@pytest.mark.parametrize("change_at", [300, 1500])
def test_an_effect_is_watched_on_where_half_of_the_units_are_left_out(change_at: int) -> None:
    """From the 800th unit on: before or after the change."""
    rng, watch = np.random.default_rng(1), EffectWatch(MINIMAL, alpha=0.01)
    treated, control = rng.normal(0, SPREAD, (2, 3000))
    treated += np.where(np.arange(3000) < change_at, FASTER, SLOWER)
    kept = rng.random(3000) < 0.5
    for units in range(50, 3001, 50):
        share = 1.0 if units <= 800 else 0.5
        which = np.flatnonzero(kept[:units] | (share == 1.0))
        t, c, n = treated[which], control[which], len(which)
        if units == 850:
            watch.begin_anew()
        watch.add(t.mean() - c.mean(), math.sqrt((t.var() + c.var()) / n), 2.0 * n - 2, n / 2 / share, units, 1 / share)
        restored = EffectWatch(MINIMAL, alpha=0.01)
        restored.restore(json.loads(json.dumps(watch.state())))
        watch = restored
    assert watch.change is not None
    assert watch.change.flips
    assert watch.change.at == pytest.approx(change_at, abs=300)
    assert watch.change.until == pytest.approx(FASTER, abs=0.1)
    assert watch.change.since == pytest.approx(SLOWER, abs=0.1)


def test_landmarks_of_a_version_that_kept_no_estimates_are_continued() -> None:
    comparing = MetricComparison(measure("lower"), 0, 1, ("blue", "green"), 0.05, None, 0.05)
    old = watched(200, 150, seed=1).state()
    old["change"] = old["change"]._replace(until=0.0, since=0.0)
    comparing.restore(
        {"word": None, "since": None, "reached": [], "changes": {"starts": old["starts"], "change": old["change"]}}
    )
    change = comparing.changes.change
    assert change is not None
    assert "has changed at 1 January 00:0" in changed(comparing, change, 0.0)


def measure(better: Better) -> Measure:
    return Measure(
        key="m", metric="m", statistic="mean", kind="mean", better=better, scale="relative", minimal_effect=0.05,
        role="primary",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("better", "lower", "upper", "verdict", "non_inferior"),
    [
        ("higher", 0.01, 0.2, "better", True),
        ("higher", -0.2, -0.01, "worse", False),
        ("higher", -0.04, -0.01, "worse", True),
        ("higher", -0.04, 0.04, "equivalent", True),
        ("higher", -0.04, 0.2, "undecided", True),
        ("higher", -0.2, 0.04, "undecided", False),
        ("lower", -0.2, -0.01, "better", True),
        ("lower", 0.01, 0.2, "worse", False),
        ("lower", -0.2, 0.04, "undecided", True),
        ("lower", -0.04, 0.2, "undecided", False),
        ("lower", -0.04, 0.04, "equivalent", True),
        ("neither", 0.01, 0.2, "different", False),
        ("neither", -0.2, -0.01, "different", False),
        ("neither", 0.01, 0.04, "equivalent", True),
        ("neither", -0.2, 0.2, "undecided", False),
        ("higher", 0.01, None, "better", True),
        ("lower", None, None, "undecided", False),
        ("lower", 0.3, None, "worse", False),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_good_direction(
    better: Better, lower: float | None, upper: float | None, verdict: Verdict, non_inferior: bool
) -> None:
    effect = Effect(estimate=0.0, lower=lower, upper=upper)
    assert verdict_of(effect, measure(better)) == verdict
    assert is_non_inferior(effect, measure(better)) == non_inferior


def test_a_lift_is_relative_to_control_and_a_difference_stays_as_it_is() -> None:
    lift = effect_of(-0.08, (-0.14328, -0.01672), "relative")
    assert (lift.lower, lift.upper) == pytest.approx((-0.1335, -0.0166), abs=1e-4)
    assert effect_of(0.3, None, "absolute") == Effect(estimate=0.3)


def compared(verdict: Verdict, *, non_inferior: bool = False) -> Comparison:
    return Comparison(
        metric="m", statistic="mean", role="primary", treatment="green", better="lower", scale="relative",
        minimal_effect=0.05, alpha=0.05, effect=Effect(), verdict=verdict, non_inferior=non_inferior,
    )  # fmt: skip


BETTER, SAME, OPEN = (
    compared("better", non_inferior=True),
    compared("equivalent", non_inferior=True),
    compared("undecided", non_inferior=True),
)


@pytest.mark.parametrize(
    ("primary", "facts", "decision"),
    [
        ([BETTER], {}, "ship"),
        ([BETTER, SAME, OPEN], {}, "ship"),
        ([BETTER, compared("undecided")], {}, "keep_going"),
        ([SAME, OPEN], {}, "keep_going"),
        ([BETTER, compared("worse", non_inferior=True)], {}, "do_not_ship"),
        ([BETTER], {"acted": True}, "do_not_ship"),
        ([BETTER], {"quiet": False}, "keep_going"),
        ([BETTER], {"quiet": False, "acted": True}, "do_not_ship"),
        ([compared("worse")], {"quiet": False}, "do_not_ship"),
        ([BETTER], {"long_enough": False}, "keep_going"),
        ([BETTER], {"changed": True}, "keep_going"),
        ([BETTER], {"same_length": False}, "keep_going"),
        ([BETTER], {"comparable": False}, "keep_going"),
        ([BETTER, compared("different")], {}, "do_not_ship"),
        ([BETTER], {"settled": False}, "keep_going"),
        ([compared("worse")], {"settled": False}, "do_not_ship"),
        ([compared("worse")], {"changed": True}, "do_not_ship"),
        ([BETTER], {"invalid": True}, "invalid"),
        ([compared("worse")], {"invalid": True}, "invalid"),
        ([BETTER], {"invalid": True, "acted": True}, "do_not_ship"),
    ],
)
def test_the_decision_follows_from_the_primary_metrics_and_the_state(
    primary: list[Comparison], facts: dict[str, bool], decision: Decision
) -> None:
    everything = {
        **{"acted": False, "quiet": True, "changed": False, "same_length": True},
        **{"settled": True, "comparable": True, "invalid": False, "long_enough": True},
    }
    assert decision_of(primary, **(everything | facts)) == decision


def test_since_begins_when_no_doubt_is_left() -> None:
    comparing = MetricComparison(measure("lower"), 0, 1, ("blue", "green"), 0.05, None, 0.05, is_recount=False)
    for at, complete in ((1.0, False), (2.0, True), (3.0, True)):
        comparing.looked_at, comparing.known = at, LatestLook(measured="better", complete=complete)
        comparing.say()
        assert (comparing.word, comparing.since) == (("better", 2.0) if complete else (None, None))


def test_a_word_that_the_interval_no_longer_says_is_withdrawn() -> None:
    comparing = MetricComparison(measure("lower"), 0, 1, ("blue", "green"), 0.05, None, 0.05, is_recount=False)

    def told(word: Verdict, at: float) -> str | None:
        comparing.known = LatestLook(measured=word)
        comparing.say()
        return verdict_occurrence(comparing, at, "").text if comparing.tell(invalid=False, now=at) else None

    assert told("equivalent", 0) == "m: green is equivalent, against blue"
    assert told("undecided", 59) is None
    assert told("undecided", 60) == "m: green is no longer equivalent, against blue: undecided"
    assert told("worse", 61) == "m: green is worse, against blue"
    assert told("equivalent", 100) is told("worse", 130) is None
    assert told("equivalent", 131) == "m: green is equivalent, against blue"
    comparing.counted = 900
    told("worse", 200)
    comparing.counted = 1000
    again = MetricComparison(measure("lower"), 0, 1, ("blue", "green"), 0.05, None, 0.05)
    again.restore(json.loads(json.dumps(comparing.landmarks())))
    assert (again.told, again.counted) == (comparing.told, 900)
