import re

import numpy as np
import pytest

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.sample_ratio import SampleRatioWatch
from app.experiments.statistics.events import RETURNS_THRESHOLD, ln_e
from app.exposures.wire import Plan
from tests.support.experiments.exposure_columns import Recorder
from tests.support.experiments.world import config

HALF, ONE_PERCENT = Plan("chat", "1-b", {"blue": 50, "green": 50}), Plan("chat", "0-a", {"blue": 99, "green": 1})


def watch(returning: bool = True) -> tuple[SampleRatioWatch, Arms, Recorder]:
    recorder = Recorder()
    declared = config().experiments["green-float32"]
    arms = Arms("green-float32", declared, recorder.tables, 0.0)
    for plan in (ONE_PERCENT, HALF):
        recorder.tables.plan(plan)
    return SampleRatioWatch(arms, recorder.tables, returning=returning), arms, recorder


def add(found: SampleRatioWatch, units: range, plan: int, arm: int, at: float = 1000.0) -> None:
    size = len(units)
    unit = np.array(units, np.uint64)
    found.add(unit, np.full(size, at), np.full(size, plan, np.int32), np.full(size, arm, np.int8))


@pytest.mark.parametrize("returning", [True, False])
def test_plans_add_up_each_with_its_own_weights(returning: bool) -> None:
    found, _, _ = watch(returning)
    add(found, range(9880), 0, 0)
    add(found, range(9880, 10_000), 0, 1)
    add(found, range(10_000, 15_100), 1, 0)
    add(found, range(15_100, 20_000), 1, 1)
    status = found.status([])
    assert status.log_e_value == pytest.approx(ln_e([((9880, 120), (99, 1)), ((5100, 4900), (50, 50))]), abs=1e-9)
    assert [(plan.plan, plan.units) for plan in status.plans] == [
        ("0-a", {"blue": 9880, "green": 120}),
        ("1-b", {"blue": 5100, "green": 4900}),
    ]
    assert found.units == [14_980, 5020]
    assert not found.is_new_alarm()


def test_a_unit_that_comes_back_under_another_plan_is_not_a_new_coin() -> None:
    found, _, _ = watch()
    add(found, range(100), 1, 0, at=2000.0)
    add(found, range(100), 0, 0, at=1000.0)
    add(found, range(100), 1, 1, at=3000.0)
    assert [plan.units for plan in found.status([]).plans] == [{"blue": 100, "green": 0}]


def test_lost_units_are_an_alarm_that_is_new_once() -> None:
    found, _, _ = watch()
    add(found, range(3000), 1, 0)
    add(found, range(3000, 5100), 1, 1)
    assert found.is_new_alarm()
    found.alarmed_at = 9.0
    assert not found.is_new_alarm()
    assert found.status(["because"]).attribution == ["because"]


@pytest.mark.parametrize("returning", [True, False])
def test_the_rate_of_new_units_is_known(returning: bool) -> None:
    found, _, _ = watch(returning)
    add(found, range(10), 1, 0, at=1000.0)
    add(found, range(10, 15), 1, 0, at=9 * 3600.0)
    assert found.new_since(0.0) == 15
    assert found.new_since(8 * 3600.0) == 5


def times(found: SampleRatioWatch, units: range, plan: int, arm: int, requests: int) -> None:
    for number in range(requests):
        add(found, units, plan, arm, at=1000.0 + number)


def test_units_that_make_fewer_requests_are_evidence_in_words() -> None:
    """A few busy units hide it from the means."""
    found, _, _ = watch()
    times(found, range(1000, 1005), 1, 0, 500)
    times(found, range(1005, 1010), 1, 1, 500)
    times(found, range(300), 1, 0, 6)
    times(found, range(300, 400), 1, 1, 6)
    times(found, range(400, 600), 1, 1, 2)
    assert found.compare_returns() >= RETURNS_THRESHOLD
    assert found.suspects
    assert found.returns.startswith(
        "Units of green make fewer requests: of 410 units with at least 3, 105 are green's, where the weights say 205."
    )
    assert not found.is_new_alarm()


def test_a_tenth_of_the_requests_that_is_missing_is_evidence_in_words() -> None:
    """Units with four, five or six requests, of which green's lose every tenth."""
    found, _, _ = watch()
    rng = np.random.default_rng(1)
    for unit in range(1000):
        requests = int(rng.integers(4, 7))
        arm = unit % 2
        times(found, range(unit, unit + 1), 1, arm, int(rng.binomial(requests, 0.9)) if arm else requests)
    assert found.compare_returns() >= RETURNS_THRESHOLD
    assert re.match(r"Units of green make fewer requests: 1\d\.\d % fewer each than blue's\. Either", found.returns)


def test_units_that_are_unequally_active_on_both_arms_are_no_evidence() -> None:
    found, _, _ = watch()
    times(found, range(99), 0, 0, 200)
    times(found, range(99, 100), 0, 1, 200)
    for arm in (0, 1):
        begin = 1000 * (1 + arm)
        times(found, range(begin, begin + 300), 1, arm, 1)
        times(found, range(begin, begin + 80), 1, arm, 10)
        times(found, range(begin, begin + 10), 1, arm, 300)
    assert found.compare_returns() < 0
    assert not found.suspects


def test_where_units_do_not_come_back_nothing_is_said_of_it() -> None:
    found, _, _ = watch(returning=False)
    add(found, range(1000), 1, 0)
    assert found.compare_returns() == 0
