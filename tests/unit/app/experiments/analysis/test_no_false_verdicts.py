"""Worlds in which something other than the treatment explains what was measured: no verdict is said."""

from typing import Any

import numpy as np

from app.experiments.contract.report import Report
from app.exposures.wire import Failure, Flag
from tests.support.experiments.world import BLUE, DAY_S, GREEN, START, World, analysis_of

SHORT_ANSWERS = Flag.OWN_EMPTY | Flag.OWN_LENGTH | Flag.OWN_FORM
"""The flags of `max_tokens: 8`."""


def impatient(**lost: Any) -> Report:
    """Green is 15 % faster on nine of ten requests and takes 8 s on the tenth. Clients leave after 3 s. `lost`: the
    columns of what they leave.
    """
    rng, world, count = np.random.default_rng(1), World(), 12_000
    user = rng.integers(0, 1500, count)
    green = (rng.random(1500) < 0.5)[user]
    base = np.exp(-1.2 + rng.normal(0, 0.3, 1500)[user] + rng.normal(0, 0.3, count))
    ttft = np.where(rng.random(count) < np.where(green, 0.1, 0.005), 8.0, np.where(green, 0.85, 1.0) * base)
    gone = ttft > 3.0
    columns: dict[str, Any] = {
        "ttft_s": np.where(gone, np.nan, ttft),
        "duration_s": np.where(gone, 3.0, ttft + 0.2),
        "completion_tokens": np.where(gone, np.nan, 8.0),
        "itl_mean_s": np.where(gone, np.nan, 0.02),
        "served": np.where(gone & (lost["status"] != 200), -1, np.where(green, world.codes[GREEN], world.codes[BLUE])),
    }
    columns |= {name: np.where(gone, value, 200 if name == "status" else 0) for name, value in lost.items()}
    at = np.sort(START + rng.random(count) * 1.2 * DAY_S)
    analysis = analysis_of(world)
    world.answered(at, user, green, **columns).tell(analysis, parts=4)
    return analysis.report(START + 1.3 * DAY_S)


def test_a_client_that_leaves_explains_nothing_by_the_tokens_that_it_asked_for() -> None:
    report = impatient(status=499, flags=int(Flag.CLIENT_GONE | SHORT_ANSWERS))
    assert (report.decision, report.primary[0].verdict) == ("invalid", "invalid")
    assert "completeness" in {alarm.kind for alarm in report.alarms}


def test_an_empty_answer_that_a_request_may_have_decided_counts_as_a_value_that_is_missing() -> None:
    report = impatient(status=200, flags=int(Flag.EMPTY | SHORT_ANSWERS))
    assert (report.decision, report.primary[0].withheld) == ("keep_going", "better")
    assert "requests without a value could explain ttft" in report.headline


def test_failures_of_clients_that_hardly_wait_are_missing_values_and_failures() -> None:
    report = impatient(status=504, error=int(Failure.TIMEOUT), flags=int(Flag.OWN_FAILURE))
    assert (report.decision, report.primary[0].withheld) == ("do_not_ship", "better")
    assert [rail.event for rail in report.guardrails if rail.alarm] == ["error"]
