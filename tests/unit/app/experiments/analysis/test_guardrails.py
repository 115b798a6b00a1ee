import math
from typing import Any

import numpy as np
import pytest

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.guardrails import Guardrails, GuardrailWatch
from app.experiments.analysis.unit_events import UnitEvents
from app.experiments.statistics.events import EventEvidence, alarm_at, chance
from app.exposures.wire import Failure, Flag
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config


def request(unit: int, green: bool, *, hit: bool, **fields: Any) -> Fields:
    """One row."""
    return {"unit": unit, "assigned": int(green), **({"error": 1, "status": 502} if hit else {}), **fields}


class Rig:
    """Guardrails over rows that a test defines."""

    def __init__(self, *rails: dict[str, Any], **experiment: Any) -> None:
        declared = config(guardrails=list(rails), **experiment).experiments["green-float32"]
        self.recorder = Recorder()
        self.arms = Arms("green-float32", declared, self.recorder.tables, 0.0)
        self.guardrails = Guardrails(declared)
        self._unit = 0

    def rows(self, count: int, green: bool, *, hit: bool, **fields: Any) -> None:
        """Adds one request for each of `count` new units."""
        made = []
        for _ in range(count):
            self._unit += 1
            made.append(request(self._unit, green, hit=hit) | fields)
        self.add(*made)

    def add(self, *requests: Fields) -> None:
        """Adds requests, in one batch."""
        rows = self.recorder.rows(*requests)
        self.guardrails.add_rows(rows, self.arms.place(rows), rows.plan, self.arms)

    @property
    def watch(self) -> GuardrailWatch:
        """The first guardrail."""
        return next(iter(self.guardrails))


ERROR = {"event": "error", "action": "rollback"}
ABSOLUTE = {"event": "error", "max_rate": 0.05}


def test_a_treatment_that_always_fails_is_found_after_a_few_requests() -> None:
    rig = Rig(ERROR)
    count = 0
    while not rig.watch.is_new_alarm() and count < 30:
        rig.rows(1, True, hit=True)
        count += 1
    assert 3 <= count < 15
    assert rig.watch.status().events == {"blue": 0, "green": count}


def test_no_alarm_before_three_units_however_strong_the_evidence() -> None:
    rig = Rig(ERROR, alpha_guardrails=0.9)
    rig.rows(2, True, hit=True)
    assert not rig.watch.is_new_alarm()
    for _ in range(50):
        rig.rows(1, True, hit=True, unit=1)
    assert not rig.watch.is_new_alarm()
    rig.rows(5, True, hit=True)
    assert rig.watch.is_new_alarm()


def test_an_outage_of_both_arms_is_no_alarm() -> None:
    rig = Rig(ERROR)
    for _ in range(100):
        rig.rows(1, True, hit=True)
        rig.rows(1, False, hit=True)
    assert not rig.watch.is_new_alarm()
    assert rig.watch.status().detectable is not None


def test_an_alarm_is_new_once() -> None:
    rig = Rig(ERROR)
    rig.rows(40, True, hit=True)
    assert rig.watch.is_new_alarm()
    rig.watch.alarmed_at = 5.0
    assert not rig.watch.is_new_alarm()
    assert rig.watch.status().alarm


@pytest.mark.parametrize("limit", [ERROR, ABSOLUTE], ids=["relative", "absolute"])
def test_the_evidence_of_an_alarm_stays_when_the_treatment_has_recovered(limit: dict[str, Any]) -> None:
    rig = Rig(limit)
    rig.rows(12, True, hit=True)
    rig.rows(1, False, hit=False)
    assert rig.watch.is_new_alarm()
    rig.watch.alarmed_at = 1000.0
    for minute in range(300):
        rig.rows(1, False, hit=minute % 3 == 0 and limit is ERROR, at=1000.0 + 60 * minute)
        rig.rows(2, True, hit=False, at=1000.0 + 60 * minute)
    status = rig.watch.status()
    assert max(status.log_e_value, status.detector) < status.threshold
    assert status.evidence >= 1


def test_every_treatment_is_compared_with_control_alone() -> None:
    rig = Rig(ERROR, treatments=["one", "other"], mode="aa")
    assert [watch.treatment for watch in rig.guardrails] == [1, 2]
    assert rig.watch.status().action == "alert"
    assert rig.watch.threshold == pytest.approx(alarm_at(0.95 * 0.01))


def test_late_records_are_events_and_the_row_that_follows_counts_no_more() -> None:
    rig = Rig({"event": "slow", "ttft_above_s": 2.0})
    late = rig.recorder.late(*({"unit": unit, "assigned": 1, "above_s": 2.0} for unit in range(1, 20)))
    rig.guardrails.add_late(late, rig.arms.place(late), late.plan, rig.arms)
    assert rig.watch.is_new_alarm()
    before = rig.watch.status().log_e_value
    rig.rows(19, True, hit=False, ttft_s=5.0)
    assert rig.watch.status().log_e_value == pytest.approx(before)


def test_the_detector_forgets_a_long_healthy_past() -> None:
    rig = Rig(ERROR)
    for _ in range(300):
        rig.rows(2, True, hit=True)
        rig.rows(3, False, hit=True)
    quiet = rig.watch.status()
    assert not rig.watch.is_new_alarm()
    rig.rows(90, True, hit=True)
    assert rig.watch.is_new_alarm()
    status = rig.watch.status()
    assert status.detector > status.threshold > quiet.detector
    assert status.log_e_value < status.threshold


@pytest.mark.parametrize("limit", [ERROR, ABSOLUTE], ids=["relative", "absolute"])
def test_units_that_fail_every_day_count_once(limit: dict[str, Any]) -> None:
    rig = Rig(limit)
    rig.rows(200, False, hit=False)
    rig.rows(200, True, hit=False)
    for day in range(100):
        for unit in (1, 2, 3):
            rig.rows(1, True, hit=True, unit=unit + 1000, at=1000.0 + 86400 * day)
        if day == 1:  # an absolute limit has waited for control by then
            first = rig.watch.status()
    assert not rig.watch.is_new_alarm()
    assert (rig.watch.status().log_e_value, rig.watch.status().detector) == (first.log_e_value, first.detector)


def test_an_absolute_limit_watches_the_treatment_alone() -> None:
    rig = Rig(ABSOLUTE)
    rig.rows(300, False, hit=False)
    rig.rows(150, True, hit=False)
    assert not rig.watch.is_new_alarm()
    rig.rows(60, True, hit=True)
    rig.rows(1, False, hit=False)
    assert rig.watch.is_new_alarm()
    assert rig.watch.status().limit == "at most 5 % of requests"


def test_an_absolute_limit_that_control_exceeds_is_an_unhealthy_endpoint_and_no_alarm() -> None:
    rig = Rig(ABSOLUTE)
    rig.rows(100, False, hit=False)
    rig.rows(60, True, hit=True)
    rig.rows(60, False, hit=True)
    assert rig.watch.unhealthy
    assert not rig.watch.is_new_alarm()
    assert rig.watch.status().unhealthy


def test_an_outage_of_both_arms_is_no_alarm_of_an_absolute_limit_hours_later_either() -> None:
    rig = Rig(ABSOLUTE)
    for hour in range(6):
        for green in (False, True):
            rig.rows(100, green, hit=False, at=3600.0 * hour + 1)
            if hour == 1:
                rig.rows(30, green, hit=True, at=3600.0 * hour + 2)
        assert not rig.watch.is_new_alarm()
    for minute in range(30):
        rig.rows(1, True, hit=True, at=3600.0 * 6 + 60 * minute)
        rig.rows(1, False, hit=False, at=3600.0 * 6 + 60 * minute)
    assert rig.watch.is_new_alarm()


def test_control_is_judged_by_the_first_exposure_of_each_unit_in_each_hour() -> None:
    rig = Rig(ABSOLUTE)
    rig.rows(100, False, hit=False)
    for _ in range(40):
        rig.rows(1, False, hit=True, unit=7)
    assert not rig.watch.unhealthy
    rig.rows(60, False, hit=True, at=3 * 3600.0)
    assert rig.watch.unhealthy


@pytest.mark.parametrize("limit", [ERROR, ABSOLUTE], ids=["relative", "absolute"])
def test_neither_batches_nor_the_order_within_them_change_the_evidence(limit: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    at = np.sort(rng.random(400) * 6000)
    fields: list[Fields] = [
        {"unit": int(unit), "assigned": int(arm), "error": int(hit), "at": float(moment)}
        for unit, arm, hit, moment in zip(
            rng.integers(0, 60, 400), rng.integers(0, 2, 400), rng.random(400) < 0.3, at, strict=True
        )
    ]
    verdicts = []
    for parts in (1, 7, 100):
        rig = Rig(limit)
        for part in np.array_split(np.arange(400), parts):
            rig.add(*(fields[number] for number in rng.permutation(part)))
        verdicts.append(rig.watch.status().log_e_value)
    assert verdicts[0] == pytest.approx(verdicts[1], abs=1e-9)
    assert verdicts[0] == pytest.approx(verdicts[2], abs=1e-9)


def test_five_tenants_whose_every_request_fails_are_an_alarm() -> None:
    """The other five of ten are healthy: by chance, the arms are drawn so in one of 1,024 experiments."""
    rig = Rig(ERROR)
    for second in range(3):
        assert not rig.watch.is_new_alarm()
        rig.add(*(request(unit, unit < 5, hit=unit < 5, at=1000.0 + second) for unit in range(10)))
    assert rig.watch.is_new_alarm()
    status = rig.watch.status()
    assert (status.always, status.events) == (5, {"blue": 0, "green": 5})
    assert (status.requests, status.of_requests) == ({"blue": 0, "green": 15}, {"blue": 15, "green": 15})


def test_five_tenants_that_fail_on_either_arm_are_no_alarm() -> None:
    rig = Rig(ERROR)
    for second in range(100):
        rig.add(*(request(unit, unit < 5, hit=unit % 2 == 0, at=1000.0 + second) for unit in range(10)))
    assert not rig.watch.is_new_alarm()


def test_users_who_send_more_requests_on_the_treatment_are_no_alarm() -> None:
    rng = np.random.default_rng(5)
    rig = Rig(ERROR | {"tolerance": 1.0})
    for unit in range(400):
        green = unit % 2 == 1
        rig.add(*(request(unit, green, hit=rng.random() < 0.05, at=1000.0 + unit) for _ in range(20 if green else 5)))
    events = rig.watch.status().events
    assert events["green"] > 2 * events["blue"]
    assert not rig.watch.is_new_alarm()


def test_an_absolute_limit_judges_later_turns() -> None:
    rig = Rig({"event": "error", "max_rate": 0.02})
    rig.add(*(request(unit, True, hit=False, at=1000.0 + unit) for unit in range(100)))
    rig.add(*(request(unit, True, hit=unit % 4 == 0, at=2000.0 + unit, turn=3) for unit in range(100)))
    assert rig.watch.is_new_alarm()
    assert rig.watch.status().log_e_value > rig.watch.threshold


def test_control_exceeds_a_limit_only_with_evidence() -> None:
    """One failure of twenty is more than 2 %, and no reason to call the endpoint unhealthy."""
    rig = Rig({"event": "error", "max_rate": 0.02})
    verdicts = []
    for failed, healthy, at in ((1, 19, 0.0), (19, 0, 0.0), (0, 60, 5 * 3600.0)):
        rig.rows(healthy, False, hit=False, at=1000.0 + at)
        rig.rows(failed, False, hit=True, at=1000.0 + at)
        verdicts.append(rig.watch.unhealthy)
    assert verdicts == [False, True, False]


HALF = np.array([[50, 50], [95, 5]])


def events(control: int, treated: int, weights: int = 0) -> UnitEvents:
    counted = UnitEvents(1)
    arm = np.array([0] * control + [1] * treated, np.int8)
    unit = np.arange(len(arm), dtype=np.uint64)
    counted.add(unit, np.zeros(len(arm)), np.full(len(arm), weights, np.int32), arm)
    return counted


def test_a_unit_counts_once() -> None:
    counted = UnitEvents(1)
    for at in (1.0, 2.0):
        counted.add(
            np.array([5, 6], np.uint64), np.full(2, at, np.float64), np.zeros(2, np.int32), np.array([1, 0], np.int8)
        )
    assert counted.units == (1, 1)


def test_events_of_other_treatments_do_not_count() -> None:
    counted = UnitEvents(1)
    assert not counted.add(np.array([5], np.uint64), np.zeros(1), np.zeros(1, np.int32), np.array([2], np.int8))


def test_the_evidence_is_that_of_the_events_one_by_one() -> None:
    counted = UnitEvents(1)
    arms, sets = np.array([1, 1, 0, 1, 1, 1, 1], np.int8), np.array([1, 1, 1, 0, 0, 1, 1], np.int32)
    counted.add(np.arange(7, dtype=np.uint64), np.arange(7, dtype=np.float64), sets, arms)
    expected = EventEvidence()
    expected.add(arms == 1, chance(HALF[sets, 1], HALF[sets, 0], 1.5))
    assert counted.more(HALF, 1.5).log_e_value == pytest.approx(expected.log_e_value, abs=1e-9)


def test_more_and_less_are_mirror_images() -> None:
    assert events(3, 9).more(HALF, 1.0).log_e_value == pytest.approx(events(9, 3).less(HALF, 1.0).log_e_value)
    assert events(3, 9).difference(HALF) == pytest.approx(events(9, 3).difference(HALF))


@pytest.mark.parametrize(("weights", "control", "treated"), [(0, 4, 40), (1, 4, 40), (0, 40, 4), (0, 20, 20)])
def test_the_interval_of_the_rates_ratio_holds_the_estimate_and_excludes_1_only_with_evidence(
    weights: int, control: int, treated: int
) -> None:
    counted = events(control, treated, weights)
    lift = counted.lift(HALF, 0.05)
    expected = treated / control * (1 if weights == 0 else 19)
    assert lift.estimate == pytest.approx(expected - 1, rel=1e-3)
    assert lift.lower is not None
    assert lift.upper is not None
    assert lift.lower < expected - 1 < lift.upper
    for bound, evidence in ((lift.lower, counted.more), (lift.upper, counted.less)):
        assert evidence(HALF, bound + 1).log_e_value == pytest.approx(math.log(2 / 0.05), abs=1e-3)


def test_without_events_everything_is_possible() -> None:
    lift = events(0, 0).lift(HALF, 0.05)
    assert (lift.estimate, lift.lower, lift.upper) == (None, -1.0, None)
    assert events(0, 12).lift(HALF, 0.05).upper is None
    assert events(12, 0).lift(HALF, 0.05).estimate == -1.0


@pytest.mark.parametrize(
    ("event", "own"), [("empty", Flag.OWN_EMPTY), ("truncated", Flag.OWN_LENGTH), ("invalid_output", Flag.OWN_FORM)]
)
@pytest.mark.parametrize("limit", [{}, {"max_rate": 0.05}])
def test_a_guardrail_says_if_nearly_all_requests_may_have_decided_about_its_event(
    event: str, own: Flag, limit: dict[str, float]
) -> None:
    rig = Rig({"event": event, **limit})
    rig.rows(14, False, hit=False, flags=int(own))
    rig.rows(15, True, hit=False, flags=int(own))
    assert rig.watch.status().blind == "", "29 requests show nothing"
    rig.rows(1, True, hit=False, flags=int(own))
    themselves = "may have decided about it themselves"
    assert rig.watch.status().blind == f"of 30 requests none counts: all {themselves}"
    rig.rows(1, True, hit=False)
    assert rig.watch.status().blind == f"of 31 requests only 1 counts: the others {themselves}"
    rig.rows(1, False, hit=False)
    assert rig.watch.status().blind == f"of 32 requests only 2 count: the others {themselves}"
    rig.rows(2, True, hit=False)
    assert rig.watch.status().blind == ""


def test_a_guardrail_that_compares_clients_in_a_hurry_with_each_other_sees_them() -> None:
    rig = Rig(ERROR, ABSOLUTE)
    rig.rows(50, True, hit=True, error=int(Failure.TIMEOUT), flags=int(Flag.OWN_FAILURE))
    relative, absolute = (watch.status() for watch in rig.guardrails)
    assert (relative.blind, relative.of_requests["green"]) == ("", 50)
    assert absolute.blind.startswith("of 50 requests none counts")


def test_whole_answers_do_not_blind_a_guardrail_on_gaps_between_tokens() -> None:
    rig = Rig({"event": "stalled"})
    rig.rows(50, True, hit=False, stream=False, flags=int(Flag.OWN_GAPS))
    assert rig.watch.status().blind == ""
    rig.rows(50, True, hit=False, flags=int(Flag.OWN_GAPS))
    assert rig.watch.status().blind.startswith("of 50 requests none counts")
