from typing import Any

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.traffic import Traffic
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
