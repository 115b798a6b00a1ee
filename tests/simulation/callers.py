"""Guardrails with several callers: how much later a real regression is found, and what one caller can bring about."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.guardrails import Guardrails
from app.exposures.wire import Flag
from tests.simulation.pool import generator, spread
from tests.support.experiments.exposure_columns import Recorder
from tests.support.experiments.world import config

BATCH = 10
LONGEST = 600


@dataclass(frozen=True)
class Callers:
    """An even split. `share`: of the treatment's answers that are empty; control's are so `often`. Callers have equal
    traffic, but for one, who may have `largest` of it.
    """

    name: str
    callers: int
    share: float
    often: float = 0.005
    largest: float = 0.0
    hostile: bool = False
    """The first caller knows its arm: all of its answers are empty on the treatment, and none on control."""

    def until_alarm(self, seed: int) -> float:
        """The requests until the guardrail acts; infinite if it does not."""
        rng = generator(self.name, seed)
        declared = config(guardrails=[{"event": "empty", "action": "rollback"}]).experiments["green-float32"]
        recorder = Recorder()
        arms, guardrails = Arms("green-float32", declared, recorder.tables, 0.0), Guardrails(declared)
        (watch,) = guardrails
        for begin in range(0, LONGEST, BATCH):
            green = rng.random(BATCH) < 0.5
            caller = rng.integers(0, self.callers, BATCH)
            caller[rng.random(BATCH) < self.largest] = 0
            empty = rng.random(BATCH) < np.where(green, self.share, self.often)
            if self.hostile:
                empty = np.where(caller == 0, green, empty)
            flags = np.where(empty, Flag.EMPTY, 0) | (Flag.SHARED if self.callers > 1 else 0)
            columns = zip(caller.tolist(), green.tolist(), flags.tolist(), strict=True)
            rows = recorder.rows(
                *(
                    {"unit": begin + place, "at": 1000.0 + begin, "caller": who, "assigned": int(arm), "flags": flag}
                    for place, (who, arm, flag) in enumerate(columns)
                )
            )
            guardrails.add_rows(rows, arms.place(rows), rows.plan, arms)
            if watch.is_new_alarm():
                return float(begin + BATCH)
        return math.inf


ALONE = Callers("1 caller, all empty", 1, 1.0)
MOST = {2: 2.4, 8: 1.7, 40: 1.7}
"""The callers to how many times the requests of a single caller may be needed, in whole batches."""
HOSTILE = Callers("9 callers, one of them hostile with half of the traffic", 9, 0.005, largest=0.5, hostile=True)


def among(size: int) -> Callers:
    """The same regression where several callers share the traffic."""
    return Callers(f"{size} callers, all empty", size, 1.0)


def _part(case: Callers, seeds: range) -> list[float]:
    return [case.until_alarm(seed) for seed in seeds]


def alarms(executor: Executor, case: Callers, count: int) -> list[float]:
    """The requests until each of `count` runs acts."""
    return [requests for part in spread(executor, partial(_part, case), count) for requests in part]
