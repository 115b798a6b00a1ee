"""Conversations whose later prompts hold the arm's own answers: green is 15 % faster for a prompt of the same size, and
writes twice as much, so that its users wait longer.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.analysis import Analysis
from app.experiments.analysis.evidence.arrays import Floats
from tests.simulation.pool import generator, spread
from tests.support.experiments.world import DAY_S, START, Unpaced, World, config

CONVERSATIONS = 1200
TURNS = 6
FASTER = 0.85
_LOOKS = 4


def _draw(conversations: int, treated: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Floats, Floats]:
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
    means = [np.log(_draw(400_000, np.full(400_000, arm), rng)[1]).mean() for arm in (False, True)]
    return math.expm1(means[1] - means[0])


@dataclass(frozen=True)
class Said:
    """Shares of runs: the interval of any look missed the truth; any look said `better`; the last said `worse`."""

    missed: float
    better: float
    worse: float


def _part(strata: list[str], true_lift: float, seeds: range) -> list[tuple[bool, bool, bool]]:
    return [run(strata, true_lift, seed) for seed in seeds]


def run(strata: list[str], true_lift: float, seed: int) -> tuple[bool, bool, bool]:
    """Of one run: an interval missed the true lift, a look said `better`, the last said `worse`."""
    rng = generator("conversations", seed)
    treated = rng.random(CONVERSATIONS) < 0.5
    prompt, ttft = _draw(CONVERSATIONS, treated, rng)
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
    name, experiment = next(iter(declared.experiments.items()))
    analysis = Analysis(name, experiment, declared, world.tables, START, pace=Unpaced())
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
    runs = np.array([run for part in spread(executor, partial(_part, strata, truth()), count) for run in part])
    return Said(*runs.mean(axis=0).tolist())
