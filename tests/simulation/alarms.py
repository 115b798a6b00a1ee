"""Guardrails event by event: requests until the alarm, for constant rates and after a late regression.

Outcomes are drawn per event, not per request: how many requests lie between two events is geometric, and how many of
those are the treatment's is binomial. Every event is its own unit.
"""

import math
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.experiments.statistics.events import EVERY, Detector, EventEvidence, alarm_at, chance
from tests.simulation.pool import generator, spread

Floats = NDArray[np.float64]

THRESHOLD = alarm_at(0.0025)
"""Four guardrails share one percent of false alarms."""

LONGEST = 16_384


@dataclass(frozen=True)
class Rates:
    """The share of requests on the treatment, and of events in each arm."""

    weight: float
    control: float
    treatment: float

    @property
    def events(self) -> float:
        """Events per request of the endpoint."""
        return self.weight * self.treatment + (1 - self.weight) * self.control


@dataclass(frozen=True)
class Alarm:
    """Requests of the endpoint, and those of the treatment among them; infinite if it never came."""

    requests: float
    treated: float


def events(rates: Rates, count: int, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """The arm of each event, and the number of requests, and of the treatment's requests, before it."""
    ours = rng.random(count) < rates.weight * rates.treatment / rates.events
    quiet = rng.geometric(rates.events, count) - 1
    share = rates.weight * (1 - rates.treatment) / (1 - rates.events) if rates.events < 1 else 0.0
    treated = rng.binomial(quiet, min(share, 1.0)) + ours
    return ours, np.cumsum(quiet + 1.0), np.cumsum(treated, dtype=np.float64)


def first_alarm(rates: Rates, r0: float, rng: np.random.Generator) -> Alarm:
    """When the whole-run process alarms, if it is checked after every event."""
    evidence, p0 = EventEvidence(), chance(rates.weight, 1 - rates.weight, r0)
    before = Alarm(0, 0)
    taken, batch = 0, 64
    while taken < LONGEST:
        ours, requests, treated = events(rates, batch, rng)
        alarms = np.flatnonzero(evidence.add(ours, p0) >= THRESHOLD)
        if len(alarms):
            return Alarm(before.requests + requests[alarms[0]], before.treated + treated[alarms[0]])
        before = Alarm(before.requests + requests[-1], before.treated + treated[-1])
        taken, batch = taken + batch, 2 * batch
    return Alarm(math.inf, math.inf)


def late_alarms(rates: Rates, healthy: int, r0: float, rng: np.random.Generator) -> tuple[float, float]:
    """The treatment's requests from a regression until the alarms of (whole run, detector), after about `healthy`
    events: it begins anywhere between two starts of the detector.
    """
    count = healthy + int(rng.integers(EVERY))
    past, _, _ = events(Rates(rates.weight, rates.control, rates.control), count, rng)
    p0 = chance(rates.weight, 1 - rates.weight, r0)
    whole, detector = EventEvidence(), Detector()
    whole.add(past, p0)
    detector.add(past, p0)
    alarmed_at = [math.inf, math.inf]
    before, taken, batch = 0.0, 0, 128
    while math.inf in alarmed_at and taken < LONGEST:
        ours, _, treated = events(rates, batch, rng)
        alarms = whole.add(ours, p0) >= THRESHOLD, detector.add(ours, p0) >= THRESHOLD
        for place, reached in enumerate(alarms):
            if alarmed_at[place] == math.inf and reached.any():
                alarmed_at[place] = before + float(treated[reached.argmax()])
        before, taken, batch = before + float(treated[-1]), taken + batch, 2 * batch
    return alarmed_at[0], alarmed_at[1]


WEIGHTS = (0.01, 0.05, 0.25, 0.5)
CONTROL = 0.005
TOLERANCE = 1.5
DESIGN: dict[tuple[float, float], tuple[float, float]] = {
    (0.01, 0.025): (60_120, 601),
    (0.01, 0.1): (4_850, 48),
    (0.01, 0.5): (631, 6),
    (0.01, 1.0): (274, 3),
    (0.05, 0.025): (12_688, 634),
    (0.05, 0.1): (1_088, 54),
    (0.05, 0.5): (166, 8),
    (0.05, 1.0): (76, 4),
    (0.25, 0.01): (99_525, 24_881),
    (0.25, 0.025): (3_940, 985),
    (0.25, 0.1): (413, 103),
    (0.25, 0.5): (65, 16),
    (0.25, 1.0): (33, 8),
    (0.5, 0.01): (90_696, 45_348),
    (0.5, 0.025): (3_644, 1_822),
    (0.5, 0.1): (408, 204),
    (0.5, 0.5): (70, 35),
    (0.5, 1.0): (34, 17),
}
"""(weight, the treatment's rate) to the medians that the design measured."""

LATE: dict[tuple[float, float, int], tuple[float, float]] = {
    (0.5, 4 * CONTROL, 5_000): (138_812, 10_000),
    (0.5, 20 * CONTROL, 5_000): (17_966, 700),
    (0.5, 1.0, 5_000): (1_678, 60),
    (0.05, 4 * CONTROL, 5_000): (17_368, 3_500),
    (0.05, 20 * CONTROL, 5_000): (2_236, 190),
    (0.05, 1.0, 5_000): (205, 16),
    (0.5, 20 * CONTROL, 20_000): (math.nan, 700),
}
"""(weight, the treatment's rate, healthy events before) to the treatment's requests after the regression: the median
until the whole run's alarm as the design measured it, and the most that the median until the detector's may be."""


def _first_part(rates: Rates, seeds: range) -> list[Alarm]:
    return [first_alarm(rates, TOLERANCE, generator(f"alarms {rates}", seed)) for seed in seeds]


def median_alarm(executor: Executor, rates: Rates, count: int) -> Alarm:
    """Over `count` runs."""
    alarms = [alarm for part in spread(executor, partial(_first_part, rates), count) for alarm in part]
    requests, treated = np.median([(alarm.requests, alarm.treated) for alarm in alarms], axis=0)
    return Alarm(float(requests), float(treated))


def _late_part(rates: Rates, healthy: int, seeds: range) -> list[tuple[float, float]]:
    return [late_alarms(rates, healthy, TOLERANCE, generator(f"late {rates}", seed)) for seed in seeds]


def median_late(executor: Executor, rates: Rates, healthy: int, count: int) -> tuple[float, float]:
    """The treatment's requests until the whole run's alarm, and until the detector's."""
    pairs = [pair for part in spread(executor, partial(_late_part, rates, healthy), count) for pair in part]
    whole, detector = np.median(pairs, axis=0)
    return float(whole), float(detector)
