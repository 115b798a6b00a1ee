import re

import numpy as np
import pytest

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.sample_ratio import SampleRatioWatch, SharedTime
from app.experiments.statistics.events import RETURNS_THRESHOLD, log_e_value
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


def add(watched: SampleRatioWatch, units: range, plan: int, arm: int, at: float = 1000.0) -> None:
    size = len(units)
    unit = np.array(units, np.uint64)
    watched.add(unit, np.full(size, at), np.full(size, plan, np.int32), np.full(size, arm, np.int8))


@pytest.mark.parametrize("returning", [True, False])
def test_plans_add_up_each_with_its_own_weights(returning: bool) -> None:
    watched, _, _ = watch(returning)
    add(watched, range(9880), 0, 0)
    add(watched, range(9880, 10_000), 0, 1)
    add(watched, range(10_000, 15_100), 1, 0)
    add(watched, range(15_100, 20_000), 1, 1)
    status = watched.status([])
    assert status.log_e_value == pytest.approx(
        log_e_value([((9880, 120), (99, 1)), ((5100, 4900), (50, 50))]), abs=1e-9
    )
    assert [(plan.plan, plan.units) for plan in status.plans] == [
        ("0-a", {"blue": 9880, "green": 120}),
        ("1-b", {"blue": 5100, "green": 4900}),
    ]
    assert watched.units == [14_980, 5020]
    assert not watched.is_new_alarm()


def test_plans_are_listed_in_their_order_and_not_as_this_process_has_met_them() -> None:
    recorder = Recorder()
    ids = ["10-c", "2-b", "2-a", "0-d"]
    arms = Arms("green-float32", config().experiments["green-float32"], recorder.tables, 0.0)
    for id in ids:
        recorder.tables.plan(Plan("chat", id, {"blue": 50, "green": 50}))
    watched = SampleRatioWatch(arms, recorder.tables, returning=True)
    for plan in range(len(ids)):
        add(watched, range(10 * plan, 10 * plan + 5), plan, 0)
    assert [plan.plan for plan in watched.status([]).plans] == ["0-d", "2-a", "2-b", "10-c"]


def test_a_unit_that_comes_back_under_another_plan_is_not_a_new_coin() -> None:
    watched, _, _ = watch()
    add(watched, range(100), 1, 0, at=2000.0)
    add(watched, range(100), 0, 0, at=1000.0)
    add(watched, range(100), 1, 1, at=3000.0)
    assert [plan.units for plan in watched.status([]).plans] == [{"blue": 100, "green": 0}]


def test_lost_units_are_an_alarm_that_is_new_once() -> None:
    watched, _, _ = watch()
    add(watched, range(3000), 1, 0)
    add(watched, range(3000, 5100), 1, 1)
    assert watched.is_new_alarm()
    watched.alarmed_at = 9.0
    assert not watched.is_new_alarm()
    assert watched.status(["because"]).attribution == ["because"]


@pytest.mark.parametrize("returning", [True, False])
def test_the_rate_of_new_units_is_known(returning: bool) -> None:
    watched, _, _ = watch(returning)
    add(watched, range(10), 1, 0, at=1000.0)
    add(watched, range(10, 15), 1, 0, at=9 * 3600.0)
    assert watched.new_since(0.0) == 15
    assert watched.new_since(8 * 3600.0) == 5


def times(watched: SampleRatioWatch, units: range, plan: int, arm: int, requests: int) -> None:
    for number in range(requests):
        add(watched, units, plan, arm, at=1000.0 + number)


def test_units_that_make_fewer_requests_are_evidence_in_words() -> None:
    """A few busy units hide it from the means."""
    watched, _, _ = watch()
    times(watched, range(1000, 1005), 1, 0, 500)
    times(watched, range(1005, 1010), 1, 1, 500)
    times(watched, range(300), 1, 0, 6)
    times(watched, range(300, 400), 1, 1, 6)
    times(watched, range(400, 600), 1, 1, 2)
    assert watched.compare_returns(1.0) >= RETURNS_THRESHOLD
    assert watched.suspects
    assert watched.returns.startswith(
        "Units of green make fewer requests: of 410 units with at least 3, 105 are green's, where the weights say 205."
    )
    assert not watched.is_new_alarm()


def test_a_tenth_of_the_requests_that_is_missing_is_evidence_in_words() -> None:
    """Units with four, five or six requests, of which green's lose every tenth."""
    watched, _, _ = watch()
    rng = np.random.default_rng(1)
    for unit in range(1000):
        requests = int(rng.integers(4, 7))
        arm = unit % 2
        times(watched, range(unit, unit + 1), 1, arm, int(rng.binomial(requests, 0.9)) if arm else requests)
    assert watched.compare_returns(1.0) >= RETURNS_THRESHOLD
    assert re.match(r"Units of green make fewer requests: 1\d\.\d % fewer each than blue's\. Either", watched.returns)


def test_units_that_are_unequally_active_on_both_arms_are_no_evidence() -> None:
    watched, _, _ = watch()
    times(watched, range(99), 0, 0, 200)
    times(watched, range(99, 100), 0, 1, 200)
    for arm in (0, 1):
        begin = 1000 * (1 + arm)
        times(watched, range(begin, begin + 300), 1, arm, 1)
        times(watched, range(begin, begin + 80), 1, arm, 10)
        times(watched, range(begin, begin + 10), 1, arm, 300)
    assert watched.compare_returns(1.0) < 0
    assert not watched.suspects


def test_where_units_do_not_come_back_nothing_is_said_of_it() -> None:
    watched, _, _ = watch(returning=False)
    add(watched, range(1000), 1, 0)
    assert watched.compare_returns(1.0) == 0


class Clock:
    """Shared time of a world whose plans a test changes. Every second request is green's, if its plan gives it any."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        declared = config().experiments["green-float32"]
        self.arms = Arms("green-float32", declared, self.recorder.tables, 0.0)
        self.shared = SharedTime(self.arms)
        self.requests = 0

    def pass_time(self, begin: int, end: int, plan: str, green: int, every: int = 1, other: int = 0) -> None:
        """A plan with a percentage for green, in force from one second to another; a request comes every few seconds.
        `other`: the percentage of a deployment outside of the experiment.
        """
        weights = {"blue": 100 - green - other, "green": green, "red": other}
        code = self.recorder.tables.plan(Plan("chat", plan, weights))
        at = np.arange(begin, end, every, dtype=np.float64)
        plans = np.full(len(at), code, np.int32)
        self.shared.see(at, plans)
        if other < 100:
            treated = (self.requests + np.arange(len(at))) % 2 == 1
            self.requests += len(at)
            self.shared.add(at, plans, (treated & (green > 0)).astype(np.int8))

    @property
    def seconds(self) -> float:
        return self.shared.seconds(1)


@pytest.mark.parametrize("each", [10, 30, 1000])
def test_changes_of_the_plan_take_no_time_from_that_of_both_arms(each: int) -> None:
    """A request comes in ten seconds: in the shortest plans, only one arm has any."""
    clock = Clock()
    for number in range(3000 // each):
        clock.pass_time(number * each + 1, (number + 1) * each + 1, f"{number}-p", 50 - number % 2, every=10)
    assert clock.seconds == 2981 - 11, "from the first one of green to the last one of blue"


def test_the_time_of_a_plan_without_the_treatment_is_not_counted() -> None:
    clock = Clock()
    clock.pass_time(1, 101, "0-p", 50)
    clock.pass_time(101, 1001, "1-p", 0)
    clock.pass_time(1001, 1101, "2-p", 50)
    clock.pass_time(1101, 1201, "3-p", 40)
    assert clock.seconds == pytest.approx(98 + 198, abs=2)


def test_the_time_in_which_another_deployment_has_all_traffic_is_not_counted() -> None:
    clock = Clock()
    clock.pass_time(1, 101, "0-p", 50)
    clock.pass_time(101, 1001, "1-p", 0, other=100)
    clock.pass_time(1001, 1101, "2-p", 50)
    assert clock.seconds == pytest.approx(98 + 98, abs=2)


def test_the_time_of_a_stop_is_not_counted_where_the_plan_before_it_goes_on() -> None:
    clock = Clock()
    clock.pass_time(1, 101, "0-p", 50)
    clock.pass_time(101, 1001, "0-stopped", 0)
    clock.pass_time(1001, 1101, "0-p", 50)
    assert clock.seconds == pytest.approx(1098 - 900, abs=3)


def test_a_router_that_keeps_an_old_plan_takes_no_time_from_the_others() -> None:
    clock = Clock()
    clock.pass_time(1, 1001, "0-p", 0)
    clock.pass_time(101, 601, "1-p", 50)
    clock.pass_time(601, 901, "2-p", 40)
    assert clock.seconds == pytest.approx(798, abs=2)


def test_hours_in_which_an_arm_has_no_request_are_silence() -> None:
    clock = Clock()
    for begin in (0, 82_800):
        clock.pass_time(begin + 1, begin + 1201, "0-p", 50)
    clock.pass_time(40_000, 40_001, "0-p", 50)
    assert clock.seconds == pytest.approx(3600 + 1200, abs=5)


def test_shared_time_does_not_depend_on_the_order_of_the_records() -> None:
    parts = [(1, 101, "0-p", 50), (101, 301, "1-p", 0), (301, 401, "2-p", 50), (401, 501, "3-p", 40)]
    seconds = set()
    for order in (parts, parts[::-1], parts[2:] + parts[:2]):
        clock = Clock()
        for part in order:
            clock.pass_time(*part)
        seconds.add(clock.seconds)
    assert len(seconds) == 1
