"""Guardrails of the whole analysis where arms are not drawn anew: running conversations after a change of weights, and
users whose requests fail every day.
"""

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from app.exposures.wire import Failure, Flag
from tests.simulation.pool import generator, spread
from tests.support.experiments.world import DAY_S, START, World, analysis_of, config

ALPHA = 0.05
ERRORS: dict[str, Any] = {"event": "error", "tolerance": 1.0, "action": "rollback"}
"""One guardrail without any tolerance: its false alarms are nearest to alpha."""


@dataclass(frozen=True)
class Lowered:
    """An even split, and 5 % for the treatment from the 300th second on; running conversations keep their arm."""

    name: str
    fails: tuple[float, float]
    """The share of requests that fail, of control and of the treatment."""
    conversations: int = 400
    turns: int = 12
    every_s: float = 20.0

    def alarms(self, seed: int) -> bool:
        """Whether the guardrail alarms in ten minutes."""
        rng = generator(self.name, seed)
        world = World(weights=(50, 50))
        began = np.sort(rng.random(self.conversations)) * 600.0
        green = rng.random(self.conversations) < np.where(began < 300.0, 0.5, 0.05)
        at = began[:, None] + self.every_s * np.arange(self.turns)
        unit, turn = np.divmod(np.argsort(at.ravel(), kind="stable"), self.turns)
        at = at[unit, turn]
        failed = rng.random(len(at)) < np.array(self.fails)[green[unit].astype(int)]
        analysis = analysis_of(world, config(sticky="conversation", guardrails=[ERRORS], alpha_guardrails=ALPHA))
        for begin in np.arange(0.0, 600.0, 20.0):
            world.weights, world.plan = ((50, 50), "0-aaaaaaaa") if begin < 300 else ((95, 5), "1-bbbbbbbb")
            now = (at >= begin) & (at < begin + 20)
            carried = (turn[now] > 0) & (begin >= 300)
            world.answered(
                START + at[now],
                unit[now],
                green[unit[now]],
                turn=turn[now],
                flags=np.where(carried, Flag.CARRIED, 0),
                error=np.where(failed[now], Failure.UNREACHABLE, Failure.NONE),
            ).tell(analysis)
            if analysis.is_alarmed():
                return True
        return False


@dataclass(frozen=True)
class Broken:
    """Some users' requests fail every day, on either arm, for 14 days; hardly any other request fails."""

    name: str
    users: int
    limit: dict[str, Any]
    healthy: int = 300
    daily: int = 2
    """Requests of each user."""
    days: int = 14

    def alarms(self, seed: int) -> bool:
        """Whether the guardrail alarms without any difference between the arms."""
        rng = generator(self.name, seed)
        world = World(weights=(50, 50))
        everyone = self.users + self.healthy
        green = rng.random(everyone) < 0.5
        analysis = analysis_of(world, config(guardrails=[ERRORS | self.limit], alpha_guardrails=ALPHA))
        for day in range(self.days):
            user = rng.permutation(np.repeat(np.arange(everyone), self.daily))
            at = START + day * DAY_S + np.sort(rng.random(len(user))) * DAY_S
            failed = (user < self.users) | (rng.random(len(user)) < 0.001)
            world.answered(at, user, green[user], error=np.where(failed, Failure.UNREACHABLE, Failure.NONE)).tell(
                analysis
            )
            if analysis.is_alarmed():
                return True
        return False


@dataclass(frozen=True)
class Longer:
    """Users of the treatment send more requests: as many of them fail, or fewer. Some users' requests always fail."""

    name: str
    limit: dict[str, Any]
    more: int = 3
    """The treatment's requests of each user by control's."""
    fails: float = 0.01
    """The share of requests that fail."""
    users: int = 2_000
    broken: int = 0
    days: float = 4.0

    def alarms(self, seed: int) -> bool:
        """Whether the guardrail alarms, of an absolute limit also for control, without any difference."""
        rng = generator(self.name, seed)
        world = World(weights=(50, 50))
        green = rng.random(self.users) < 0.5
        user = np.repeat(np.arange(self.users), (rng.poisson(2, self.users) + 1) * np.where(green, self.more, 1))
        came = rng.random(self.users) * (self.days - 0.5) * DAY_S
        at = came[user] + rng.random(len(user)) * 1800.0
        user, at = user[np.argsort(at)], np.sort(at)
        failed = (rng.random(len(user)) < self.fails) | (user < self.broken)
        analysis = analysis_of(world, config(guardrails=[ERRORS | self.limit], alpha_guardrails=ALPHA))
        for part in np.array_split(np.arange(len(user)), 20):
            columns = {"error": np.where(failed[part], Failure.UNREACHABLE, Failure.NONE)}
            world.answered(START + at[part], user[part], green[user[part]], **columns).tell(analysis)
            rails = analysis.standing(START + float(at[part[-1]])).guardrails
            if analysis.is_alarmed() or any(rail.unhealthy for rail in rails):
                return True
        return False


Case = Lowered | Broken | Longer

CASES = (
    Lowered("a lowered weight, every ninth request fails", (1 / 9, 1 / 9)),
    Broken("3 users always fail", 3, {}),
    Broken("12 users always fail", 12, {}),
    Broken("4 of 84 users always fail, at most 5 % may", 4, {"max_rate": 0.05}, healthy=80, daily=8),
    Longer("1 % of requests fail, the treatment's users send three times as many", {}),
    Longer("the same, and 100 of the users always fail", {}, broken=100),
    Longer("9 % of requests fail, the treatment's users send three times as many", {}, fails=0.09, users=1_000),
    Longer("1 % of requests fail, at most 2 % may", {"max_rate": 0.02}, more=1),
)
HARM = Lowered("a lowered weight, the treatment fails nine times as often", (1 / 36, 1 / 4))


def _part(case: Case, seeds: range) -> list[bool]:
    return [case.alarms(seed) for seed in seeds]


def alarms(executor: Executor, case: Case, count: int) -> float:
    """The share of `count` runs with an alarm."""
    return float(np.concatenate(spread(executor, partial(_part, case), count)).mean())
