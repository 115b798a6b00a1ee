"""Worlds as routers record them, through the whole analysis: what reports say at every look.

Conversations whose later prompts hold the arm's own answers: green is 15 % faster for a prompt of the same size, and
writes twice as much, so that its users wait longer. Whole answers of which some are still running at each look, or are
lost. Effects that change during the run. Many secondary metrics without a difference. And scores that content users of
one arm send more often.
"""

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.arrays import Floats
from app.exposures.wire import Failure, FeedbackItem
from tests.simulation.pool import generator, spread
from tests.support.experiments.world import DAY_S, START, Recorded, World, analysis_of, config

# Conversations.

CONVERSATIONS = 1200
TURNS = 6
FASTER = 0.85
_LOOKS = 4


def _conversations(conversations: int, treated: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Bytes of each prompt and seconds to its first token: shape (conversations, TURNS)."""
    shape = (conversations, TURNS)
    first = np.exp(rng.normal(5.5, 1.0, (conversations, 1)))
    answers = np.exp(rng.normal(6.0, 0.5, shape)) * np.where(treated, 2.0, 1.0)[:, None]
    questions = np.exp(rng.normal(4.5, 0.5, shape))
    prompt = first + np.cumsum(np.hstack([np.zeros((conversations, 1)), (answers + questions)[:, :-1]]), axis=1)
    ln_time = -5.0 + 0.6 * np.log(prompt) + rng.normal(0, 0.3, (conversations, 1)) + rng.normal(0, 0.3, shape)
    return prompt, np.exp(ln_time) * np.where(treated, FASTER, 1.0)[:, None]


@cache
def truth() -> float:
    """The true lift of the geometric mean of ttft."""
    rng = np.random.default_rng(1)
    means = [np.log(_conversations(400_000, np.full(400_000, arm), rng)[1]).mean() for arm in (False, True)]
    return math.expm1(means[1] - means[0])


@dataclass(frozen=True)
class Said:
    """Shares of runs: the interval of any look missed the truth; any look said `better`; the last said `worse`."""

    missed: float
    better: float
    worse: float


def _conversations_part(strata: list[str], true_lift: float, seeds: range) -> list[tuple[bool, bool, bool]]:
    return [converse(strata, true_lift, seed) for seed in seeds]


def converse(strata: list[str], true_lift: float, seed: int) -> tuple[bool, bool, bool]:
    """Of one run: an interval missed the true lift, a look said `better`, the last said `worse`."""
    rng = generator("conversations", seed)
    treated = rng.random(CONVERSATIONS) < 0.5
    prompt, ttft = _conversations(CONVERSATIONS, treated, rng)
    at = START + np.sort(rng.random(CONVERSATIONS))[:, None] * DAY_S + 60.0 * np.arange(TURNS)
    order = np.argsort(at.ravel(), kind="stable")
    world = World()
    recorded = world.answered(
        at.ravel()[order],
        order // TURNS,
        treated[order // TURNS],
        turn=order % TURNS,
        prompt_bytes=prompt.ravel()[order],
        ttft_s=ttft.ravel()[order],
        duration_s=ttft.ravel()[order] + 1.0,
    )
    declared = config(sticky="conversation", strata=strata)
    analysis = analysis_of(world, declared)
    verdicts, missed = [], False
    for part in np.array_split(np.arange(len(order)), _LOOKS):
        analysis.add_starts(recorded.starts.take(part))
        analysis.add_rows(recorded.rows.take(part))
        now = float(recorded.rows.at[part[-1]]) + 3600.0
        analysis.tick(now)
        compared = analysis.standing(now).primary[0]
        effect = compared.effect
        if effect.lower is not None and effect.upper is not None:
            missed |= not effect.lower <= true_lift <= effect.upper
        verdicts.append(compared.verdict)
    return missed, "better" in verdicts, verdicts[-1] == "worse"


def said(executor: Executor, strata: list[str], count: int) -> Said:
    """Of `count` runs."""
    runs = np.array(
        [run for part in spread(executor, partial(_conversations_part, strata, truth()), count) for run in part]
    )
    return Said(*runs.mean(axis=0).tolist())


# Requests that are still running.

ANSWERS_PER_S = 10.0
OBSERVED_S = 1500.0
MEDIAN_S = 2.0
HANGING_S = 280.0
EVERY_S = 100.0


@dataclass(frozen=True)
class Answers:
    """Whole answers of 400 users."""

    name: str
    faster: float = 1.0
    """The treatment's times by control's."""
    hanging: tuple[float, float] = (0.0, 0.0)
    """The share of control's and of the treatment's answers that take HANGING_S."""
    spread: float = 0.5
    """The standard deviation of ln of time between a user's answers."""
    lost: float = 0.0
    """The share of the treatment's rows, its slowest, that no router sends."""
    failed: float = 0.0
    """The share of either arm's answers that fail: control's any, the treatment's slowest."""
    statistic: str = "geometric_mean"

    @property
    def wrong(self) -> tuple[str, ...]:
        """The verdicts that are false."""
        effect = self.effect
        return ("better", "worse") if effect == 0 else ("better",) if effect > 0 else ("worse",)

    @property
    def effect(self) -> float:
        """The treatment's mean of ln of time, less control's."""
        hang = math.log(HANGING_S / MEDIAN_S)
        control, treated = self.hanging
        return (1 - treated) * math.log(self.faster) + (treated - control) * hang


ANSWERS = (
    Answers("16 % faster on 92 %, 280 s on 8 %", faster=0.844, hanging=(0.0, 0.08)),
    Answers("280 s on 8 % of both", hanging=(0.08, 0.08)),
    Answers("alike, the slowest 0.5 % of the treatment's rows lost", spread=1.0, lost=0.005, statistic="mean"),
    Answers("alike, the slowest 1 % of the treatment's rows lost", spread=1.0, lost=0.01, statistic="mean"),
    Answers("alike, 10 % of either fail: the treatment's slowest, any of control's", spread=1.0, failed=0.1),
    Answers("20 % faster", faster=0.8),
)


def _answered(world: World, answers: Answers, rng: np.random.Generator) -> tuple[Recorded, NDArray[np.bool_]]:
    """Records, and which rows are sent."""
    count = int(ANSWERS_PER_S * OBSERVED_S)
    users = 400
    user = rng.integers(0, users, count)
    green = (rng.random(users) < 0.5)[user]
    ln_time = math.log(MEDIAN_S) + rng.normal(0, 0.3, users)[user] + rng.normal(0, answers.spread, count)
    duration = np.exp(ln_time) * np.where(green, answers.faster, 1.0)
    duration = np.where(rng.random(count) < np.where(green, *answers.hanging[::-1]), HANGING_S, duration)
    slowest = green & (duration > np.quantile(duration[green], 1 - answers.lost))
    at = START + np.sort(rng.random(count)) * OBSERVED_S
    failed = np.where(
        green, duration > np.quantile(duration[green], 1 - answers.failed), rng.random(count) < answers.failed
    )
    nothing = {"stream": False, "ttft_s": np.nan, "itl_mean_s": np.nan, "itl_max_s": np.nan}
    status, error = np.where(failed, 502, 200), np.where(failed, Failure.BROKEN, Failure.NONE)
    recorded = world.answered(at, user, green, duration_s=duration, status=status, error=error, **nothing)
    return recorded, ~slowest


def watch(answers: Answers, seed: int) -> list[str]:
    """The verdict of each look of one run."""
    rng = generator(answers.name, seed)
    world = World()
    recorded, sent = _answered(world, answers, rng)
    primary = {"metric": "duration", "statistic": answers.statistic, "minimal_effect": 0.05}
    analysis = analysis_of(world, config(primary=[primary]))
    starts, rows = recorded.starts, recorded.rows
    ends = np.where(sent, rows.at + rows.duration_s, np.inf)
    verdicts: list[str] = []
    for since in (np.arange(0.0, OBSERVED_S, EVERY_S) + START).tolist():
        now = since + EVERY_S
        analysis.add_starts(starts.take((starts.at > since) & (starts.at <= now)))
        analysis.add_rows(rows.take((ends > since) & (ends <= now)))
        analysis.tick(now)
        verdicts.append(analysis.standing(now).primary[0].verdict)
    return verdicts


def _answers_part(answers: Answers, seeds: range) -> list[tuple[bool, bool]]:
    words = [set(watch(answers, seed)) for seed in seeds]
    return [(bool(verdicts & set(answers.wrong)), bool(verdicts & {"better", "worse"})) for verdicts in words]


def verdicts_on_answers(executor: Executor, answers: Answers, count: int) -> tuple[float, float]:
    """The shares of `count` runs in which any look was wrong, and in which any was `better` or `worse`."""
    runs = np.array([run for part in spread(executor, partial(_answers_part, answers), count) for run in part])
    wrong, found = runs.mean(axis=0).tolist()
    return wrong, found


# Effects that change.

DAYS = 8
REQUESTS_A_DAY = 1500
_LOOKS_A_DAY = 4
_MINIMAL_EFFECT = 0.05


@dataclass(frozen=True)
class Drift:
    """600 users who come every day; the treatment's effect depends on the time alone."""

    name: str
    effect: Callable[[Floats], Floats]
    """The difference of ln of time, by days since the start."""


def _constant(day: Floats) -> Floats:
    return np.full(len(day), math.log(0.9))


def _step(day: Floats) -> Floats:
    return np.where(day < 2, math.log(0.8), math.log(1.5))


def _rising(day: Floats) -> Floats:
    return np.interp(day, [0, DAYS], [math.log(0.8), math.log(1.25)])


def _wave(day: Floats) -> Floats:
    return 0.15 * np.sin(2 * np.pi * day / 7)


DRIFTS = (
    Drift("none: 10 % faster", _constant),
    Drift("step: 20 % faster, from the third day 50 % slower", _step),
    Drift("ramp: from 20 % faster to 25 % slower", _rising),
    Drift("weekly wave: up to 15 % faster and slower", _wave),
)


class Drifting(NamedTuple):
    """What was said in one run."""

    false: bool
    """At any look: a word that is not true of the mean effect so far, or an interval that misses it."""
    first_is_false: bool
    """At any later look: the first word, if it had been kept."""
    flipped: float
    """The day of the alarm that the effect has changed its direction; infinite without one."""


def drift(world: Drift, seed: int) -> Drifting:
    """One run."""
    rng = generator(world.name, seed)
    records = World(seed=seed, users=600)
    count = DAYS * REQUESTS_A_DAY
    user = rng.integers(0, records.users, count)
    green = (rng.random(records.users) < 0.5)[user]
    day = np.sort(rng.random(count)) * DAYS
    effect = world.effect(day)
    ln_time = -1.2 + records.habit[user] + rng.normal(0, 0.5, count) + np.where(green, effect, 0.0)
    recorded = records.answered(START + day * DAY_S, user, green, ttft_s=np.exp(ln_time), duration_s=10.0)
    primary = [{"metric": "ttft", "minimal_effect": _MINIMAL_EFFECT}]
    analysis = analysis_of(records, config(primary=primary))
    false, first, first_is_false, flipped = False, "", False, math.inf
    for look in range(1, DAYS * _LOOKS_A_DAY + 1):
        until = look / _LOOKS_A_DAY
        part = (day > until - 1 / _LOOKS_A_DAY) & (day <= until)
        analysis.add_starts(recorded.starts.take(part))
        analysis.add_rows(recorded.rows.take(part))
        now = START + until * DAY_S + 60.0
        analysis.tick(now)
        report = analysis.standing(now)
        (said,) = report.primary
        truth = float(effect[day <= until].mean())
        true_words = _true_words(truth)
        lower, upper = said.effect.lower, said.effect.upper
        missed = lower is not None and upper is not None and not lower <= math.expm1(truth) <= upper
        false |= missed or said.verdict not in true_words
        if not first and said.verdict in ("better", "worse", "equivalent"):
            first = said.verdict
        first_is_false |= bool(first) and first not in true_words
        if flipped == math.inf and any(alarm.kind == "effect_changed" for alarm in report.alarms):
            flipped = until
    return Drifting(false, first_is_false, flipped)


def _true_words(truth: float) -> set[str]:
    words = {"undecided", "too_early"} | ({"better" if truth < 0 else "worse"} if truth else set())
    return words | {"equivalent"} if abs(math.expm1(truth)) < _MINIMAL_EFFECT else words


def _drift_part(world: Drift, seeds: range) -> list[Drifting]:
    return [drift(world, seed) for seed in seeds]


class Drifts(NamedTuple):
    """Shares of runs, as in `Drifting`; the share with an alarm, and the median day of the alarm."""

    false: float
    first_is_false: float
    alarmed: float
    flipped: float


def drifts(executor: Executor, world: Drift, count: int) -> Drifts:
    """Of `count` runs."""
    runs = np.array([run for part in spread(executor, partial(_drift_part, world), count) for run in part])
    false, first_is_false = runs[:, :2].mean(axis=0).tolist()
    return Drifts(false, first_is_false, float(np.isfinite(runs[:, 2]).mean()), float(np.median(runs[:, 2])))


# Many metrics.

SCORES = 25
"""Feedback metrics, each with its response rate."""
_SCORED_REQUESTS = 2000


def shouts(seed: int) -> bool:
    """Whether any look of one run gives a direction to any of 2 * SCORES secondary metrics; nothing differs."""
    rng = generator("many metrics", seed)
    world = World(seed=seed)
    names = [f"score_{number}" for number in range(SCORES)]
    analysis = analysis_of(
        world,
        config(
            feedback={name: {"window_s": 60} for name in names},
            secondary=[{"metric": name, "minimal_effect": 0.1} for name in names],
        ),
    )
    user = rng.integers(0, world.users, _SCORED_REQUESTS)
    green = (rng.random(world.users) < 0.5)[user]
    at = START + np.sort(rng.random(_SCORED_REQUESTS)) * DAY_S
    recorded = world.answered(at, user, green)
    content = np.clip(0.5 + rng.normal(0, 0.2, (world.users, SCORES)), 0.05, 0.95)[user]
    given, value = rng.random((2, _SCORED_REQUESTS, SCORES))
    for part in np.array_split(np.arange(_SCORED_REQUESTS), 10):
        rows = recorded.rows.take(part)
        analysis.add_starts(recorded.starts.take(part))
        analysis.add_rows(rows)
        analysis.add_feedback(
            [
                FeedbackItem(float(rows.at[row]) + 10, int(rows.request[row]), int(rows.caller[row]), name, score)
                for row, number in enumerate(part)
                for name, score, is_given in zip(
                    names, (value[number] < content[number]).astype(float).tolist(), given[number] < 0.7, strict=True
                )
                if is_given
            ]
        )
        now = float(rows.at[-1]) + 100
        analysis.tick(now)
        if any(
            comparison.verdict in ("better", "worse", "different") for comparison in analysis.standing(now).secondary
        ):
            return True
    return False


def _shouts_part(seeds: range) -> int:
    return sum(shouts(seed) for seed in seeds)


def false_directions(executor: Executor, count: int) -> float:
    """The share of `count` runs in which any secondary metric without a difference ever has a direction."""
    return sum(spread(executor, _shouts_part, count)) / count


# Scores that come from different people.


@dataclass(frozen=True)
class Biased:
    """Users of both arms are equally content: three in ten send a score, and of the treatment's content ones more."""

    sends: float
    """The share of the treatment's content users who send one."""
    minimal_effect: float
    answers: int


BIASED = (Biased(0.45, 0.1, 9_000), Biased(0.36, 0.2, 30_000))


def biased(users: Biased, seed: int) -> str:
    """The verdict on scores in one run."""
    rng = generator("content users answer more", seed)
    world, count = World(seed=seed, users=1500), users.answers
    primary = [{"metric": "thumbs", "minimal_effect": users.minimal_effect}]
    analysis = analysis_of(world, config(feedback={"thumbs": {"window_s": 60}}, primary=primary))
    user = rng.integers(0, world.users, count)
    green = (rng.random(world.users) < 0.5)[user]
    at = START + np.sort(rng.random(count)) * DAY_S
    recorded = world.answered(at, user, green)
    content = rng.random(count) < 0.5
    given = rng.random(count) < np.where(green & content, users.sends, 0.3)
    recorded.tell(analysis)
    rows = recorded.rows
    analysis.add_feedback(
        [
            FeedbackItem(float(at[n]) + 10, int(rows.request[n]), int(rows.caller[n]), "thumbs", float(content[n]))
            for n in np.flatnonzero(given)
        ]
    )
    now = START + DAY_S + 100
    analysis.tick(now)
    return analysis.standing(now).primary[0].verdict


def _biased_part(users: Biased, seeds: range) -> int:
    return sum(biased(users, seed) in ("better", "worse") for seed in seeds)


def biased_verdicts(executor: Executor, users: Biased, count: int) -> float:
    """The share of `count` runs with a verdict on such scores."""
    return sum(spread(executor, partial(_biased_part, users), count)) / count
