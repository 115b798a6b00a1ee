"""What requests without a value, or without an end, allow for."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.analysis.aggregates import Subgroup, SubgroupLook, SufficientStatistics
from app.experiments.analysis.analysis import Analysis
from app.experiments.analysis.arrays import Floats
from app.experiments.statistics.look import Slack
from app.exposures.wire import Failure
from tests.support.experiments.world import BLUE, DAY_S, GREEN, START, World, analysis_of, config

FASTEST, SLOWEST = 0.05, 8.0
LONG = 3
"""The subgroup of prompts of 4,096 bytes to under 16,384."""
PLAIN: dict[str, Any] = {"guardrails": [], "covariates": []}


def test_streams_that_go_on_may_have_had_few_tokens_in_ten_minutes() -> None:
    """Seven of green's 3,000, whose others are 15 % faster, would make its rate the lower one."""
    world = World(slower=1 / 1.15, hangs=0.001, error_rate=(0.0, 0.0))
    rate = {"metric": "tokens_per_second", "minimal_effect": 0.05}
    analysis = analysis_of(world, config(primary=[rate], strata=[], guardrails=[]))
    world.requests(6000).tell(analysis)
    analysis.tick(START + 1.1 * DAY_S)
    report = analysis.report(START + 1.1 * DAY_S)
    (tokens,) = report.primary
    assert report.running["green"] == 7
    assert (tokens.verdict, report.decision) == ("undecided", "keep_going")
    assert tokens.effect.estimate is not None
    assert tokens.effect.estimate > 0.14
    assert tokens.effect.lower is not None
    assert tokens.effect.lower < 0.05, "each had the least tokens in the longest time"


def ramp(shares: list[int], *, fails: list[float], sticky: str | None = None, **how: Any) -> SufficientStatistics:
    """The sums of 2,000 requests at the first and the last of green's `shares`, and 500 at others. A part `fails`,
    or has the first token that `filled` says for blue, and for green. `long`: only long prompts do.
    """
    world = World()
    settings = PLAIN | {"strata": []} | {name: how[name] for name in ("strata", "primary") if name in how}
    analysis = analysis_of(world, config(sticky=sticky, **settings))
    rng, filled = np.random.default_rng(1), how.get("filled")
    for step, (share, part) in enumerate(zip(shares, fails, strict=True)):
        count = 500 if 0 < step < len(shares) - 1 else 2000
        world.weights, world.plan = (100 - share, share), f"{step}-aaaaaaaa"
        # a user stays at its step and arm, and has long or short prompts
        user = 10_000 * step + rng.integers(0, count // 2, count)
        draws = np.random.default_rng(step).random((2, 10_000))[:, user % 10_000]
        green, long = draws[0] < share / 100, draws[1] < 0.3
        ttft = np.clip(np.exp(rng.normal(-1, 0.5, count)) * np.where(long, 4, 1), FASTEST, SLOWEST)
        ttft[:4] = FASTEST, FASTEST, SLOWEST, SLOWEST
        fail = (rng.random(count) < part) & (long | (not how.get("long", False))) & (np.arange(count) > 3)
        if filled is not None:
            ttft[fail] = np.where(green, filled[1], filled[0])[fail]
            fail[:] = False
        columns = {
            "ttft_s": np.where(fail, np.nan, ttft),
            "served": np.where(fail, -1, np.where(green, world.codes[GREEN], world.codes[BLUE])),
            "status": np.where(fail, 502, 200),
            "error": np.where(fail, Failure.UNREACHABLE, Failure.NONE),
            "prompt_bytes": np.where(long, 9000, 500),
        }
        at = np.sort(START + step * DAY_S + rng.random(count) * DAY_S / 2)
        world.answered(at, user, green, **columns).tell(analysis)
    return collected(analysis)


def collected(analysis: Analysis) -> SufficientStatistics:
    return analysis.collected  # reports do not show what is allowed for


def estimate(sums: SufficientStatistics) -> float:
    look = sums.look(0, 1)
    assert look is not None
    return look.est


KINDS = [
    pytest.param({"sticky": None}, id="requests"),
    pytest.param({"sticky": "user"}, id="units"),
    pytest.param({"sticky": None, "strata": ["prompt_bytes"], "long": True}, id="requests by size"),
    pytest.param({"sticky": "user", "strata": ["prompt_bytes"], "long": True}, id="units by size"),
]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("shares", [[5, 50, 95], [50, 50, 50]])
def test_missing_values_allow_for_exactly_what_the_extreme_ones_would_change(
    shares: list[int], how: dict[str, Any]
) -> None:
    fails = [0.0, 0.2, 0.0]
    sums = ramp(shares, fails=fails, **how)
    est, slack = estimate(sums), sums.missing.slack_of_missing(0, 1)
    extremes = (SLOWEST, FASTEST), (FASTEST, SLOWEST)
    least, most = (estimate(ramp(shares, fails=fails, filled=values, **how)) for values in extremes)
    assert slack == pytest.approx((est - least, most - est), abs=1e-9)


def of_subgroup(sums: SufficientStatistics, value: int) -> SubgroupLook:
    """The look at prompts of one size, and at all others."""
    (look,) = (look for look in sums.looks_of_subgroups(0, 1) if look.subgroup == Subgroup("prompt_bytes", value))
    return look


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("shares", [[5, 50, 95], [50, 50, 50]])
def test_in_a_subgroup_they_allow_for_exactly_what_the_extreme_ones_would_change(
    shares: list[int], how: dict[str, Any]
) -> None:
    fails = [0.0, 0.2, 0.0]
    extremes = (SLOWEST, FASTEST), (FASTEST, SLOWEST)
    known, *filled = (
        of_subgroup(ramp(shares, fails=fails, filled=values, **how), LONG) for values in (None, *extremes)
    )
    least, most = (look.inside.est for look in filled)
    assert known.slack == pytest.approx((known.inside.est - least, most - known.inside.est), abs=1e-9)
    least, most = (look.outside.est for look in filled)
    assert known.slack_outside == pytest.approx((known.outside.est - least, most - known.outside.est), abs=1e-9)


cells = st.lists(st.tuples(st.sampled_from([16, 40, 150]), st.sampled_from([0.2, 0.5, 2.0])), min_size=8, max_size=8)


@pytest.mark.parametrize("sticky", [None, "user"])
@pytest.mark.parametrize("statistic", ["geometric_mean", "mean"])
@given(cells=cells, missing=st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_in_a_subgroup_every_fill_is_within_the_bounds(
    sticky: str | None, statistic: str, cells: list[tuple[int, float]], missing: list[int]
) -> None:
    """`cells`: number and level of the requests of two shares, with a long or a short prompt, on each arm."""
    world = World()
    ttft = {"metric": "ttft", "statistic": statistic, "minimal_effect": 0.05}
    analysis = analysis_of(world, config(sticky=sticky, primary=[ttft], strata=[], guardrails=[], covariates=[]))
    values = [level * np.exp(np.linspace(-1, 1, number)) for number, level in cells]
    for step in range(2):
        world.weights, world.plan = (95 - 60 * step, 5 + 60 * step), f"{step}-aaaaaaaa"
        cell = np.repeat(
            np.arange(4), [number + missing.count(4 * step + n) for n, (number, _) in enumerate(cells[4 * step :][:4])]
        )
        ttft_s = np.concatenate(
            [np.append(values[4 * step + n], [np.nan] * missing.count(4 * step + n)) for n in range(4)]
        )
        at = START + step * DAY_S + np.arange(len(cell), dtype=np.float64)
        user = 1000 * step + np.arange(len(cell))
        columns = {"ttft_s": ttft_s, "prompt_bytes": np.where(cell // 2 == 1, 9000, 500)}
        world.answered(at, user, cell % 2 == 1, **columns).tell(analysis)
    look = of_subgroup(collected(analysis), LONG)
    extremes = min(map(min, values)), max(map(max, values))
    for est, slack, part in ((look.inside.est, look.slack, 1), (look.outside.est, look.slack_outside, 0)):
        own = [number for number in missing if number % 4 // 2 == part]
        for fill in itertools.product((*extremes, None), repeat=len(own)):
            filled = [
                [
                    np.append(
                        values[cell], [value for of, value in zip(own, fill, strict=True) if of == cell and value]
                    )
                    for cell in (4 * step + 2 * part, 4 * step + 2 * part + 1)
                ]
                for step in range(2)
            ]
            assert est - slack.down - 1e-6 <= in_strata(filled, statistic) <= est + slack.up + 1e-6


def in_strata(strata: list[list[Floats]], statistic: str) -> float:
    """The estimate, from its definition, of both arms' values in each stratum."""
    if statistic == "geometric_mean":
        strata = [[np.log(of_arm) for of_arm in both] for both in strata]
    weights = np.array([len(control) * len(treated) / (len(control) + len(treated)) for control, treated in strata])
    control, treated = (
        sum(weight * both[arm].mean() for weight, both in zip(weights, strata, strict=True)) for arm in (0, 1)
    )
    return float((treated - control) / weights.sum() if statistic == "geometric_mean" else np.log(treated / control))


def test_under_one_split_they_allow_for_what_an_arms_mean_does() -> None:
    sums = ramp([50, 50, 50], fails=[0.0, 0.2, 0.0])
    low, high = [], []
    for arm in (0, 1):
        n, x, _ = sums.sums(0, arm)
        requests = sums.requests[arm]
        low.append(x / n - (x + (requests - n) * math.log(FASTEST)) / requests)
        high.append((x + (requests - n) * math.log(SLOWEST)) / requests - x / n)
    assert sums.missing.slack_of_missing(0, 1) == pytest.approx((low[1] + high[0], high[1] + low[0]))


@pytest.mark.parametrize("how", KINDS)
def test_what_fails_while_the_treatment_has_no_traffic_allows_for_nothing(how: dict[str, Any]) -> None:
    sums = ramp([50, 0, 50], fails=[0.0, 0.5, 0.0], **how)
    assert sums.requests[0] - sums.requests_with_value(0, 0) > 50
    assert sums.missing.slack_of_missing(0, 1) == Slack()


@pytest.mark.parametrize("strata", [[], ["prompt_bytes"]])
def test_requests_without_an_end_count_under_their_own_plan(strata: list[str]) -> None:
    """The same few cost more where few are compared, and nothing where one arm has no traffic."""
    sums = ramp([5, 50, 0, 95], fails=[0.0] * 4, strata=strata)
    slacks = []
    for step in range(4):
        unknown = np.zeros((2, 4), np.int64)
        unknown[0, step] = 3
        slacks.append(sums.missing.slack_of_unended(0, 1, unknown))
    assert slacks[1].down > slacks[0].down > 0
    assert slacks[1].up > 0
    assert slacks[2] == Slack()


def test_running_requests_are_told_apart_by_their_plan() -> None:
    world = World(hangs=0.01)
    analysis = analysis_of(world, config(**PLAIN))
    running = []
    for step, share in enumerate((50, 20)):
        world.weights, world.plan = (100 - share, share), f"{step}-aaaaaaaa"
        recorded = world.requests(1000, since=START + step * DAY_S)
        recorded.tell(analysis)
        running.append(len(recorded.late))
    assert min(running) > 0
    assert collected(analysis).running.sum(axis=0).tolist() == running
    assert collected(analysis).running[0].sum() == 0


@pytest.mark.parametrize("shares", [[5, 50, 95], [50, 50, 50], [50, 0, 50]])
def test_missing_values_allow_for_what_the_extreme_ones_would_change_of_a_quantile(shares: list[int]) -> None:
    fails, p90 = [0.0, 0.1, 0.0], [{"metric": "ttft", "statistic": "p90", "minimal_effect": 0.05}]
    sums = ramp(shares, fails=fails, primary=p90)
    est, slack = estimate(sums), sums.missing.slack_of_missing(0, 1)
    extremes = (SLOWEST, FASTEST), (FASTEST, SLOWEST)
    least, most = (estimate(ramp(shares, fails=fails, filled=values, primary=p90)) for values in extremes)
    assert slack == pytest.approx((est - least, most - est), rel=0.25, abs=0.01)
