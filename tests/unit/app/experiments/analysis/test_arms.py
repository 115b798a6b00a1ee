from typing import Any

import numpy as np

from app.experiments.analysis.arms import OUTSIDE, Arms, labels
from app.exposures.wire import Plan
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config

PLANS = [Plan("chat", "0-a", {"blue": 99, "green": 1}), Plan("other", "0-b", {"blue": 50, "green": 50})]


def arms(recorder: Recorder, started_at: float = 0.0, **experiment: Any) -> Arms:
    declared = config(**experiment).experiments["green-float32"]
    return Arms("green-float32", declared, recorder.tables, started_at)


def test_exposures_of_other_endpoints_other_deployments_and_earlier_times_do_not_belong() -> None:
    recorder = Recorder()
    fields: list[Fields] = [{"assigned": 1}, {"assigned": 2}, {"plan": 1}, {"at": 5.0}, {}]
    placed = arms(recorder, started_at=100.0).place(recorder.rows(*fields, plans=PLANS))
    assert placed.belongs.tolist() == [True, False, False, False, True]
    assert placed.arm.tolist() == [1, OUTSIDE, OUTSIDE, OUTSIDE, 0]


def test_starts_at_is_later_than_the_start() -> None:
    recorder = Recorder()
    mine = arms(recorder, starts_at=2000.0)
    assert mine.place(recorder.rows({"at": 1999.0}, {"at": 2000.0})).belongs.tolist() == [False, True]


def test_plans_with_the_same_weights_are_one_set() -> None:
    recorder = Recorder()
    mine = arms(recorder)
    plans = [PLANS[0], Plan("chat", "1-c", {"blue": 50, "green": 50}), Plan("chat", "2-d", {"green": 1, "blue": 99})]
    placed = mine.place(recorder.starts({"plan": 0}, {"plan": 1}, {"plan": 2}, plans=plans))
    assert mine.weights[placed.weights].tolist() == [[99, 1], [50, 50], [99, 1]]
    assert len(mine.weights) == 2


def test_the_plan_that_gives_a_treatment_most_is_found_among_those_of_the_endpoint_in_between() -> None:
    recorder = Recorder()
    mine = arms(recorder)
    shares = [(99, 1), (50, 50), (95, 5), (0, 0), (100, 0)]
    plans = [Plan("chat", str(number), {"blue": blue, "green": green}) for number, (blue, green) in enumerate(shares)]
    plans.insert(1, Plan("other", "0-b", {"blue": 1, "green": 99}))
    mine.place(recorder.starts(*({"plan": plan} for plan in range(6)), plans=plans))
    first, last = np.array([0, 0, 0, 3, 3, 5], np.int32), np.array([0, 1, 5, 5, 0, 5], np.int32)
    weights = mine.weights[mine.most_treated(1, first, last)]
    assert weights.tolist() == [[99, 1], [99, 1], [50, 50], [95, 5], [50, 50], [100, 0]]


def test_names_and_plans_that_come_later_are_known() -> None:
    recorder = Recorder()
    mine = arms(recorder)
    mine.place(recorder.rows({}))
    placed = mine.place(recorder.rows({"plan": 0, "assigned": 1}, plans=[Plan("chat", "9-z", {"blue": 7, "green": 3})]))
    assert mine.weights[placed.weights].tolist() == [[7, 3]]


def test_aa_labels_are_drawn_among_controls_units_regardless_of_names() -> None:
    recorder = Recorder()
    mine = arms(recorder, mode="aa", treatments=["label"])
    columns = recorder.rows(*({"unit": unit} for unit in range(400)), {"assigned": 1})
    placed = mine.place(columns)
    assert placed.belongs.tolist() == [True] * 400 + [False]
    assert 150 < (placed.arm == 1).sum() < 250
    assert mine.weights.tolist() == [[1, 1]]
    assert placed.arm[:400].tolist() == mine.place(columns).arm[:400].tolist()


def test_another_salt_draws_other_labels() -> None:
    units = np.arange(1000, dtype=np.uint64)
    one, other = (labels(units, 2, salt) for salt in (b"one", b"other"))
    assert 400 < (one == other).sum() < 600
