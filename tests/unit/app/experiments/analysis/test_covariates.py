"""Results adjusted for what units did before the run, and for nothing that an arm may have caused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from app.config.experiments import Experiment
from app.experiments.analysis.analysis import Analysis
from app.experiments.contract.report import Comparison
from app.experiments.runs import HISTORY_S
from app.exposures.wire import Flag, Plan
from tests.support.experiments.world import BLUE, DAY_S, GREEN, START, Recorded, World, analysis_of, config

NOW = START + 2 * DAY_S


def primary(analysis: Analysis) -> Comparison:
    (compared,) = analysis.report(NOW).primary
    return compared


def width(compared: Comparison) -> float:
    assert compared.effect.lower is not None
    assert compared.effect.upper is not None
    return compared.effect.upper - compared.effect.lower


def compared_after(*earlier: Recorded, world: World, run: Recorded, **experiment: Any) -> Comparison:
    analysis = analysis_of(world, config(**experiment))
    for recorded in earlier:
        recorded.tell(analysis)
    run.tell(analysis)
    return primary(analysis)


def test_history_narrows_the_interval_and_can_be_left_out() -> None:
    world = World(seed=3, slower=1.1)
    earlier, run = world.before(3000), world.requests(4000)
    without = compared_after(world=world, run=run)
    adjusted = compared_after(earlier, world=world, run=run)
    assert width(adjusted) < 0.75 * width(without)
    assert without.variance_ratio is None
    assert adjusted.variance_ratio is not None
    assert adjusted.variance_ratio < 0.6
    assert adjusted.effect.lower is not None
    assert adjusted.effect.lower < 0.1 < (adjusted.effect.upper or 0)
    assert compared_after(earlier, world=world, run=run, covariates=[]) == without


def test_history_counts_whenever_it_comes_and_in_any_order() -> None:
    world = World(seed=4)
    earlier, run = world.before(3000), world.requests(3000)
    first = analysis_of(world)
    earlier.tell(first)
    run.tell(first)
    later = analysis_of(world)
    run.tell(later, parts=3)
    earlier.tell(later, parts=5, order=np.random.default_rng(1).permutation(len(earlier.rows)))
    one, other = primary(first), primary(later)
    assert one.effect.estimate == pytest.approx(other.effect.estimate)
    assert width(one) == pytest.approx(width(other))


def planted(world: World, recorded: Recorded) -> dict[str, Recorded]:
    """The same records, such that an arm may have caused them, or that they are too old or another endpoint's."""
    divided = world.tables.plan(Plan("chat", "0-divided", {BLUE: 50, GREEN: 50}))
    another = world.tables.plan(Plan("other", "0-undivided", {BLUE: 100}))
    rows = recorded.rows
    green = np.full(len(rows), world.codes[GREEN], np.int32)

    def changed(**columns: Any) -> Recorded:
        return Recorded(recorded.starts.take(slice(0)), replace(rows, **columns), recorded.late.take(slice(0)))

    return {
        "a plan that divided the traffic": changed(plan=np.full(len(rows), divided, np.int32)),
        "a deployment that the plan did not give": changed(assigned=green),
        "another endpoint": changed(plan=np.full(len(rows), another, np.int32)),
        "a request that named its deployment": recorded.flagged(Flag.FORCED),
        "a conversation that an earlier plan drew": recorded.flagged(Flag.CARRIED),
        "more than a week before": changed(at=rows.at - HISTORY_S),
    }


PLANTED = [
    "a plan that divided the traffic",
    "a deployment that the plan did not give",
    "another endpoint",
    "a request that named its deployment",
    "a conversation that an earlier plan drew",
    "more than a week before",
]


@pytest.mark.parametrize("kind", PLANTED)
def test_what_an_arm_may_have_caused_is_no_history(kind: str) -> None:
    world = World(seed=5, slower=1.2)
    earlier, run = world.before(3000), world.requests(3000)
    without = compared_after(world=world, run=run)
    assert compared_after(planted(world, earlier)[kind], world=world, run=run) == without
    assert compared_after(earlier, world=world, run=run) != without


def test_the_first_prompts_size_narrows_the_interval_beyond_its_stratum_and_alone() -> None:
    world, rng = World(seed=8, users=1500), np.random.default_rng(8)
    user = np.repeat(np.arange(1500), 4)
    order = np.argsort(rng.random(1500)[user] + 0.01 * np.tile(np.arange(4), 1500), kind="stable")
    first = rng.normal(7, 1.2, 1500)
    size = np.exp(first[user] + np.tile(np.arange(4), 1500) * 0.2)
    green = rng.random(1500) < 0.5
    ttft = np.exp(0.6 * first[user] - 6 + rng.normal(0, 0.3, 1500)[user] + rng.normal(0, 0.3, 6000))
    ttft = np.where(green[user], 1.1, 1.0) * ttft
    at = START + 10.0 * np.arange(6000, dtype=np.float64)
    run = world.answered(at, user[order], green[user[order]], prompt_bytes=size[order], ttft_s=ttft[order])
    none, alone, strata, both = (
        compared_after(world=world, run=run, strata=declared, covariates=covariates)
        for declared in ([], ["prompt_bytes"])
        for covariates in ([], ["first_prompt"])
    )
    assert width(both) < 0.95 * width(strata)
    assert width(alone) < 0.75 * width(none)
    for compared in (none, strata, alone, both):
        assert (compared.effect.lower or 0.0) < 0.1 < (compared.effect.upper or 0.0)
    assert both.variance_ratio is not None
    assert strata.variance_ratio is None


def test_nothing_of_the_run_is_history() -> None:
    """Under a plan that gives control everything, after the start: as when a ramp is halted."""
    world = World(seed=6)
    earlier, run = world.before(3000), world.requests(3000)
    halted = world.before(2000, hours=4, since=START + 30 * 3600)
    analysis, other = analysis_of(world), analysis_of(world)
    for recorded in (earlier, run, halted):
        recorded.tell(analysis)
    for recorded in (halted, run, earlier):
        recorded.tell(other)
    assert primary(analysis).effect.estimate == pytest.approx(primary(other).effect.estimate)
    without = compared_after(halted, world=world, run=run, covariates=[])
    assert compared_after(halted, world=world, run=run) == without


def test_an_effect_that_was_there_before_the_run_is_not_adjusted_away() -> None:
    """The split is as old as the ledger, and the run begins later: earlier values hold the arm's effect."""
    world = World(seed=7, slower=1.3)
    earlier, run = world.requests(4000, 71.0, START - 3 * DAY_S), world.requests(4000)
    compared = compared_after(earlier, world=world, run=run)
    assert compared.verdict == "worse"
    assert compared.effect == compared_after(world=world, run=run).effect


def test_labels_of_an_aa_run_take_history_under_any_plan() -> None:
    """They are drawn anew, whatever the traffic's division was."""
    world = World(seed=8, weights=(90, 10))
    earlier, run = world.requests(4000, 71.0, START - 3 * DAY_S), world.requests(4000)
    aa: dict[str, Any] = {"mode": "aa", "treatments": ["label"], "world": world, "run": run}
    assert width(compared_after(earlier, **aa)) < 0.75 * width(compared_after(**aa))


def test_aa_runs_are_adjusted_as_the_report_is() -> None:
    world = World(seed=9)
    earlier, run = world.before(3000), world.requests(3000)
    analysis = analysis_of(world)
    for recorded in (earlier, run):
        recorded.tell(analysis)
    for one in analysis.false_verdicts()(40):
        assert one.sequences <= 0.1


@pytest.mark.parametrize("setting", ["covariates", "strata"])
@pytest.mark.parametrize("caused", ["output_tokens", "prompt_tokens", "duration", "turn", "finish", "in_flight"])
def test_only_what_was_known_before_may_be_a_covariate_or_a_stratum(setting: str, caused: str) -> None:
    section = {"endpoint": "chat", "control": BLUE, "treatments": [GREEN]}
    primary = [{"metric": "ttft", "minimal_effect": 0.05}]
    with pytest.raises(ValidationError, match=setting):
        Experiment.model_validate({**section, "primary": primary, setting: [caused]})
