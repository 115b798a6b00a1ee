from typing import Any

import numpy as np
import pytest

from app.experiments.analysis.evidence.arms import Arms
from app.experiments.analysis.watch.guardrails import Guardrails, GuardrailWatch
from app.experiments.statistics.events import alarm_at
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config


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
        failed: Fields = {"error": 1, "status": 502} if hit else {}
        made = []
        for _ in range(count):
            self._unit += 1
            made.append({"unit": self._unit, "assigned": int(green), **failed, **fields})
        rows = self.recorder.rows(*made)
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


def test_every_treatment_is_compared_with_control_alone() -> None:
    rig = Rig(ERROR, treatments=["one", "other"], mode="aa")
    assert [watch.treatment for watch in rig.guardrails] == [1, 2]
    assert rig.watch.status().action == "alert"
    assert rig.watch.threshold == pytest.approx(alarm_at(0.01))


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
        if day == 0:
            first = rig.watch.status()
    assert not rig.watch.is_new_alarm()
    assert (rig.watch.status().log_e_value, rig.watch.status().detector) == (first.log_e_value, first.detector)


def test_an_absolute_limit_watches_the_treatment_alone() -> None:
    rig = Rig(ABSOLUTE)
    rig.rows(300, False, hit=False)
    rig.rows(150, True, hit=False)
    assert not rig.watch.is_new_alarm()
    rig.rows(60, True, hit=True)
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


def test_control_is_judged_by_the_first_exposure_of_each_unit_in_each_hour() -> None:
    rig = Rig(ABSOLUTE)
    rig.rows(100, False, hit=False)
    for _ in range(40):
        rig.rows(1, False, hit=True, unit=7)
    assert not rig.watch.unhealthy
    rig.rows(60, False, hit=True, at=3 * 3600.0)
    assert rig.watch.unhealthy


def test_the_order_of_exposures_changes_no_evidence() -> None:
    rng = np.random.default_rng(4)
    fields = [
        {"unit": int(unit), "assigned": int(arm), "error": int(hit), "at": float(at)}
        for unit, arm, hit, at in zip(
            rng.integers(0, 60, 400),
            rng.integers(0, 2, 400),
            rng.random(400) < 0.3,
            rng.random(400) * 6000,
            strict=True,
        )
    ]
    found = []
    for order in (np.arange(400), rng.permutation(400)):
        rig = Rig(ERROR, ABSOLUTE)
        for part in np.array_split(order, 7):
            rows = rig.recorder.rows(*(fields[number] for number in part))
            rig.guardrails.add_rows(rows, rig.arms.place(rows), rows.plan, rig.arms)
        found.append([watch.status().log_e_value for watch in rig.guardrails])
    assert found[0] == pytest.approx(found[1], abs=1e-9)
