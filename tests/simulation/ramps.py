"""Guardrails request by request under a ramp: false alarms, and a whole ramp with four of them."""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.statistics.events import Detector, EventEvidence, chance
from tests.simulation.alarms import THRESHOLD
from tests.simulation.false_positives import NOMINAL
from tests.simulation.pool import generator, spread
from tests.simulation.worlds import RAMP

Bools = NDArray[np.bool_]

MIN_UNITS = 3
"""The number of distinct units of the treatment with the event that an alarm needs before it acts."""


class Requests(NamedTuple):
    unit: NDArray[np.intp]
    share: NDArray[np.float64]
    treated: Bools


def requests(users: int | None, step: int, rng: np.random.Generator) -> Requests:
    """The ramp's steps, `step` requests each; units move towards the treatment. Without users each is a unit."""
    share = np.repeat(RAMP, step)
    if users is None:
        return Requests(np.arange(len(share)), share, rng.random(len(share)) < share)
    activity = rng.gamma(1.0, size=users)
    unit = rng.choice(users, len(share), p=activity / activity.sum())
    return Requests(unit, share, rng.random(users)[unit] < share)


def first_of_units(events: Bools, unit: NDArray[np.intp]) -> NDArray[np.intp]:
    """The indexes of the requests with an event, the first of each unit, in order."""
    at = np.flatnonzero(events)
    return np.sort(at[np.unique(unit[at], return_index=True)[1]])


World = Literal["independent", "a failing user in a hundred", "an outage of both arms"]
RULES = ("guardrail", "counting every event", "peeked z-test", "a window above 2 %")
DESIGN_FALSE: dict[World, tuple[float, float, float, float]] = {
    "independent": (0.023, math.nan, 0.41, 0.52),
    "a failing user in a hundred": (0.018, 0.22, 0.44, 0.84),
    "an outage of both arms": (0.035, math.nan, 1.0, 1.0),
}
"""The share of runs in which each rule alarms; NaN: not given by the design."""

_WINDOW = 150
_LOOKS = 60


def _errors(world: World, traffic: Requests, users: int, rng: np.random.Generator) -> Bools:
    n = len(traffic.unit)
    rate = np.full(n, 0.005)
    if world == "a failing user in a hundred":
        rate = np.where((rng.random(users) < 0.01)[traffic.unit], 0.5, 0.0)
    if world == "an outage of both arms":
        begins = rng.integers(0, n - n // 50)
        rate[begins : begins + n // 50] = 0.9
    return np.asarray(rng.random(n) < rate, dtype=np.bool_)


def false_alarms(world: World, rng: np.random.Generator) -> list[bool]:
    """The RULES that alarm without any difference, at 5 % and tolerance 1.0."""
    users = 2_000
    traffic = requests(users, 5_000, rng)
    events = _errors(world, traffic, users, rng)
    p0 = chance(traffic.share, 1 - traffic.share, 1.0)
    once, each = first_of_units(events, traffic.unit), np.flatnonzero(events)
    evidence = [EventEvidence().add(traffic.treated[at], p0[at]).max(initial=0.0) for at in (once, each)]
    ends = np.linspace(0, len(events) - 1, _LOOKS + 1).astype(int)[1:]
    n_t, n_c, x_t, x_c = (
        np.cumsum(column)[ends]
        for column in (traffic.treated, ~traffic.treated, events & traffic.treated, events & ~traffic.treated)
    )
    pooled = (x_t + x_c) / (n_t + n_c)
    spread_of_both = np.sqrt(np.maximum(pooled * (1 - pooled) * (1 / np.maximum(n_t, 1) + 1 / n_c), 1e-300))
    z = np.where((n_t > 0) & (x_t + x_c > 0), (x_t / np.maximum(n_t, 1) - x_c / n_c) / spread_of_both, 0.0)
    ours = np.cumsum(events[traffic.treated])
    windows: NDArray[np.intp] = ours[_WINDOW:] - ours[:-_WINDOW]
    return [
        bool(evidence[0] >= math.log(20)),
        bool(evidence[1] >= math.log(20)),
        bool((np.abs(z) > NOMINAL).any()),
        bool((windows > 0.02 * _WINDOW).any()),
    ]


def _false_part(world: World, seeds: range) -> list[list[bool]]:
    return [false_alarms(world, generator(world, seed)) for seed in seeds]


def false_alarm_rates(executor: Executor, world: World, count: int) -> list[float]:
    """The share of `count` runs in which each of the RULES alarms."""
    parts = spread(executor, partial(_false_part, world), count)
    return np.concatenate(parts).mean(axis=0).tolist()  # type: ignore[no-any-return]


RATES = {"error": 0.005, "empty": 0.005, "truncated": 0.09, "slow": 0.05}
"""Control's."""

TOLERANCES = {"error": 1.5, "empty": 1.5, "truncated": 1.25, "slow": 1.5}
STEP = 20_000


@dataclass(frozen=True)
class Scenario:
    name: str
    event: str = "error"
    rate: float = RATES["error"]
    """The treatment's, of `event`."""
    outage: bool = False
    design_treated: float | None = None
    """The treatment's requests until the rollback, as the design measured them (median)."""
    design_rolled_back: float = 1.0


SCENARIOS = (
    Scenario("good treatment", design_rolled_back=0.0),
    Scenario("good treatment, an outage of both arms", outage=True, design_rolled_back=1 / 300),
    Scenario("errors x 1.2, within tolerance", rate=1.2 * RATES["error"], design_rolled_back=0.0),
    Scenario("errors 1 %", rate=0.01, design_rolled_back=0.11),
    Scenario("always failing", rate=1.0, design_treated=3),
    Scenario("half of the answers empty", "empty", 0.5, design_treated=6),
    Scenario("errors 10 %", rate=0.1, design_treated=46),
    Scenario("errors 2 %", rate=0.02, design_treated=1_027),
    Scenario("truncated x 1.6", "truncated", 1.6 * RATES["truncated"], design_treated=1_722),
    Scenario("slow x 2", "slow", 2 * RATES["slow"], design_treated=2_303),
)


def rollback(scenario: Scenario, rng: np.random.Generator) -> float:
    """The treatment's requests until a guardrail acts; infinite if no guardrail does in the whole ramp."""
    traffic = requests(None, STEP, rng)
    n = len(traffic.unit)
    begins = rng.integers(0, n - n // 50)
    soonest = n
    for event, rate in RATES.items():
        rates = np.where(traffic.treated, scenario.rate, rate) if event == scenario.event else np.full(n, rate)
        if scenario.outage and event == "error":
            rates[begins : begins + n // 50] = 0.9
        soonest = min(soonest, _acts(traffic, rng.random(n) < rates, TOLERANCES[event], soonest))
    return float(traffic.treated[: soonest + 1].sum()) if soonest < n else math.inf


def _acts(traffic: Requests, events: Bools, r0: float, until: int) -> int:
    """The index of the request at which the guardrail acts; the number of requests if it does not act before
    `until`."""
    at = first_of_units(events, traffic.unit)
    evidence, detector = EventEvidence(), Detector()
    units, begin = 0, 0
    while begin < len(at) and at[begin] < until:
        now = at[begin : begin + 512]
        hit, p0 = traffic.treated[now], chance(traffic.share[now], 1 - traffic.share[now], r0)
        alarms: Bools = np.maximum(evidence.add(hit, p0), detector.add(hit, p0)) >= THRESHOLD
        enough = units + np.cumsum(hit) >= MIN_UNITS
        acting = np.flatnonzero(np.maximum.accumulate(alarms) & enough)
        if len(acting):
            return int(now[acting[0]])
        units, begin = units + int(hit.sum()), begin + 512
    return len(traffic.unit)


def _rollback_part(scenario: Scenario, seeds: range) -> list[float]:
    return [rollback(scenario, generator(scenario.name, seed)) for seed in seeds]


def rollbacks(executor: Executor, scenario: Scenario, count: int) -> tuple[float, float]:
    """The share of `count` ramps that are rolled back, and the median of the treatment's requests until then."""
    treated = np.concatenate(spread(executor, partial(_rollback_part, scenario), count))
    return float(np.isfinite(treated).mean()), float(np.median(treated))
