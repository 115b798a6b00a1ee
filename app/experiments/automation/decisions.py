"""People's decisions: the effect of each on an experiment, and the cases in which it is not applicable.

The state of acting on an experiment and the next step, in words.
"""

from collections.abc import Callable
from typing import get_args

import msgspec

from app.errors import Conflict
from app.experiments.automation.machine import (
    ALL,
    NextStep,
    Transition,
    live_alarms,
    next_step,
    resumed,
    rolled_back,
    to_step,
    transition_to,
)
from app.experiments.automation.state import (
    Intent,
    RolloutInput,
    State,
    ramp_position,
    share_at_step,
    shares_of_arms,
    treated_share,
    weights_at_share,
    without_treatments,
)
from app.experiments.contract.query import Action, ManualDecision
from app.experiments.contract.report import HARMS, AutomationStatus, Cause, Foreseen
from app.experiments.rendering import words

_ALONE = "there is no control plane: change the traffic in the router's configuration file, and start it again"


def decided(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    """The transition that carries out a decision. Raises Conflict where it is not applicable, with the remedy."""
    if facts.experiment.mode == "aa":
        raise Conflict("Mode aa routes nothing: there is nothing to decide")
    if state.phase == "stopped":
        raise Conflict(
            f"The experiment is stopped ({state.text}). A new run begins when what it compares, or `starts_at`, "
            "changes in the configuration; traffic is changed with the traffic API"
        )
    transition = _ACTIONS[request.action](state, facts, request, now)
    text = f"{request.action}, by {request.by}: {request.reason}"
    cleared = transition.state.cleared_until
    if cleared is not None and cleared != state.cleared_until:
        named = [alarm.text for alarm in facts.alarms if alarm.at <= cleared]
        named += [alarm.partition(":")[0] for alarm in facts.standing]
        text += f". That clears an alarm: {'; '.join(named)}"
    return Transition(transition.state, "decision", text)


def foreseen(transition: Transition, state: State, facts: RolloutInput) -> Foreseen:
    """The effect of a `decided` turn on the traffic. `state`: before it."""
    arms, intent = shares_of_arms(facts.traffic, facts.experiment), transition.state.intent
    after = arms
    if intent is not None and intent.kind == "rollback":
        after = without_treatments(arms, facts.experiment, intent.treatments)
    elif intent is not None:
        after = intent.after
    stopped = [stop.deployment for stop in transition.state.stops]
    return Foreseen(revision=state.revision, state=transition.state.phase, before=arms, after=after, stopped=stopped)


def _promote(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    treatments = facts.experiment.treatments
    if request.treatment is None and len(treatments) > 1:
        raise Conflict(f"There are several treatments: name the `treatment` to promote, {' or '.join(treatments)}")
    if request.treatment is not None and request.treatment not in treatments:
        raise Conflict(f"treatment: '{request.treatment}' is none of {', '.join(treatments)}")
    _refuse_unless_movable(state, facts)
    arms = shares_of_arms(facts.traffic, facts.experiment)
    chosen = [request.treatment or treatments[0]]
    after = weights_at_share(share_at_step(ALL, arms, facts.experiment), arms, facts.experiment, chosen)
    intent = Intent(
        id=state.revision + 1, kind="promote", before=arms, after=after, by=facts.author, reason=_words(request)
    )
    return transition_to(
        state, "decision", "", phase="running", cause="", text="", until=None, by=request.by, intent=intent
    )


def _advance(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    if facts.experiment.ramp is None:
        raise Conflict("There is no `ramp` to advance: change the traffic with the traffic API, or promote")
    if state.phase == "paused":
        raise Conflict(f"The experiment is paused ({state.text}): resume it, then advance")
    _refuse_unless_movable(state, facts)
    if (step := next_step(state, facts, now)) is None:
        raise Conflict("The ramp is at its last step: promote, or stop the experiment")
    if step.decision:
        raise Conflict(f"The last step waits for {step.decision}: `promote` takes it all the same")
    transition = to_step(state, facts, step.weights, _words(request))
    return Transition(msgspec.structs.replace(transition.state, by=request.by), transition.kind, transition.text)


def _pause(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    if state.phase == "paused":
        raise Conflict(f"The experiment is paused already ({state.text})")
    return _halted(state, "paused", request)


def _resume(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    # Who names a revision has seen the alarms that it covers, and no later one.
    seen = now if request.revision is None or state.noticed is None else state.noticed
    if state.phase == "running":
        if not (facts.standing or live_alarms(state, facts)):  # the latter are of guardrails that only tell
            raise Conflict("The experiment runs: there is nothing to resume")
        return transition_to(state, "decision", "", by=request.by, cleared_until=seen, armed_since=now)
    if facts.experiment.state == "paused":
        raise Conflict("Its configuration says `state: paused`: change it there")
    if facts.has_control_plane and (state.stops or state.intent is not None):
        raise Conflict("The rollback is not complete yet, some routers may still have the plan before: resume later")
    transition, cleared = resumed(state, now, "", request.by, "decision"), state.cleared_until
    if state.cause == "alarm":
        cleared = seen
    elif facts.standing:  # no later alarm: it may have come after the manager looked
        cleared = state.armed_since
    return Transition(msgspec.structs.replace(transition.state, cleared_until=cleared), transition.kind, "")


def _roll_back(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    arms = shares_of_arms(facts.traffic, facts.experiment)
    # A step may have reached routers before the applied configuration was read again.
    on_its_way = state.intent.after if state.intent is not None else {}
    stopped = {stop.deployment for stop in state.stops}
    if all(not (arms[name] or on_its_way.get(name)) or name in stopped for name in facts.experiment.treatments):
        raise Conflict("No treatment has traffic: there is nothing to roll back")
    text, names = _words(request), facts.experiment.treatments
    return rolled_back(state, facts, now, names, text, phase="paused", cause="decision", by=request.by)


def _stop(state: State, facts: RolloutInput, request: ManualDecision, now: float) -> Transition:
    return _halted(state, "stopped", request)


def _halted(state: State, phase: str, request: ManualDecision) -> Transition:
    """The traffic stays; a rollback that is under way continues."""
    intent = state.intent if state.intent is not None and state.intent.kind == "rollback" else None
    changes = {"cause": "decision", "text": _words(request), "by": request.by, "until": None}
    return transition_to(state, "decision", "", phase=phase, weights=None, intent=intent, **changes)


def _refuse_unless_movable(state: State, facts: RolloutInput) -> None:
    if not facts.has_control_plane:
        raise Conflict(f"Traffic cannot be moved, {_ALONE}")
    if state.stops:
        raise Conflict("A rollback is under way: wait until it is complete")
    if state.intent is not None:
        raise Conflict("A change of the traffic is under way: wait until it is applied, or pause the experiment")


def _words(request: ManualDecision) -> str:
    return f"{request.action} by {request.by}: {request.reason}"


_ACTIONS: dict[Action, Callable[[State, RolloutInput, ManualDecision, float], Transition]] = {
    "promote": _promote,
    "advance": _advance,
    "pause": _pause,
    "resume": _resume,
    "rollback": _roll_back,
    "stop": _stop,
}


def automation_status(state: State, facts: RolloutInput, now: float) -> AutomationStatus:
    """The present state for summaries. `now`: Unix seconds."""
    experiment = facts.experiment
    arms = shares_of_arms(facts.traffic, experiment)
    step = next_step(state, facts, now)
    effective = without_treatments(
        arms, experiment, [stop.deployment for stop in state.stops if stop.deployment in arms]
    )
    cause, text = _held(facts) if state.phase == "running" else (state.cause, state.text)
    return AutomationStatus(
        state=state.phase,
        revision=state.revision,
        cause=cause,
        text=text,
        by=state.by,
        step=ramp_position(experiment.ramp, arms, experiment) if experiment.ramp is not None else None,
        share=treated_share(effective, experiment),
        next_share=step.share if step is not None and state.phase != "stopped" else None,
        waits_for=_waits(state, facts, step),
        until=state.until,
        stopped=[stop.deployment for stop in state.stops],
    )


def next_sentence(state: State, facts: RolloutInput, now: float) -> str:
    """The next event, or what to do: one or two sentences."""
    if state.stops:
        return f"Next: {_stopping(state, facts)}"
    if state.phase == "stopped":
        return f"Next: nothing, the experiment is stopped. {_sentence(state.text)}"
    if state.phase == "paused":
        return f"Next: {_end_of_pause(state, facts, now)}. {_sentence(state.text)}"
    if state.intent is not None:
        return f"Next: {_shares(state.intent.after, facts)}, as soon as the control plane takes it.{_trouble(facts)}"
    step = next_step(state, facts, now)
    if step is None:
        if facts.experiment.ramp is None:
            return _without_ramp(facts)
        return f"{facts.report.next} The ramp is at its end."
    if not step.waits_for:
        return f"Next: {step.share} %."
    since = f"{treated_share(shares_of_arms(facts.traffic, facts.experiment), facts.experiment)} %" + (
        f" since {words.moment(state.since, now)}; " if state.since else "; "
    )
    return f"Next: {since}{step.share} % waits for {'; '.join(step.waits_for)}."


def next_of_stopped(state: State, declared: str) -> str:
    """The same of a run that its configuration has stopped, by saying `declared` of the experiment's state: it keeps
    saying why it had been paused or stopped before."""
    before = f" {_sentence(state.text)}" if state.phase != "running" and state.cause != "file" else ""
    return f"Next: nothing, the run is stopped: its configuration says `state: {declared}`.{before}"


def _without_ramp(facts: RolloutInput) -> str:
    if treated_share(shares_of_arms(facts.traffic, facts.experiment), facts.experiment) > 0:
        return facts.report.next
    names = " and ".join(facts.experiment.treatments)
    return f"Next: traffic for {names}: the share is 0 %, and there is no ramp that would raise it."


def _waits(state: State, facts: RolloutInput, step: NextStep | None) -> list[str]:
    if state.intent is not None:
        return [f"the control plane: {facts.last_error}" if facts.last_error else "the control plane"]
    return list(step.waits_for) if state.phase == "running" and step is not None else []


def _held(facts: RolloutInput) -> tuple[Cause, str]:
    return facts.silenced[0] if facts.silenced else ("", "")


def _stopping(state: State, facts: RolloutInput) -> str:
    names = " and ".join(stop.deployment for stop in state.stops)
    if not facts.has_control_plane:
        return (
            f"give {names} 0 % in the router's configuration file. Until then the routers give its traffic to "
            f"{facts.experiment.control}. {_sentence(state.text)}"
        )
    return (
        f"a plan without {names}, whose traffic the routers give to {facts.experiment.control} until then. "
        f"{_sentence(state.text)}{_trouble(facts)}"
    )


def _end_of_pause(state: State, facts: RolloutInput, now: float) -> str:
    if state.cause == "file":
        return "nothing until its configuration says `state: running`"
    if harmful := _harmful(state, facts):
        # A pause leaves the traffic as it is: what does harm goes on doing it.
        has = "has" if len(harmful) == 1 else "have"
        share = sum(facts.traffic[name] for name in harmful)
        return f"a manager rolls back or resumes; {' and '.join(harmful)} still {has} {share} % of the traffic"
    until = f"{words.moment(state.until, now)}, or until " if state.until is not None else ""
    return f"nothing until {until}somebody resumes it"


def _harmful(state: State, facts: RolloutInput) -> list[str]:
    """The treatments that have traffic although they paused the experiment, by an alarm or by being worse."""
    if state.cause not in HARMS:
        return []
    found = {violation.treatment for violation in (*live_alarms(state, facts), *facts.worse)}
    return [name for name in facts.experiment.treatments if name in found and facts.traffic.get(name)]


def _shares(arms: dict[str, int], facts: RolloutInput) -> str:
    return ", ".join(f"{arms[name]} % for {name}" for name in facts.experiment.treatments)


def _trouble(facts: RolloutInput) -> str:
    return f" It did not yet: {_sentence(facts.last_error)}" if facts.last_error else ""


def _sentence(text: str) -> str:
    if text.partition(" by ")[0] in get_args(Action):  # what a person decided; other texts may begin with a name
        text = text[0].upper() + text[1:]
    return text if not text or text.endswith((".", "!")) else f"{text}."
