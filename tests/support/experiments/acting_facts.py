"""Facts for the state machine of actions: an experiment whose evidence a test sets only where it matters."""

from typing import Any

import msgspec

from app.config.experiments import Experiment
from app.experiments.automation.state import RolloutInput
from app.experiments.contract.report import (
    Alarm,
    Comparison,
    Decision,
    Effect,
    GuardrailStatus,
    Report,
    SampleRatio,
    Treated,
)
from app.experiments.contract.report import Verdict as Found

START = 1000.0
RAMP: dict[str, Any] = {"steps": [1, 5, 50, 100], "min_step_s": 60, "min_units": 10, "cooldown_s": 3600}


def experiment(**fields: Any) -> Experiment:
    """Green against blue, with a ramp."""
    base = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
        "ramp": RAMP,
    }
    return Experiment.model_validate(base | fields)


def compared(verdict: Found, treatment: str = "green", *, non_inferior: bool = False) -> Comparison:
    """A primary metric."""
    return Comparison(
        metric="ttft",
        statistic="geometric_mean",
        role="primary",
        treatment=treatment,
        better="lower",
        scale="relative",
        minimal_effect=0.05,
        alpha=0.05,
        effect=Effect(),
        verdict=verdict,
        non_inferior=non_inferior,
        since=START,
    )


def alarmed(action: str, treatment: str = "green", at: float = START + 1, event: str = "error") -> GuardrailStatus:
    """A guardrail that has an alarm."""
    return GuardrailStatus(
        event=event,
        treatment=treatment,
        limit="at most 1.5 times control's rate",
        action=action,
        log_e_value=9.0,
        threshold=6.0,
        detector=0.0,
        alarm=True,
        alarmed_at=at,
        events={"blue": 0, treatment: 9},
    )


def report_of(
    section: Experiment,
    *,
    guardrails: list[GuardrailStatus] | None = None,
    primary: list[Comparison] | None = None,
    alarms: list[Alarm] | None = None,
    decision: Decision = "keep_going",
    decisions: dict[str, Decision] | None = None,
    units: int = 100,
    treated: Treated | None = None,
) -> Report:
    """`units`: on each treatment since the step began."""
    return Report(
        experiment="trial",
        endpoint="chat",
        mode=section.mode,
        state=section.state,
        control=section.control,
        treatments=list(section.treatments),
        at=START,
        started_at=START,
        decision=decision,
        decisions=decisions if decisions is not None else dict.fromkeys(section.treatments, decision),
        headline="",
        details=[],
        next="Next: keep going.",
        weights={},
        units={},
        requests={},
        treated=treated or Treated(),
        step_units=dict.fromkeys(section.treatments, units),
        served={},
        forced={},
        carried={},
        rows_lost={},
        in_flight={},
        primary=primary or [],
        secondary=[],
        guardrails=guardrails or [],
        sample_ratio=SampleRatio(log_e_value=0.0, alarm=False, plans=[]),
        alarms=alarms or [],
        warnings=[],
        strata=1,
    )


def facts(section: Experiment | None = None, green: int = 5, **fields: Any) -> RolloutInput:
    """`fields` of `RolloutInput`, or of `report_of`."""
    section = section or experiment()
    of_facts = {name: fields.pop(name) for name in list(fields) if name in RolloutInput.__dataclass_fields__}
    base: dict[str, Any] = {
        "name": "trial",
        "experiment": section,
        "traffic": {"blue": 100 - green, "green": green},
        "planned_by": None,
        "is_temporary": False,
        "has_control_plane": True,
        "rollout_complete": True,
        "config_is_current": True,
        "report": report_of(section, **fields),
    }
    return RolloutInput(**(base | of_facts))


def silencing(kind: str) -> Alarm:
    """An alarm that invalidates all evidence."""
    return msgspec.convert({"kind": kind, "at": START, "text": f"Something about {kind}."}, Alarm)
