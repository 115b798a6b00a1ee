"""Conversations whose later prompts hold the arm's own answers: green is 15 % faster for a prompt of the same size, and
writes twice as much, so that its users wait longer.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.experiments.analysis.analysis import Analysis
from app.experiments.analysis.evidence.arrays import mix
from app.experiments.columns import DTYPES, RowColumns, StartColumns, Tables
from app.ledger.wire import Finish, Plan
from tests.simulation.pool import generator, spread
from tests.support.experiments.world import BLUE, GREEN, START, Unpaced, config

CONVERSATIONS = 1200
TURNS = 6
FASTER = 0.85
_LOOKS = 4
_DAY_S = 86400.0

Floats = NDArray[np.float64]


class Records:
    """Routers' records of simulated requests. Blue is control; units are any integers, times Unix seconds."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._codes = {name: self.tables.name(name) for name in (BLUE, GREEN, "openai", "chat")}
        self._sequence = 0

    def of(
        self,
        at: Floats,
        unit: NDArray[np.integer],
        treated: NDArray[np.bool_],
        *,
        share: int = 50,
        **columns: Any,
    ) -> tuple[StartColumns, RowColumns]:
        """The start and the row of each request. `columns` are the rows', by name; `share`: green's weight, percent."""
        count = len(at)
        plan = self.tables.plan(Plan("chat", f"{share}-aaaaaaaa", {BLUE: 100 - share, GREEN: share}))
        arm = np.where(treated, self._codes[GREEN], self._codes[BLUE])
        seq = np.arange(self._sequence, self._sequence + count) + 1
        self._sequence += count
        values: dict[str, Any] = {
            "router": 1,
            "batch": 1,
            "seq": seq,
            "at": at,
            "unit": mix(unit.astype(np.uint64), 5),
            "plan": plan,
            "assigned": arm,
            "flags": 0,
            "reason": 1,
            "request": mix(seq.astype(np.uint64), 6),
            "answer": mix(seq.astype(np.uint64), 7),
            "caller": 1,
            "served": arm,
            "dialect": self._codes["openai"],
            "task": self._codes["chat"],
            "stream": True,
            "status": 200,
            "error": 0,
            "attempts": 1,
            "prompt_bytes": 500,
            "max_tokens": np.nan,
            "prompt_tokens": 100.0,
            "completion_tokens": 50.0,
            "ttft_s": 0.2,
            "duration_s": 1.0,
            "itl_mean_s": 0.02,
            "itl_max_s": 0.05,
            "finish": Finish.STOP,
            "turn": 0,
            "in_flight": 2,
            "cold": False,
        } | columns
        filled = {name: np.broadcast_to(value, count).astype(DTYPES[name]) for name, value in values.items()}
        starts = StartColumns(**{name: filled[name] for name in StartColumns.names()})
        return starts, RowColumns(**{name: filled[name] for name in RowColumns.names()})


def _draw(conversations: int, treated: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Bytes of each prompt and seconds to its first token: shape (conversations, TURNS)."""
    shape = (conversations, TURNS)
    first = np.exp(rng.normal(5.5, 1.0, (conversations, 1)))
    answers = np.exp(rng.normal(6.0, 0.5, shape)) * np.where(treated, 2.0, 1.0)[:, None]
    questions = np.exp(rng.normal(4.5, 0.5, shape))
    prompt = first + np.cumsum(np.hstack([np.zeros((conversations, 1)), (answers + questions)[:, :-1]]), axis=1)
    ln_time = -5.0 + 0.6 * np.log(prompt) + rng.normal(0, 0.3, (conversations, 1)) + rng.normal(0, 0.3, shape)
    return prompt, np.exp(ln_time) * np.where(treated, FASTER, 1.0)[:, None]


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
    begin = np.sort(rng.random(CONVERSATIONS)) * _DAY_S
    at = START + begin[:, None] + 60.0 * np.arange(TURNS)
    unit = np.repeat(np.arange(CONVERSATIONS), TURNS)
    order = np.argsort(at.ravel(), kind="stable")
    records = Records()
    columns: dict[str, Any] = {"prompt_bytes": prompt, "ttft_s": ttft, "duration_s": ttft + 1.0}
    turn = np.tile(np.arange(TURNS), CONVERSATIONS)
    starts, rows = records.of(
        at.ravel()[order],
        unit[order],
        np.repeat(treated, TURNS)[order],
        turn=turn[order],
        **{name: values.ravel()[order] for name, values in columns.items()},
    )
    declared = config(sticky="conversation", strata=strata)
    analysis = Analysis(
        "green-float32", declared.experiments["green-float32"], declared, records.tables, START, pace=Unpaced()
    )
    said, missed = [], False
    for part in np.array_split(np.arange(len(rows)), _LOOKS):
        analysis.add_starts(starts.take(part))
        analysis.add_rows(rows.take(part))
        now = float(rows.at[part[-1]]) + 3600.0
        analysis.tick(now)
        compared = analysis.standing(now).primary[0]
        effect = compared.effect
        if effect.lower is not None and effect.upper is not None:
            missed |= not effect.lower <= true_lift <= effect.upper
        said.append(compared.verdict)
    return missed, "better" in said, said[-1] == "worse"


def said(executor: Executor, strata: list[str], count: int) -> Said:
    """Of `count` runs."""
    runs = np.array([run for part in spread(executor, partial(_part, strata, truth()), count) for run in part])
    return Said(*runs.mean(axis=0).tolist())
