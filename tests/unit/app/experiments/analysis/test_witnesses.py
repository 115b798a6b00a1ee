"""No one caller's requests make a guardrail act: what it may have provoked counts only together with others'."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.experiments.analysis.arms import Arms
from app.experiments.analysis.guardrails import Guardrails, GuardrailWatch
from app.experiments.analysis.witnesses import PARTS, UNBOUNDED, Callers
from app.exposures.wire import Failure, Flag
from tests.support.experiments.exposure_columns import Fields, Recorder
from tests.support.experiments.world import config

EMPTY = {"event": "empty", "action": "rollback"}
RAILS: dict[str, dict[str, Any]] = {
    "empty": EMPTY,
    "slow": {"event": "slow", "ttft_above_s": 2.0, "action": "rollback"},
    "error": {"event": "error", "action": "rollback"},
    "at most 10 % empty": EMPTY | {"max_rate": 0.1},
}
HIT: dict[str, Fields] = {
    "empty": {"flags": Flag.EMPTY},
    "slow": {"ttft_s": 9.0, "flags": Flag.LONG},
    "error": {"error": Failure.TIMEOUT, "status": 504, "flags": Flag.LONG},
}
SENT = st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans(), st.booleans())
"""A request: its caller, the number of its unit, whether that is green's, and whether it has the event."""


class Rig:
    """One guardrail of an experiment at an even split."""

    def __init__(self, rail: dict[str, Any]) -> None:
        declared = config(guardrails=[rail], alpha_guardrails=0.5).experiments["green-float32"]
        self.recorder = Recorder()
        self.arms = Arms("green-float32", declared, self.recorder.tables, 0.0)
        self.guardrails = Guardrails(declared)
        self.has_alarmed = False

    @property
    def watch(self) -> GuardrailWatch:
        (watch,) = self.guardrails
        return watch

    def add(self, *requests: Fields) -> None:
        """Adds requests, one after the other."""
        for request in requests:
            rows = self.recorder.rows(request)
            self.guardrails.add_rows(rows, self.arms.place(rows), rows.plan, self.arms)
            self.has_alarmed |= self.watch.is_new_alarm()


def request(caller: int, unit: int, green: bool, hit: bool, event: str = "empty", **fields: Any) -> Fields:
    had: Fields = HIT[event] if hit else {"flags": 0}
    row = {"unit": 1000 * caller + 2 * unit + green, "caller": caller, "assigned": int(green), **had, **fields}
    return row | {"flags": int(row["flags"]) | Flag.SHARED}


def many(caller: int, count: int, hits: tuple[float, float], event: str = "empty", **fields: Any) -> list[Fields]:
    """New units of a caller, on both arms in turn, of which these shares have the event."""
    return [
        request(caller, number, bool(number % 2), (number // 2 + 1) * hits[number % 2] % 1 < hits[number % 2], event)
        | fields
        for number in range(count)
    ]


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(RAILS)), sent=st.lists(SENT, min_size=20, max_size=80), whose=st.integers(0, 3))
def test_an_alarm_acts_only_if_it_would_without_any_one_of_the_callers(
    name: str, sent: list[tuple[int, int, bool, bool]], whose: int
) -> None:
    event = RAILS[name]["event"]
    requests = [request(*each, event=event) for each in sent]
    every, others = Rig(RAILS[name]), Rig(RAILS[name])
    every.add(*requests)
    others.add(*(each for each in requests if each["caller"] != whose))
    assert others.has_alarmed or not every.has_alarmed


@pytest.mark.parametrize("name", RAILS)
def test_one_caller_of_several_alerts_and_moves_nothing(name: str) -> None:
    event = RAILS[name]["event"]
    rig = Rig(RAILS[name])
    rig.add(*many(1, 40, (0.0, 0.0), event), *many(2, 60, (0.0, 1.0), event))
    status = rig.watch.status()
    assert (rig.has_alarmed, status.one_caller, status.alarm) == (False, True, False)
    rig.add(*many(3, 40, (0.0, 1.0), event))
    assert (rig.has_alarmed, rig.watch.one_caller) == (True, False)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("error", {"error": Failure.UNREACHABLE, "flags": Flag.SHARED}),
        ("error", {"error": Failure.TIMEOUT, "flags": Flag.SHARED}),
        ("slow", {"ttft_s": 9.0, "flags": Flag.SHARED}),
    ],
    ids=["an engine that is gone", "a small request that takes an hour", "a small request that waits"],
)
def test_what_no_request_brings_about_acts_from_one_caller_alone(name: str, fields: Fields) -> None:
    rig = Rig(RAILS[name])
    rig.add(*many(2, 30, (0.0, 0.0), name))
    rig.add(*(request(2, 500 + number, True, False, name) | fields for number in range(20)))
    assert rig.has_alarmed


@pytest.mark.parametrize("name", RAILS)
def test_the_only_caller_is_not_bounded(name: str) -> None:
    rig = Rig(RAILS[name])
    rig.add(*(each | {"flags": each["flags"] & ~Flag.SHARED} for each in many(2, 60, (0.0, 1.0), RAILS[name]["event"])))
    assert rig.has_alarmed


def test_a_guardrail_may_trust_a_caller_that_has_nearly_all_traffic() -> None:
    rig = Rig(EMPTY | {"one_caller": "act"})
    rig.add(*many(1, 4, (0.0, 0.0)), *many(2, 60, (0.0, 1.0)))
    assert rig.has_alarmed


@pytest.mark.parametrize(("callers", "most"), [(2, 2.2), (8, 1.3), (40, 1.4)])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_real_regression_is_found_with_few_more_requests(callers: int, most: float, share: float) -> None:
    """Against those that an installation with a single caller takes; three more for the least evidence."""
    needed = []
    for shared in (False, True):
        rig, rng, count = Rig(EMPTY), np.random.default_rng(5), 0
        while not rig.has_alarmed:
            caller, green, hit = count % callers, bool(rng.integers(2)), rng.random() < share
            sent = request(caller, count, green, green and hit)
            rig.add(sent if shared else sent | {"flags": sent["flags"] & ~Flag.SHARED})
            count += 1
        needed.append(count)
    assert needed[1] <= most * needed[0] + 6


def test_requests_that_decide_about_an_event_are_no_trials_of_it() -> None:
    rig = Rig(EMPTY)
    alone = [each | {"flags": Flag.EMPTY | Flag.OWN_EMPTY} for each in many(2, 60, (0.0, 1.0)) if each["assigned"]]
    rig.add(*many(2, 20, (0.0, 0.0)), *alone)
    assert not rig.has_alarmed
    assert rig.watch.status().requests["green"] == 0
    assert rig.watch.status().of_requests["green"] == 10


def hurried(caller: int, count: int, hits: tuple[float, float]) -> list[Fields]:
    """Requests whose client waits for less than a second."""
    return [each | {"flags": int(each["flags"]) | Flag.OWN_FAILURE} for each in many(caller, count, hits, "error")]


def test_failures_of_clients_that_hardly_wait_are_compared_with_each_other() -> None:
    rig = Rig(RAILS["error"])
    rig.add(*hurried(1, 90, (0.2, 0.2)), *hurried(2, 90, (0.2, 0.2)))
    assert (rig.has_alarmed, rig.watch.one_caller) == (False, False)
    rig.add(*hurried(3, 90, (0.0, 0.8)), *hurried(4, 90, (0.0, 0.8)))
    assert rig.has_alarmed
    assert rig.watch.status().evidence >= 1


def test_one_caller_that_hardly_waits_moves_nothing() -> None:
    rig = Rig(RAILS["error"])
    rig.add(*hurried(1, 40, (0.0, 0.0)), *hurried(2, 90, (0.0, 1.0)))
    assert (rig.has_alarmed, rig.watch.one_caller) == (False, True)


def test_clients_that_hardly_wait_hide_no_failures_of_others() -> None:
    """Half of theirs fail on both arms: with them, green's rate would be less than 1.5 times blue's."""
    rig = Rig(RAILS["error"])
    rig.add(*hurried(1, 200, (0.5, 0.5)), *hurried(2, 200, (0.5, 0.5)))
    rig.add(*many(3, 80, (0.0, 0.3), "error"), *many(4, 80, (0.0, 0.3), "error"))
    assert rig.has_alarmed


def test_callers_are_dealt_into_parts_in_the_order_in_which_they_come() -> None:
    recorder, callers = Recorder(), Callers()
    flags = [Flag.SHARED] * 10 + [0]
    rows = recorder.rows(*({"caller": 50 - number, "flags": flag} for number, flag in enumerate(flags)))
    assert callers.part(rows).tolist() == [*range(PARTS), 0, 1, UNBOUNDED]
    assert callers.part(rows.take(slice(8, 9))).tolist() == [0]
