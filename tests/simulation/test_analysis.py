"""The analysis as the controller runs it, from exposures over repeated looks to final verdicts."""

from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial

import numpy as np
import pytest

from tests.simulation.pool import processes
from tests.support.experiments.world import START, World, analysis_of, config

SECONDARY = [
    {"metric": "ttft", "statistic": "p95", "minimal_effect": 0.1},
    {"metric": "tokens_per_second", "minimal_effect": 0.05},
    {"metric": "error", "minimal_effect": 0.25},
    {"metric": "output_tokens", "minimal_effect": 0.05},
]
LOOKS = 12
HOURS = 2.0


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with processes() as executor:
        yield executor


def run(seed: int, slower: float) -> list[bool]:
    """8,400 requests of 600 users while green's share goes from 10 to 50 percent, with a look every two hours.

    Returns whether ttft, the four other metrics, any guardrail, the sample ratio, and any completeness test found
    something.
    """
    world = World(seed=seed, users=600, weights=(90, 10), error_rate=(0.02, 0.02), slower=slower)
    world.draw = np.random.default_rng(seed + 1_000_000).random(world.users)
    analysis = analysis_of(world, config((90, 10), secondary=SECONDARY))
    for number in range(LOOKS):
        if number == 4:
            world.weights, world.plan = (50, 50), "1-bbbbbbbb"
        world.requests(700, hours=HOURS, since=START + number * HOURS * 3600).tell(analysis)
        analysis.tick(START + (number + 1) * HOURS * 3600)
    report = analysis.report(START + LOOKS * HOURS * 3600)
    kinds = {alarm.kind for alarm in report.alarms}
    verdicts = [comparison.verdict in ("better", "worse") for comparison in (*report.primary, *report.secondary)]
    return [*verdicts, *(kind in kinds for kind in ("guardrail", "sample_ratio", "completeness"))]


def test_without_a_difference_a_whole_ramp_finds_nothing(executor: Executor) -> None:
    verdicts = np.array(list(executor.map(partial(run, slower=1.0), range(100), chunksize=5)))
    assert (verdicts[:, : 1 + len(SECONDARY)].mean(axis=0) <= 0.075).all()
    assert (verdicts[:, 1 + len(SECONDARY) :].mean(axis=0) <= 0.02).all()


def test_a_treatment_that_is_thirty_percent_slower_is_found_during_the_ramp(executor: Executor) -> None:
    verdicts = np.array(list(executor.map(partial(run, slower=1.3), range(20), chunksize=5)))
    assert verdicts[:, 0].mean() >= 0.9
    assert verdicts[:, 2].all()
