"""The state of acting on an experiment and the next step, in words."""

from typing import get_args

from app.experiments.acting import shares
from app.experiments.acting.facts import Facts
from app.experiments.acting.next_step import NextStep, next_step
from app.experiments.acting.state import State
from app.experiments.questions import Action
from app.experiments.rendering import words
from app.experiments.summary import Acting, Cause


def acting_of(state: State, facts: Facts, now: float) -> Acting:
    """The present state for summaries. `now`: Unix seconds."""
    experiment = facts.experiment
    arms = shares.of_arms(facts.traffic, experiment)
    step = next_step(state, facts, now)
    effective = shares.without(arms, experiment, [stop.deployment for stop in state.stops if stop.deployment in arms])
    cause, text = _held(facts) if state.phase == "running" else (state.cause, state.text)
    return Acting(
        state=state.phase,
        revision=state.revision,
        cause=cause,
        text=text,
        by=state.by,
        step=shares.position(experiment.ramp, arms, experiment) if experiment.ramp is not None else None,
        share=shares.treated(effective, experiment),
        next_share=step.share if step is not None and state.phase != "stopped" else None,
        waits_for=_waits(state, facts, step),
        until=state.until,
        stopped=[stop.deployment for stop in state.stops],
    )


def next_sentence(state: State, facts: Facts, now: float) -> str:
    """The next event, or what to do: one or two sentences."""
    if state.stops:
        return f"Next: {_stopping(state, facts)}"
    if state.phase == "stopped":
        return f"Next: nothing, the experiment is stopped. {_sentence(state.text)}"
    if state.phase == "paused":
        return f"Next: nothing until {_end_of_pause(state, facts, now)}. {_sentence(state.text)}"
    if state.intent is not None:
        return f"Next: {_shares(state.intent.after, facts)}, as soon as the control plane takes it.{_trouble(facts)}"
    step = next_step(state, facts, now)
    if step is None:
        if facts.experiment.ramp is None:
            return _without_ramp(facts)
        return f"{facts.report.next} The ramp is at its end."
    if not step.waits_for:
        return f"Next: {step.share} %."
    since = f"{shares.treated(shares.of_arms(facts.traffic, facts.experiment), facts.experiment)} %" + (
        f" since {words.moment(state.since, now)}; " if state.since else "; "
    )
    return f"Next: {since}{step.share} % waits for {'; '.join(step.waits_for)}."


def _without_ramp(facts: Facts) -> str:
    if shares.treated(shares.of_arms(facts.traffic, facts.experiment), facts.experiment) > 0:
        return facts.report.next
    names = " and ".join(facts.experiment.treatments)
    return f"Next: traffic for {names}: the share is 0 %, and there is no ramp that would raise it."


def _waits(state: State, facts: Facts, step: NextStep | None) -> list[str]:
    if state.intent is not None:
        return [f"the control plane: {facts.trouble}" if facts.trouble else "the control plane"]
    return list(step.waits_for) if state.phase == "running" and step is not None else []


def _held(facts: Facts) -> tuple[Cause, str]:
    return facts.silenced[0] if facts.silenced else ("", "")


def _stopping(state: State, facts: Facts) -> str:
    names = " and ".join(stop.deployment for stop in state.stops)
    if not facts.can_move:
        return (
            f"give {names} 0 % in the router's configuration file. Until then the routers give its traffic to "
            f"{facts.experiment.control}. {_sentence(state.text)}"
        )
    return (
        f"a plan without {names}, whose traffic the routers give to {facts.experiment.control} until then. "
        f"{_sentence(state.text)}{_trouble(facts)}"
    )


def _end_of_pause(state: State, facts: Facts, now: float) -> str:
    if state.cause == "file":
        return "its configuration says `state: running`"
    until = f"{words.moment(state.until, now)}, or until " if state.until is not None else ""
    return f"{until}a manager resumes"


def _shares(arms: dict[str, int], facts: Facts) -> str:
    return ", ".join(f"{arms[name]} % for {name}" for name in facts.experiment.treatments)


def _trouble(facts: Facts) -> str:
    return f" It did not yet: {_sentence(facts.trouble)}" if facts.trouble else ""


def _sentence(text: str) -> str:
    if text.partition(" by ")[0] in get_args(Action):  # what a person decided; other texts may begin with a name
        text = text[0].upper() + text[1:]
    return text if not text or text.endswith((".", "!")) else f"{text}."
