"""The design's second table: requests until the verdict, compared with a test that looks once, and coverage at all
looks. As covariates, what was known of users before, their history and first prompts: how much sooner a verdict comes,
and that none is false.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from app.experiments.statistics.look import Covariates, UnitSums, look
from tests.simulation.false_positives import NOMINAL
from tests.simulation.looks import Estimates, found, misses, runs, spaced
from tests.simulation.pool import generator, spread
from tests.simulation.worlds import PROMPT_BUCKETS, RAMP, Kind, World

POWER_80 = 0.841621

_BIG = World("log_ttft", requests=40_000, users=12_000)


@dataclass(frozen=True)
class Row:
    name: str
    world: World
    design: tuple[float, float, float, float]
    """The design's numbers: CS, power, fixed horizon, and when the peeked test first rejects; NaN: none."""
    minimal_effect: float = 0.05


def _times(effect: float) -> World:
    return replace(_BIG, effect=effect)


def _kind(kind: str, effect: float) -> World:
    return replace(_BIG, kind=kind, effect=effect)  # type: ignore[arg-type]


ROWS = (
    Row("ln TTFT -5 %", _times(0.95), (15_690, 0.83, 13_012, 2_414)),
    Row("ln TTFT -10 %", _times(0.90), (2_651, 1.0, 2_651, 715)),
    Row("ln TTFT -20 %", _times(0.80), (715, 1.0, 492, 212)),
    Row("ln TTFT -20 %, smallest effect 1 %", _times(0.80), (math.nan,) * 4, minimal_effect=0.01),
    Row("mean TTFT -10 %", _kind("mean_ttft", 0.90), (4_233, 1.0, 3_855, 593)),
    Row("tokens/s +5 %", _kind("tokens_per_second", 1.05), (14_288, 0.77, 14_288, 1_198)),
    Row("tokens/s +10 %", _kind("tokens_per_second", 1.10), (2_198, 1.0, 2_002, 492)),
    Row("error rate +50 % of 2 %", _kind("errors", 1.5), (9_388, 1.0, 6_758, 2_100), minimal_effect=0.25),
    Row("error rate +100 % of 2 %", _kind("errors", 2.0), (2_651, 1.0, 2_414, 785), minimal_effect=0.25),
    Row("ln TTFT -10 %, ramp", replace(_times(0.90), shares=RAMP), (10_791, 1.0, 10_791, 8_149)),
    Row("no effect", _BIG, (math.nan, 0.03, math.nan, math.nan)),
)


@dataclass(frozen=True)
class Verdicts:
    """Requests are medians over runs; runs without a verdict count as infinite."""

    requests: float
    power: float
    fixed: float
    """The first look at which a test that looks only there has 80 % power: |effect| ≥ (1.96 + 0.84) median se."""
    peeked: float
    peeked_power: float
    missed: float
    """The share of runs whose confidence sequence ever missed the true effect."""
    wrong_sign: float

    @property
    def ratio(self) -> float:
        return self.requests / self.fixed


def _first(hits: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The requests at each run's first hit, infinite if there is none."""
    return np.where(hits.any(axis=1), ends[hits.argmax(axis=1)], np.inf)


def _part(row: Row, ends: list[int], seeds: range) -> Estimates:
    return runs(row.world, ends, row.name, seeds).clustered


def verdicts(executor: Executor, row: Row, count: int) -> Verdicts:
    """Of `count` runs."""
    ends = spaced(row.world.requests)
    parts = spread(executor, partial(_part, row, ends), count)
    estimates = Estimates(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    at = np.array(ends, dtype=np.float64)
    decided = found(estimates, row.minimal_effect)
    beyond = np.abs(estimates.z) > NOMINAL
    truth = math.log(row.world.effect)
    error = np.median(np.where(np.isnan(estimates.se), np.inf, estimates.se), axis=0)
    powerful = np.flatnonzero(abs(truth) >= (NOMINAL + POWER_80) * error)
    return Verdicts(
        requests=float(np.median(_first(decided, at))),
        power=float(decided.any(axis=1).mean()),
        fixed=float(at[powerful[0]]) if len(powerful) else math.inf,
        peeked=float(np.median(_first(beyond, at))),
        peeked_power=float(beyond.any(axis=1).mean()),
        missed=float(misses(estimates, truth, row.minimal_effect).any(axis=1).mean()),
        wrong_sign=float((decided & (np.sign(estimates.est) != np.sign(truth))).any(axis=1).mean()) if truth else 0.0,
    )


# What users did before. All of them come back, and requests of one user are correlated by 0.3 (ln TTFT).

_LEVEL_VARIANCE = 0.7**2 + (0.3 * 1.2) ** 2 + 0.2**2 / 2
_USERS = World(
    "log_ttft",
    requests=30_000,
    users=2_000,
    before=20_000,
    user_sd=math.sqrt(0.3 / 0.7 * _LEVEL_VARIANCE),
    step=5_000,
)
_LOOKS = 40


def _back(kind: Kind, effect: float) -> World:
    return replace(_USERS, kind=kind, effect=effect)


@dataclass(frozen=True)
class HistoryRow:
    name: str
    world: World
    minimal_effect: float = 0.05


_FASTER = replace(_USERS, effect=0.85)

HISTORY_ROWS = (
    HistoryRow("ln TTFT -15 %", _FASTER),
    HistoryRow("mean TTFT -15 %", _back("mean_ttft", 0.85)),
    HistoryRow("tokens/s +15 %", _back("tokens_per_second", 1.15)),
    HistoryRow("error rate +100 % of 2 %", _back("errors", 2.0), minimal_effect=0.25),
    HistoryRow("ln TTFT -15 %, very unequal users", replace(_FASTER, activity=0.23)),
    HistoryRow("ln TTFT -15 %, half of the users are new", replace(_FASTER, remembered=0.5)),
    HistoryRow("ln TTFT -15 %, one request each before", replace(_FASTER, before=2_000)),
    HistoryRow("ln TTFT -15 %, ramp", replace(_FASTER, shares=RAMP)),
    HistoryRow("ln TTFT -15 %, uninformative history", replace(_FASTER, informative=False)),
    HistoryRow("no effect, ln TTFT", _USERS),
    HistoryRow("no effect, mean TTFT", _back("mean_ttft", 1.0)),
    HistoryRow("no effect, tokens/s", _back("tokens_per_second", 1.0)),
    HistoryRow("no effect, ln TTFT, ramp", replace(_USERS, shares=RAMP)),
    HistoryRow("no effect, very unequal users", replace(_USERS, activity=0.23)),
    HistoryRow("no effect, 150 users", replace(_USERS, users=150, requests=6_000, before=3_000, step=1_000)),
    HistoryRow("no effect, uninformative history", replace(_USERS, informative=False)),
    HistoryRow("no effect, the arms' histories differ by chance", replace(_USERS, chance=20)),
)


@dataclass(frozen=True)
class Adjusted:
    """Requests are medians over runs; runs without a verdict count as infinite."""

    with_history: float
    without: float
    variance: float
    """At the last look, the median of the adjusted variance by the unadjusted one."""
    power: float
    power_without: float
    missed: float
    """The share of runs whose adjusted confidence sequence ever missed the true effect."""
    missed_without: float

    @property
    def ratio(self) -> float:
        return self.with_history / self.without


def _history_part(row: HistoryRow, ends: list[int], seeds: range) -> tuple[Estimates, Estimates]:
    result = runs(row.world, ends, row.name, seeds)
    return result.adjusted, result.clustered


def adjusted(executor: Executor, row: HistoryRow, count: int) -> Adjusted:
    """Of `count` runs, each analysed with and without the users' history."""
    ends = spaced(row.world.requests, _LOOKS)
    parts = spread(executor, partial(_history_part, row, ends), count)
    each = [
        Estimates(*(np.concatenate(column) for column in zip(*kind, strict=True))) for kind in zip(*parts, strict=True)
    ]
    truth, at = math.log(row.world.effect), np.array(ends, np.float64)
    decided = [found(kind, row.minimal_effect) for kind in each]
    requests = [float(np.median(_first(decisions, at))) for decisions in decided]
    power = [float(decisions.any(axis=1).mean()) for decisions in decided]
    missed = [float(misses(kind, truth, row.minimal_effect).any(axis=1).mean()) for kind in each]
    variance = float(np.median(np.square(each[0].se[:, -1] / each[1].se[:, -1])))
    return Adjusted(
        with_history=requests[0],
        without=requests[1],
        variance=variance,
        power=power[0],
        power_without=power[1],
        missed=missed[0],
        missed_without=missed[1],
    )


# First prompts: strata of their sizes, regression on their sizes, and both.

_REQUESTS = 6_000
_PROMPT_LOOKS = 20


@dataclass(frozen=True)
class PromptRow:
    """The time grows with the prompt's length to the power of `slope`."""

    name: str
    slope: float = 0.6
    users: int | None = None
    """None: every request is a unit."""
    alike: float = 1.0
    """The share of the variance of ln of prompts' lengths that lies between units."""
    user_sd: float = 0.0
    noise: float = 0.7
    activity: float = 1.0
    shares: tuple[float, ...] = (0.5,)


PROMPT_ROWS = (
    PromptRow("single requests, slope 0.3", slope=0.3),
    PromptRow("single requests, slope 0.6"),
    PromptRow("single requests, slope 1", slope=1.0),
    PromptRow("single requests, slope 0.6, ramp", shares=RAMP),
    PromptRow("800 users", users=800, alike=0.7, user_sd=0.3),
    PromptRow("800 users, very unequal", users=800, alike=0.7, user_sd=0.3, activity=0.23),
    PromptRow("1,500 conversations", users=1500, alike=0.8, user_sd=0.3, noise=0.4),
)

ESTIMATORS = ("none", "strata", "covariate", "both", "by requests")


def _prompts(row: PromptRow, effect: float, rng: np.random.Generator, ends: list[int]) -> np.ndarray:
    """(est, se, nu) of each of `ESTIMATORS` at each look: shape (estimators, looks, 3). *By requests* regresses without
    strata, and each unit counts as often as it has come.
    """
    count, users = _REQUESTS, row.users or _REQUESTS
    activity = rng.gamma(row.activity, size=users)
    unit = np.arange(count) if row.users is None else rng.choice(users, count, p=activity / activity.sum())
    share = np.array(row.shares)[np.minimum(np.arange(count) // 1500, len(row.shares) - 1)]
    arm, band = (rng.random(users)[unit] < share).astype(np.intp), np.unique(share, return_inverse=True)[1]
    between, within = math.sqrt(row.alike), math.sqrt(1 - row.alike)
    prompt = 7.0 + 1.2 * (between * rng.normal(size=users)[unit] + within * rng.normal(size=count))
    time = row.slope * (prompt - 7) + rng.normal(0, row.user_sd, users)[unit] + rng.normal(0, row.noise, count)
    time += math.log(effect) * arm
    _, begins, code = np.unique(unit, return_index=True, return_inverse=True)
    first = prompt[begins]
    stratum = (len(PROMPT_BUCKETS) + 1) * band + np.searchsorted(PROMPT_BUCKETS, first)[code]
    estimates = np.full((len(ESTIMATORS), len(ends), 3), np.nan)
    for place, end in enumerate(ends):
        here, ones, none = begins[begins < end], np.ones(end), np.zeros(end, np.intp)
        known = code[here]
        size, sizes = (first[codes] - first[codes].mean() for codes in (known, code[:end]))
        plain = UnitSums(code[:end], band[:end] + none, arm[:end], ones, time[:end], ones)
        inside = plain._replace(stratum=stratum[:end])
        looks = (
            look(plain, "difference"),
            look(inside, "difference"),
            look(plain, "difference", Covariates(known, band[here], arm[here], size[:, None])),
            look(inside, "difference", Covariates(known, stratum[here], arm[here], size[:, None])),
            look(plain, "difference", Covariates(code[:end], band[:end], arm[:end], sizes[:, None])),
        )
        for number, estimate in enumerate(looks):
            if estimate is not None and estimate.enough:
                estimates[number, place] = estimate.est, estimate.se, estimate.nu
    return estimates


def _prompts_part(row: PromptRow, effect: float, ends: list[int], seeds: range) -> np.ndarray:
    return np.array([_prompts(row, effect, generator(f"{row.name} {effect}", seed), ends) for seed in seeds])


@dataclass(frozen=True)
class Prompted:
    """Of one estimator: the variance by that without prompts at the last look, requests until the verdict (a median),
    power, and the share of runs without a difference in which one is found.
    """

    variance: float
    requests: float
    power: float
    false: float


def prompted(executor: Executor, row: PromptRow, count: int) -> list[Prompted]:
    """Of `count` runs with an effect of -10 %, and as many without one, for each of `ESTIMATORS`."""
    ends = [round(end) for end in np.geomspace(200, _REQUESTS, _PROMPT_LOOKS)]
    at = np.array(ends, np.float64)
    true, null = (
        np.moveaxis(np.concatenate(spread(executor, partial(_prompts_part, row, effect, ends), count)), (1, 3), (0, 1))
        for effect in (0.9, 1.0)
    )
    rows = []
    for number in range(len(ESTIMATORS)):
        decided, wrong = (found(Estimates(*estimates[number]), 0.05) for estimates in (true, null))
        variance = float(np.median(np.square(true[number][1][:, -1] / true[0][1][:, -1])))
        requests = float(np.median(_first(decided, at)))
        rows.append(Prompted(variance, requests, float(decided.any(axis=1).mean()), float(wrong.any(axis=1).mean())))
    return rows
