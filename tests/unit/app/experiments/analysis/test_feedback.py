import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.config.experiments import FeedbackSettings
from app.experiments.analysis.feedback import GRACE_S, UNKNOWN_S, PendingFeedback
from app.exposures.wire import FeedbackItem
from tests.support.experiments.exposure_columns import Fields, Recorder

WINDOW = 3600.0
METRICS = {
    "thumbs": FeedbackSettings(window_s=WINDOW),
    "stars": FeedbackSettings(type="number", min=1, max=5, window_s=60.0),
}
RIPE = 1000.0 + WINDOW + GRACE_S
ALICE, BOB, MANAGER = 7, 8, 0


def item(
    request: int, value: float = 1.0, at: float = 1500.0, caller: int = ALICE, metric: str = "thumbs"
) -> FeedbackItem:
    return FeedbackItem(at, request, caller, metric, value)


def pending(*fields: Fields, max_pending: int = 1000) -> PendingFeedback:
    feedback = PendingFeedback(METRICS, max_pending)
    add(feedback, *fields)
    return feedback


def add(feedback: PendingFeedback, *fields: Fields) -> None:
    base: dict[str, Any] = {"at": 1000.0, "caller": ALICE}
    rows = Recorder().rows(*(base | values for values in fields))
    feedback.add_rows(rows, np.arange(len(rows), dtype=np.int32), (rows.assigned != 0).astype(np.int8))


def values(feedback: PendingFeedback, now: float = RIPE, metric: str = "thumbs") -> list[float | None]:
    return [None if math.isnan(value) else value for value in feedback.mature(now)[metric].value.tolist()]


def test_an_exposure_counts_once_its_window_is_over_with_its_score_or_without() -> None:
    feedback = pending({"request": 1}, {"request": 2})
    feedback.add([item(1, 0.0)])
    assert values(feedback, RIPE - 1) == []
    assert values(feedback) == [0.0, None]
    assert values(feedback, RIPE + 1) == []


def test_matured_feedback_has_its_unit_stratum_and_arm() -> None:
    ripe = pending({"request": 1, "unit": 4, "assigned": 0}, {"request": 2, "unit": 5, "assigned": 1}).mature(RIPE)[
        "thumbs"
    ]
    assert (ripe.unit.tolist(), ripe.stratum.tolist(), ripe.arm.tolist()) == ([4, 5], [0, 1], [0, 1])


def test_each_metric_has_its_own_window() -> None:
    feedback = pending({"request": 1})
    feedback.add([item(1, 4.0, 1050.0, metric="stars"), item(1, 1.0, 1050.0)])
    assert values(feedback, 1070.0, "stars") == [4.0]
    assert values(feedback) == [1.0]


def test_the_last_score_counts_in_any_order_of_arrival() -> None:
    for order in ([0, 1], [1, 0]):
        feedback = pending({"request": 1})
        items = [item(1, 0.0, 1400.0), item(1, 1.0, 1500.0)]
        feedback.add([items[number] for number in order])
        assert values(feedback) == [1.0]


def test_the_answers_id_works_too() -> None:
    feedback = pending({"request": 1, "answer": 11})
    feedback.add([item(11)])
    assert values(feedback) == [1.0]


@pytest.mark.parametrize(("caller", "expected"), [(ALICE, [1.0]), (BOB, [None]), (MANAGER, [1.0])])
def test_only_the_caller_or_a_manager_may_score_a_request(caller: int, expected: list[float | None]) -> None:
    for identity in (1, 11):
        feedback = pending({"request": 1, "answer": 11})
        feedback.add([item(identity, caller=caller)])
        assert values(feedback) == expected


def test_a_request_id_used_again_is_the_callers_latest() -> None:
    fields: list[Fields] = [
        {"request": 1, "at": 1000.0},
        {"request": 1, "at": 1001.0},
        {"request": 1, "caller": BOB, "at": 1002.0},
    ]
    for order in ([0, 1, 2], [2, 1, 0]):
        feedback = pending(*(fields[number] for number in order))
        feedback.add([item(1)])
        ripe = feedback.mature(RIPE + 10)["thumbs"].value.tolist()
        assert [ripe[order.index(number)] == 1.0 for number in range(3)] == [False, True, False]


def test_late_scores_change_nothing_and_are_counted() -> None:
    feedback = pending({"request": 1}, {"request": 2})
    feedback.add([item(1, at=1000.0 + WINDOW + 1)])
    assert values(feedback) == [None, None]
    assert feedback.late == 1


def test_what_becomes_of_a_score_follows_from_the_times_of_arrival_however_late_it_is_counted() -> None:
    end = 1000.0 + WINDOW
    for arrived, expected in ((end + GRACE_S, [1.0]), (end + GRACE_S + 1, [None])):
        feedback = pending({"request": 1})
        feedback.add([item(1, at=end)], [arrived])
        assert values(feedback, end + 10 * WINDOW) == expected
    for arrived, unmatched in ((1500.0 + UNKNOWN_S, 0), (1500.0 + UNKNOWN_S + 1, 1)):
        rows = replace(Recorder().rows({"request": 1, "at": 1000.0, "caller": ALICE}), arrived=np.array([arrived]))
        feedback = PendingFeedback(METRICS)
        feedback.add_rows(rows, np.zeros(1, np.int32), np.zeros(1, np.int8))
        feedback.add([item(1)], [1500.0])
        assert values(feedback, end + 10 * WINDOW) == [None if unmatched else 1.0]
        assert feedback.unmatched == unmatched
    for behind, expected in ((0.0, [1.0]), (1.0, [None])):  # both came long after the window, from a router that waited
        rows = replace(Recorder().rows({"request": 1, "at": 1000.0, "caller": ALICE}), arrived=np.array([end + 100.0]))
        feedback = PendingFeedback(METRICS)
        feedback.add_rows(rows, np.zeros(1, np.int32), np.zeros(1, np.int8))
        feedback.add([item(1, at=end)], [end + 100.0 + behind])
        assert values(feedback, end + 10 * WINDOW) == expected


def test_a_score_may_come_before_its_request_has_ended() -> None:
    feedback = pending({"request": 2})
    feedback.add([item(1)])
    feedback.mature(1500.0)
    add(feedback, {"request": 1})
    assert values(feedback) == [None, 1.0]


def test_a_score_of_an_unknown_answer_waits_a_minute() -> None:
    feedback = pending({"request": 2})
    feedback.add([item(1)])
    feedback.mature(1500.0)
    feedback.mature(1500.0 + UNKNOWN_S + 1)
    assert feedback.unmatched == 1
    add(feedback, {"request": 1})
    assert values(feedback) == [None, None]


SCORED = [(1, ALICE), (11, ALICE), (1, BOB), (1, MANAGER), (2, ALICE)]


def test_scores_match_answers_of_their_caller_and_for_managers_all() -> None:
    feedback = pending({"request": 1, "answer": 11})
    items = [item(request, caller=caller) for request, caller in SCORED]
    assert feedback.matches(items) == ["waiting", "waiting", "unknown", "waiting", "unknown"]
    assert feedback.matches([item(1, metric="other")]) == ["unknown"]
    assert PendingFeedback(METRICS).matches([item(1)]) == ["unknown"]


def test_a_score_after_the_window_is_late_even_when_the_exposure_is_forgotten() -> None:
    feedback = pending({"request": 1, "answer": 11})
    after = 1000.0 + 2 * WINDOW
    assert feedback.matches([item(1, at=after)]) == ["late"]
    feedback.mature(after)
    assert len(feedback) == 0
    items = [item(request, at=after, caller=caller) for request, caller in SCORED]
    assert feedback.matches(items) == ["late", "late", "unknown", "late", "unknown"]
    feedback.add([item(1, at=after), item(11, at=after, caller=BOB)])
    feedback.mature(after + 1)
    feedback.mature(after + 2 + UNKNOWN_S)
    assert (feedback.late, feedback.unmatched) == (1, 1)


def test_scores_of_other_metrics_are_not_kept() -> None:
    feedback = pending({"request": 1})
    feedback.add([item(1, metric="other")])
    assert values(feedback) == [None]
    assert feedback.unmatched == 0


def test_above_the_bound_the_oldest_count_at_once_without_a_score() -> None:
    feedback = pending(*({"request": number, "at": 1000.0 + number} for number in range(1, 31)), max_pending=20)
    assert values(feedback, 1031.0) == [None] * 10
    assert len(feedback) <= 30
    feedback.add([item(25, at=1100.0)])
    assert values(feedback, RIPE + 100).count(1.0) == 1


def test_counted_requests_are_forgotten() -> None:
    feedback = pending(*({"request": number} for number in range(1, 100)))
    feedback.mature(RIPE)
    assert len(feedback) == 0
    add(feedback, {"request": 500, "at": RIPE})
    feedback.add([item(500, at=RIPE + 1)])
    assert values(feedback, RIPE + WINDOW + GRACE_S) == [1.0]
