"""For whom the effect differs: subgroups by what is known before a unit meets its arm."""

from typing import Any

import numpy as np
import pytest

from app.experiments.analysis.analysis import Analysis
from app.experiments.contract.report import SubgroupEffect
from tests.conftest import NIGHTLY
from tests.support.experiments.world import DAY_S, GREEN, START, Unpaced, World, config

LONG = "4,096 bytes to under 16,384"
SHORT = "256 bytes to under 1,024"
RUNS = 60 if NIGHTLY else 20


def analysis_of(sticky: str | None, world: World) -> Analysis:
    declared = config(sticky=sticky, strata=[])
    return Analysis(
        "green-float32", declared.experiments["green-float32"], declared, world.tables, START, pace=Unpaced()
    )


def told(analysis: Analysis, world: World, slower_for_long: float, units: int = 1500, requests: int = 3) -> None:
    """Every second unit begins with a long prompt; later prompts of all are long."""
    rng = world.rng
    user = np.repeat(np.arange(units), requests)
    turn = np.tile(np.arange(requests), units)
    at = START + rng.random(units).repeat(requests) * DAY_S / 2 + turn * 60
    begins_long, green = user % 2 == 1, user // 2 % 2 == 1
    size = np.where((turn > 0) | begins_long, 5000, 500)
    dialect = np.where(user % 3 == 0, world.tables.name("anthropic"), world.tables.name("openai"))
    habit = rng.normal(0, 0.3, units)[user]
    ttft = np.exp(-1 + habit + rng.normal(0, 0.2, len(user)))
    ttft = np.where(green & begins_long, ttft * slower_for_long, ttft)
    order = np.argsort(at)
    columns: dict[str, Any] = {"prompt_bytes": size, "dialect": dialect, "ttft_s": ttft, "arrived": at}
    recorded = world.answered(
        at[order], user[order], green[order], **{name: column[order] for name, column in columns.items()}
    )
    recorded.tell(analysis)


def effects(analysis: Analysis) -> list[SubgroupEffect]:
    subgroups = analysis.report(START + DAY_S).subgroups
    assert subgroups is not None
    return subgroups.effects


@pytest.mark.parametrize("sticky", ["user", None])
def test_an_effect_on_one_subgroup_is_named_with_its_interval(sticky: str | None) -> None:
    world = World()
    analysis = analysis_of(sticky, world)
    told(analysis, world, 1.5, requests=1 if sticky is None else 3)
    by_name = {effect.name: effect for effect in effects(analysis)}
    assert {name for name, subgroup in by_name.items() if subgroup.differs} == {LONG, SHORT}
    long, short = by_name[LONG].effect, by_name[SHORT].effect
    assert long.lower is not None
    assert long.upper is not None
    assert long.lower < 0.5 < long.upper
    assert long.lower > 0
    assert short.lower is not None
    assert short.upper is not None
    assert short.lower < 0 < short.upper
    assert by_name[LONG].difference.lower > 0 > by_name[SHORT].difference.upper  # type: ignore[operator]
    assert {subgroup.attribute for subgroup in by_name.values()} == {"dialect", "prompt_bytes"}, (
        "all answers are streams"
    )


@pytest.mark.parametrize("sticky", ["user", None])
def test_an_effect_on_one_group_of_callers_is_named(sticky: str | None) -> None:
    world = World()
    analysis = analysis_of(sticky, world)
    user = np.arange(1200)
    group = np.array([-1, world.tables.name("staff"), world.tables.name("customers")])[user % 3]
    green = world.rng.random(1200) < 0.5
    ttft = np.exp(world.rng.normal(-1, 0.3, 1200)) * np.where(green & (user % 3 == 1), 1.5, 1.0)
    at = START + np.sort(world.rng.random(1200)) * DAY_S / 2
    world.answered(at, user, green, ttft_s=ttft, group=group).tell(analysis)
    by_name = {effect.name: effect for effect in effects(analysis)}
    assert {(subgroup.attribute, name) for name, subgroup in by_name.items()} == {
        ("group", group) for group in ("none", "staff", "customers")
    }
    assert by_name["staff"].differs
    assert by_name["staff"].difference.lower is not None
    assert by_name["staff"].difference.lower > 0


def test_a_unit_stays_in_the_subgroup_of_its_first_request() -> None:
    world = World()
    analysis = analysis_of("user", world)
    told(analysis, world, 1.0)
    counts = {effect.name: sum(effect.units.values()) for effect in effects(analysis)}
    assert counts == {LONG: 750, SHORT: 750, "anthropic": 500, "openai": 1000}


def test_where_nothing_differs_something_is_named_at_most_as_often_as_alpha_says() -> None:
    named = 0
    for seed in range(RUNS):
        world = World(seed=seed)
        analysis = analysis_of("user", world)
        told(analysis, world, 1.0, units=400, requests=2)
        named += any(effect.differs for effect in effects(analysis))
    assert named <= 0.1 * RUNS


def test_a_difference_is_named_exactly_if_its_interval_excludes_0() -> None:
    for number, slower in enumerate(np.linspace(1.0, 1.6, 12).tolist()):
        world = World(seed=number)
        analysis = analysis_of("user", world)
        told(analysis, world, slower, units=500, requests=1)
        for effect in effects(analysis):
            lower, upper = effect.difference.lower, effect.difference.upper
            assert effect.differs == (lower is not None and upper is not None and (lower > 0 or upper < 0))


def test_subgroups_wait_for_requests_that_have_no_end() -> None:
    world = World(hangs=0.3)
    analysis = analysis_of("user", world)
    told(analysis, world, 1.5)
    world.requests(200, hours=1).tell(analysis)
    report = analysis.report(START + DAY_S)
    assert report.subgroups is not None
    assert not report.subgroups.effects
    assert GREEN in report.running


def test_however_many_subgroups_there_are_the_first_ones_are_compared() -> None:
    """A large group comes first, another one after 8,700 callers with a group each."""
    world, large, small = World(), 300, 8700
    analysis = analysis_of(None, world)
    codes = [world.tables.name(f"group {number}") for number in range(small + 2)]
    group = np.repeat([codes[0], *codes[1:-1], codes[-1]], [large, *[1] * small, large])
    count = len(group)
    green = np.arange(count) % 2 == 1
    ttft = np.exp(world.rng.normal(-1, 0.3, count)) * np.where(green & (group == codes[0]), 1.8, 1.0)
    at = START + np.arange(count, dtype=np.float64)
    world.answered(at, np.arange(count), green, ttft_s=ttft, group=group).tell(analysis)
    assert [(effect.name, effect.differs) for effect in effects(analysis)] == [("group 0", True)]
