import numpy as np

from app.experiments.analysis.arrays import combined
from app.experiments.analysis.false_verdicts import RecordedMetric, false_verdicts
from app.experiments.statistics.look import UnitSums
from tests.support.experiments.world import World, analysis_of, config


def recorded(units: int, seed: int = 1) -> RecordedMetric:
    """Simulated users who return and differ."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 20, units).astype(np.float64)
    x = n * rng.normal(0, 0.5, units) + np.sqrt(n) * rng.normal(0, 0.5, units)
    codes = np.arange(units)
    lines = UnitSums(codes, np.zeros(units, np.int64), np.zeros(units, np.int64), n, x, n)
    return RecordedMetric("ttft", "difference", 0.05, lines, combined(codes.astype(np.uint64), codes))


def test_sequences_keep_their_level_where_a_repeated_t_test_does_not() -> None:
    result = false_verdicts([recorded(1500)], runs=200, alpha=0.05)[0]
    assert result.sequences <= 0.075
    assert result.peeked >= 0.1
    assert (result.runs, result.looks, result.units) == (200, 20, 1500)


def test_the_same_units_give_the_same_answer() -> None:
    assert false_verdicts([recorded(300)], 20, 0.05) == false_verdicts([recorded(300)], 20, 0.05)


def test_nothing_recorded_gives_no_verdicts() -> None:
    result = false_verdicts([recorded(0)], 5, 0.05)[0]
    assert (result.sequences, result.peeked, result.looks, result.units) == (0, 0, 0, 0)


def test_an_aa_analysis_redraws_recorded_units_though_they_differ_by_arm() -> None:
    world = World(users=500, slower=2.0)
    secondary = [
        {"metric": "ttft", "statistic": "p95", "minimal_effect": 0.1},
        {"metric": "error", "minimal_effect": 0.2},
    ]
    recorded = world.requests(4000)
    for sticky in ("user", None):
        analysis = analysis_of(world, config(sticky=sticky, secondary=secondary))
        recorded.tell(analysis)
        results = analysis.false_verdicts()(20)
        assert [(result.metric, result.units) for result in results] == [("ttft", 500), ("error", 500)]
        assert max(result.sequences for result in results) <= 0.2
