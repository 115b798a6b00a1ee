"""The next step of a ramp, and the conditions for which it waits. Steps wait for evidence, not for the clock alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.config.experiments import Ramp
from app.experiments.acting import shares
from app.experiments.acting.facts import Facts
from app.experiments.acting.state import State
from app.experiments.rendering import words

ALL = 100


@dataclass(frozen=True, slots=True)
class NextStep:
    """`share`: percent of the traffic that treatments get, as `weights`. `waits_for`: a sentence each."""

    share: int
    weights: dict[str, int]
    waits_for: tuple[str, ...]
    decision: str = ""
    """The decision among these that the step needs."""


def next_step(state: State, facts: Facts, now: float) -> NextStep | None:
    """None: there is no ramp, or it is at its end."""
    experiment, ramp = facts.experiment, facts.experiment.ramp
    if ramp is None:
        return None
    arms = shares.of_arms(facts.traffic, experiment)
    at = shares.position(ramp, arms, experiment)
    index = 0 if at is None else at + 1
    if index >= len(ramp.steps):
        return None
    step = ramp.steps[index]
    share = shares.share_at(step, arms, experiment)
    among = _shipped(facts) or experiment.treatments if step == ALL else experiment.treatments
    weights = shares.divided(share, arms, experiment, among)
    waits = [*_obstacles(facts)]
    if at is not None:
        waits += [*_time_and_units(state, facts, ramp, arms, now), *_evidence(state, facts, ramp)]
    decision = _last(facts) if step == ALL else ""
    return NextStep(share, weights, (*waits, *([decision] if decision else [])), decision)


def _obstacles(facts: Facts) -> Iterator[str]:
    """Reasons that hold up every step, even the first one."""
    if not facts.can_move:
        yield "there is no control plane: change the traffic in the router's configuration file"
    if facts.trouble:
        yield f"the control plane did not make the last change: {facts.trouble}"
    if facts.is_temporary:
        yield "the present plan is temporary: the ramp continues when it has ended"
    elif not facts.settled:
        yield "not every router has the present plan yet"
    for _, text in facts.silenced:
        yield text
    yield from facts.unhealthy


def _time_and_units(state: State, facts: Facts, ramp: Ramp, arms: dict[str, int], now: float) -> Iterator[str]:
    if now < state.since + ramp.min_step_s:
        yield f"the step to last until {words.moment(state.since + ramp.min_step_s, now)}"
    for name in facts.experiment.treatments:
        units = facts.report.step_units.get(name, 0)
        if arms[name] and units < ramp.min_units:  # without traffic there are none to wait for
            more = ramp.min_units - units
            yield f"{words.count(more)} more unit{'' if more == 1 else 's'} on {name} at this step"


def _evidence(state: State, facts: Facts, ramp: Ramp) -> Iterator[str]:
    alarms = [it for it in facts.alarms if state.armed_since is None or it.at > state.armed_since]
    if ramp.advance == "quiet":
        yield from (f"guardrails to be quiet: {it.text}; a manager may `advance`" for it in alarms)
    elif ramp.advance == "manual":
        yield "a manager's `advance`"
    else:
        yield from _verdicts(facts, ramp.advance)


def _verdicts(facts: Facts, wanted: str) -> Iterator[str]:
    for name in facts.experiment.treatments:
        primary = [it for it in facts.report.primary if it.treatment == name]
        if wanted == "better" and not any(it.measured == "better" for it in primary):
            yield f"{name} to be better in a primary metric"
        if wanted == "non_inferior" and (open_ := [it.metric for it in primary if not it.non_inferior]):
            yield f"{name} to be non-inferior in {', '.join(open_)}"


def _last(facts: Facts) -> str:
    """The condition of the last step. All traffic for a treatment is a promotion: it takes a decision, which names one
    of several treatments.
    """
    good = _shipped(facts)
    if not good:
        return "the decision to ship"
    return f"a manager's `promote`, of {' or '.join(good)}" if len(good) > 1 else ""


def _shipped(facts: Facts) -> list[str]:
    return [name for name in facts.experiment.treatments if facts.report.decisions.get(name) == "ship"]
