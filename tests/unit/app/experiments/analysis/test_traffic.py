from typing import Any

import numpy as np
import pytest

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.metrics import Values
from app.experiments.analysis.rare_events import FEW, RareEvents
from app.experiments.analysis.sample_ratio import ArmLoad, Completeness, Traffic
from app.experiments.contract.report import Effect
from app.exposures.wire import Flag
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config


class Rig:
    """Traffic of rows that a test defines."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        declared = config().experiments["green-float32"]
        self.arms = Arms("green-float32", declared, self.recorder.tables, 0.0)
        self.traffic = Traffic(self.arms.names, self.recorder.tables)

    def rows(self, *fields: Fields) -> None:
        rows = self.recorder.rows(*fields)
        self.traffic.add_rows(rows, self.arms.place(rows))

    def starts(self, *fields: Fields) -> None:
        starts = self.recorder.starts(*fields)
        self.traffic.add_starts(starts, self.arms.place(starts))


def fields(count: int, **values: Any) -> list[Fields]:
    return [values] * count


def test_requests_are_counted_by_what_became_of_them() -> None:
    rig = Rig()
    rig.rows({}, {"served": 1}, {"assigned": 1, "served": 1}, {"served": -1})
    rig.rows({"flags": int(Flag.FORCED)}, {"flags": int(Flag.CARRIED), "assigned": 1, "served": 1})
    rig.traffic.set_lost({"green": 4})
    assert rig.traffic.served == {"blue": {"blue": 1, "green": 1}, "green": {"green": 2}}
    assert rig.traffic.forced == {"blue": 1, "green": 0}
    assert rig.traffic.carried == {"blue": 0, "green": 1}
    assert rig.traffic.lost == {"blue": 0, "green": 4}


def test_more_than_five_percent_of_an_arms_rows_lost_is_too_much() -> None:
    rig = Rig()
    rig.rows(*fields(95), *fields(95, assigned=1))
    rig.traffic.set_lost({"blue": 5, "green": 5})
    assert rig.traffic.too_many_lost() == ""
    rig.traffic.set_lost({"blue": 5, "green": 6})
    assert rig.traffic.too_many_lost() == "5.9 % of the rows of green were lost"


def test_differences_between_arms_are_described() -> None:
    rig = Rig()
    rig.starts(*fields(200), *fields(200, assigned=1))
    rig.rows(*fields(200), *fields(100, assigned=1, served=1), *fields(40, assigned=1, served=0))
    assert rig.traffic.differences() == [
        "Requests without a row: blue 0.0 % (0), green 30.0 % (60).",
        "Requests answered by a fallback: blue 0.0 % (0), green 28.6 % (40).",
    ]


def test_differences_that_chance_explains_are_left_out() -> None:
    rig = Rig()
    rig.starts(*fields(200), *fields(190, assigned=1))
    rig.rows(
        *fields(195),
        *fields(5, status=429),
        *fields(180, assigned=1, served=1),
        *fields(9, status=429, assigned=1, served=1),
    )
    assert rig.traffic.differences() == []


def test_requests_that_no_deployment_answered_are_compared() -> None:
    rig = Rig()
    rig.rows(*fields(200), *fields(160, assigned=1, served=1), *fields(40, assigned=1, served=-1))
    assert rig.traffic.differences() == ["Requests that no deployment answered: blue 0.0 % (0), green 20.0 % (40)."]


HALF = np.array([[50, 50]])


def add(completeness: Completeness, arm: int, units: range, missing: bool = True) -> None:
    size = len(units)
    completeness.add(
        np.full(size, missing), np.array(units, np.uint64), np.zeros(size), np.zeros(size, np.int32),
        np.full(size, arm, np.int8), HALF,
    )  # fmt: skip


def test_values_that_are_missing_more_often_on_either_arm_are_an_alarm() -> None:
    for arm in (0, 1):
        completeness = Completeness(1)
        add(completeness, arm, range(12))
        assert not completeness.is_new_alarm()
        add(completeness, arm, range(12, 25))
        assert completeness.is_new_alarm()


def test_values_that_are_missing_on_both_arms_alike_are_no_alarm() -> None:
    completeness = Completeness(1)
    add(completeness, 0, range(500))
    add(completeness, 1, range(500, 1000))
    add(completeness, 1, range(1000, 2000), missing=False)
    assert not completeness.is_new_alarm()
    assert completeness.units == (500, 500)


def test_the_exact_test_ends_where_both_arms_have_enough_events() -> None:
    rare = RareEvents(1)

    def add_rows(arm: int, units: range) -> None:
        size = len(units)
        ones = np.ones(size)
        values = Values(ones, ones, ones > 0, ones < 0, ones < 0)
        unit = np.array(units, np.uint64)
        rare.add(values, unit, np.zeros(size), np.zeros(size, np.int32), np.full(size, arm, np.int8))

    add_rows(0, range(40))
    add_rows(1, range(40, 40 + FEW - 1))
    known = rare.at_present()
    effect = known.effect(HALF, 0.05, (1, 1))
    assert effect.upper is not None
    assert effect.upper < 0
    assert known.log_e_value(HALF, (1, 1)) > 3
    add_rows(1, range(100, 101))
    assert not rare.applies
    assert known.effect(HALF, 0.05, (1, 1)) == effect, "a look is one of its own time"


def test_the_exact_test_allows_for_the_events_that_a_unit_may_have() -> None:
    def of(treated: list[int], requests: float) -> tuple[Effect, float]:
        """Control has nine units with an event; `treated` are those of the treatment's."""
        rare = RareEvents(1)
        for arm, units in ((0, list(range(9))), (1, treated)):
            size, ones = len(units), np.ones(len(units))
            values = Values(ones, ones, ones > 0, ones < 0, ones < 0)
            rare.add(values, np.array(units, np.uint64), ones, np.zeros(size, np.int32), np.full(size, arm, np.int8))
        known = rare.at_present()
        return known.effect(HALF, 0.05, (requests, requests)), known.log_e_value(HALF, (requests, requests))

    (once, evidence), (none, _), (maybe, less) = of([20], 10), of([], 1), of([], 10)
    assert once.upper is not None
    assert once.estimate == pytest.approx(1 / 9 - 1)
    assert evidence > 0
    assert none.upper is not None
    assert maybe.upper == pytest.approx(10 * (1 + none.upper) - 1), "each unit may be about to fail with ten requests"
    assert less < 0.5
    several, _ = of([20, 20, 20], 10)
    assert several.estimate == pytest.approx(3 / 9 - 1)
    assert several.upper is None


BLUE, GREEN = 0, 1


def add_load(load: ArmLoad, arm: int, in_flight: int, rows: int = 10) -> None:
    load.add(np.full(rows, in_flight, np.uint16), np.full(rows, arm, np.int8))


def test_arms_are_compared_by_requests_in_flight_per_replica() -> None:
    load = ArmLoad(["blue", "green"], ["blue", "green"])
    add_load(load, BLUE, 4)
    add_load(load, GREEN, 2)
    load.observe(3, {"blue": 4, "green": 1})
    assert load.in_flight == {"blue": 12.0, "green": 6.0}
    assert load.replicas == {"blue": 4.0, "green": 1.0}
    assert load.warnings() == [
        "The arms' loads differ: requests in flight per replica were 3.0 on blue (replicas: 4), "
        "6.0 on green (replicas: 1). Compare them as provisioned."
    ]


def test_as_many_requests_for_each_replica_are_no_difference() -> None:
    load = ArmLoad(["blue", "green"], ["blue", "green"])
    add_load(load, BLUE, 40)
    add_load(load, GREEN, 11)
    load.observe(1, {"blue": 4, "green": 1})
    assert load.warnings() == []


def test_replicas_that_come_and_go_count_by_the_requests_meanwhile() -> None:
    load = ArmLoad(["blue", "green"], ["blue", "green"])
    add_load(load, BLUE, 1, rows=30)
    load.observe(1, {"blue": 1, "green": 1})
    for _ in range(5):
        load.observe(1, {"blue": 9, "green": 9})
    load.observe(2, {"blue": 3, "green": 2})
    add_load(load, BLUE, 1, rows=10)
    add_load(load, GREEN, 1)
    assert load.replicas == {"blue": 1.5, "green": 2.0}
    assert load.in_flight == {"blue": 1.25, "green": 2.0}


def test_without_known_replicas_deployments_are_compared() -> None:
    load = ArmLoad(["blue", "green"], ["blue", "green"])
    add_load(load, BLUE, 2)
    add_load(load, GREEN, 3)
    load.observe(1, None)
    assert load.warnings() == []
    add_load(load, GREEN, 5)
    assert load.replicas == {"blue": None, "green": None}
    assert load.warnings() == [
        "The arms' loads differ: requests in flight were 2.0 on blue, 4.0 on green, and their replicas are not known. "
        "Compare them as provisioned."
    ]


def test_labels_of_aa_share_controls_replicas() -> None:
    load = ArmLoad(["blue", "label"], ["blue", "blue"])
    add_load(load, BLUE, 2)
    add_load(load, GREEN, 2)
    load.observe(1, {"blue": 2})
    assert load.replicas == {"blue": 2.0, "label": 2.0}
