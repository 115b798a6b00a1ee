"""The next action on an experiment: a pure function of its state, the facts and the time.

`next_transition` returns one transition: the state after it and the journal's entry; it is called until there is none.
Nothing else is an effect: stops and the wanted change of the traffic are parts of the state, which the journal keeps,
and `actions.py` carries them out. Doing so twice changes nothing.

The next step of a ramp, and the conditions for which it waits. Steps wait for evidence, not for the clock alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from app.config.experiments import Ramp
from app.experiments.automation.state import (
    NOTICED,
    Intent,
    Phase,
    RolloutInput,
    State,
    Violation,
    ramp_position,
    share_at_step,
    shares_of_arms,
    treated_share,
    weights_at_share,
)
from app.experiments.contract.report import Cause
from app.experiments.rendering import words
from app.exposures.wire import TrafficBlock

ALL = 100


@dataclass(frozen=True, slots=True)
class NextStep:
    """`share`: percent of the traffic that treatments get, as `weights`. `waits_for`: a sentence each."""

    share: int
    weights: dict[str, int]
    waits_for: tuple[str, ...]
    decision: str = ""
    """The decision among these that the step needs."""


def next_step(state: State, facts: RolloutInput, now: float) -> NextStep | None:
    """None: there is no ramp, or it is at its end."""
    experiment, ramp = facts.experiment, facts.experiment.ramp
    if ramp is None:
        return None
    arms = shares_of_arms(facts.traffic, experiment)
    at = ramp_position(ramp, arms, experiment)
    index = 0 if at is None else at + 1
    if index >= len(ramp.steps):
        return None
    step = ramp.steps[index]
    share = share_at_step(step, arms, experiment)
    among = _shipped(facts) or experiment.treatments if step == ALL else experiment.treatments
    weights = weights_at_share(share, arms, experiment, among)
    waits = [*_obstacles(facts)]
    if at is not None:
        waits += [*_time_and_units(state, facts, ramp, arms, now), *_evidence(state, facts, ramp)]
    decision = _last(facts) if step == ALL else ""
    return NextStep(share, weights, (*waits, *([decision] if decision else [])), decision)


def _obstacles(facts: RolloutInput) -> Iterator[str]:
    """Reasons that hold up every step, even the first one."""
    if not facts.has_control_plane:
        yield "there is no control plane: change the traffic in the router's configuration file"
    if facts.last_error:
        yield f"the control plane did not make the last change: {facts.last_error}"
    if facts.is_temporary:
        yield "the present plan is temporary: the ramp continues when it has ended"
    elif not facts.rollout_complete:
        yield "not every router has the present plan yet"
    for _, text in facts.silenced:
        yield text
    yield from facts.unclear


def _time_and_units(state: State, facts: RolloutInput, ramp: Ramp, arms: dict[str, int], now: float) -> Iterator[str]:
    if now < state.since + ramp.min_step_s:
        yield f"the step to last until {words.moment(state.since + ramp.min_step_s, now)}"
    for name in facts.experiment.treatments:
        units = facts.report.step_units.get(name, 0)
        if arms[name] and units < ramp.min_units:  # without traffic there are none to wait for
            more = ramp.min_units - units
            yield f"{words.count(more)} more unit{'' if more == 1 else 's'} on {name} at this step"


def _evidence(state: State, facts: RolloutInput, ramp: Ramp) -> Iterator[str]:
    alarms = [alarm for alarm in facts.alarms if state.armed_since is None or alarm.at > state.armed_since]
    if ramp.advance == "quiet":
        yield from (f"guardrails to be quiet: {alarm.text}; a manager may `advance`" for alarm in alarms)
    elif ramp.advance == "manual":
        yield "a manager's `advance`"
    else:
        yield from _verdicts(facts, ramp.advance)


def _verdicts(facts: RolloutInput, wanted: str) -> Iterator[str]:
    for name in facts.experiment.treatments:
        primary = [comparison for comparison in facts.report.primary if comparison.treatment == name]
        if wanted == "better" and not any(comparison.measured == "better" for comparison in primary):
            yield f"{name} to be better in a primary metric"
        if wanted == "non_inferior" and (
            open_ := [comparison.metric for comparison in primary if not comparison.non_inferior]
        ):
            yield f"{name} to be non-inferior in {', '.join(open_)}"


def _last(facts: RolloutInput) -> str:
    """The condition of the last step. All traffic for a treatment is a promotion: it takes a decision, which names one
    of several treatments.
    """
    good = _shipped(facts)
    if not good:
        standing = [f"{text[0].lower()}{text[1:].rstrip('.')}" for text in facts.standing]
        return "; ".join(["the decision to ship", *standing])
    return f"a manager's `promote`, of {' or '.join(good)}" if len(good) > 1 else ""


def _shipped(facts: RolloutInput) -> list[str]:
    return [name for name in facts.experiment.treatments if facts.report.decisions.get(name) == "ship"]


MAX_TRANSITIONS = 20
"""The most transitions at one moment: far more than can be needed."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of the machine. `kind` and `text` are for the journal."""

    state: State
    kind: str
    text: str


def next_transition(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """The next transition; None: nothing happens until the facts or the time change. `now`: Unix seconds."""
    if facts.experiment.mode == "aa":
        return None
    known = [] if state.noticed is None else [state.noticed]
    latest = max([*known, *(alarm.at for alarm in facts.alarms)], default=None)
    for rule in _RULES:
        if (transition := rule(state, facts, now)) is not None:
            return Transition(replace(transition.state, noticed=latest), transition.kind, transition.text)
    new = [alarm for alarm in live_alarms(state, facts) if state.noticed is None or alarm.at > state.noticed]
    if not new or state.phase == "stopped":
        return None
    # A manager who has not seen it must not clear it.
    return transition_to(state, NOTICED, "; ".join(alarm.text for alarm in new), noticed=latest)


def transition_to(state: State, kind: str, text: str, /, **changes: object) -> Transition:
    """A transition to a state with these changes."""
    return Transition(replace(state, revision=state.revision + 1, **changes), kind, text)


def rolled_back(
    state: State,
    facts: RolloutInput,
    now: float,
    treatments: Sequence[str],
    text: str,
    *,
    phase: Phase,
    cause: Cause,
    until: float | None = None,
    by: str | None = None,
    seen: Sequence[str] = (),
) -> Transition:
    """Stops for treatments, and the wanted plan that gives control their share."""
    revision, endpoint, control = state.revision + 1, facts.experiment.endpoint, facts.experiment.control
    stopped = {stop.deployment: stop for stop in state.stops}
    for name in treatments:
        stopped.setdefault(name, TrafficBlock(f"{facts.name}/{name}/{revision}", endpoint, name, control))
    intent = _rollback(revision, facts, list(stopped), text) if facts.has_control_plane else None
    return transition_to(
        state,
        "stop",
        text,
        phase=phase,
        cause=cause,
        text=text,
        by=by,
        until=until,
        weights=None,
        intent=intent,
        stops=list(stopped.values()),
        rolled_back=list(dict.fromkeys([*state.rolled_back, *treatments])),
        handled=list(dict.fromkeys([*state.handled, *seen])),
    )


def resumed(state: State, now: float, text: str, by: str | None = None, kind: str = "resumed") -> Transition:
    """The experiment continues from the present traffic. Guardrails that have acted start again, so that they can act
    again; their alarms stand.
    """
    has_acted = bool(state.rolled_back) or state.cause == "alarm"
    return transition_to(
        state,
        kind,
        text,
        phase="running",
        cause="",
        text=text,
        by=by,
        until=None,
        weights=None,
        intent=None,
        stops=[],
        rolled_back=[],
        armed_since=now if has_acted else state.armed_since,
        handled=[key for key in state.handled if key.startswith("worse ")],
    )


def live_alarms(state: State, facts: RolloutInput) -> list[Violation]:
    """Guardrails' alarms since they were armed."""
    return [alarm for alarm in facts.alarms if state.armed_since is None or alarm.at > state.armed_since]


def _rollback(revision: int, facts: RolloutInput, treatments: list[str], reason: str) -> Intent:
    return Intent(id=revision, kind="rollback", treatments=treatments, by=facts.author, reason=reason)


# The rules, in the order of their weight.


def _stops(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """Lifts stops once a plan with the same effect has reached every router. Until then they get no traffic."""
    if not state.stops or not facts.has_control_plane or (state.intent is not None and state.intent.kind == "rollback"):
        return None
    if not facts.config_is_current:  # another change may have given it traffic meanwhile
        return None
    names = [stop.deployment for stop in state.stops]
    if _have_nothing(names, facts):
        if not facts.rollout_complete:
            return None
        text = f"All routers have applied the plan that removes {_listed(names)}"
        return transition_to(state, "stop_lifted", text, stops=[])
    text = f"{_listed(names)} was given traffic before the rollback was complete"
    return transition_to(state, "intent", text, intent=_rollback(state.revision + 1, facts, names, state.text or text))


def _budget_exhausted(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if state.phase == "stopped":
        return None
    had, limits = facts.report.treated, facts.experiment.harm_budget
    budgets = [
        ("units", had.units, limits.units),
        ("errors", had.errors, limits.errors),
        ("tokens", had.tokens, limits.tokens),
    ]
    for what, count, budget in budgets:
        if budget is not None and count >= budget:
            text = f"Harm budget exhausted: {words.count(count)} of {words.count(budget)} {what} on treatments"
            names = facts.experiment.treatments
            return rolled_back(state, facts, now, names, text, phase="stopped", cause="harm")
    return None


def _guardrail_violated(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if state.phase == "stopped":
        return None
    violations = [
        alarm
        for alarm in live_alarms(state, facts)
        if alarm.action == "rollback" and alarm.treatment not in state.rolled_back
    ]
    if not violations:
        return None
    ramp = facts.experiment.ramp
    until = now + ramp.cooldown_s if ramp is not None and facts.has_control_plane else None
    return _roll_back(state, facts, now, violations, "alarm", until)


def _worse(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """A pause that does not end by itself, though the verdict may: without traffic there is little new evidence."""
    if state.phase == "stopped":
        return None
    violations = [
        violation
        for violation in facts.worse
        if violation.action == "rollback"
        and violation.treatment not in state.rolled_back
        and violation.key not in state.handled
    ]
    return _roll_back(state, facts, now, violations, "worse", None) if violations else None


def _roll_back(
    state: State, facts: RolloutInput, now: float, violations: Sequence[Violation], cause: Cause, until: float | None
) -> Transition:
    treatments, keys = (
        list(dict.fromkeys(violation.treatment for violation in violations)),
        [violation.key for violation in violations],
    )
    text = "; ".join(violation.text for violation in violations)
    return rolled_back(state, facts, now, treatments, text, phase="paused", cause=cause, until=until, seen=keys)


def _ended(state: State, facts: RolloutInput, now: float) -> Transition | None:
    longest = facts.experiment.max_duration_s
    if state.phase == "stopped" or longest is None or now < state.started_at + longest:
        return None
    text = f"Reached its maximum duration of {words.duration(longest)}"
    return _pause(state, "stopped", "stopped", "ended", text)


def _as_the_file_says(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if facts.experiment.state == "paused" and state.phase == "running":
        return _pause(state, "paused", "paused", "file", "Its configuration says `state: paused`")
    if facts.experiment.state == "running" and state.phase == "paused" and state.cause == "file":
        return resumed(state, now, "Its configuration says `state: running`")
    return None


def _paused(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if state.phase != "running":
        return None
    cases: tuple[tuple[Cause, list[Violation]], ...] = (("alarm", live_alarms(state, facts)), ("worse", facts.worse))
    for cause, candidates in cases:
        violations = [
            violation for violation in candidates if violation.action == "pause" and violation.key not in state.handled
        ]
        if violations:
            text = "; ".join(violation.text for violation in violations)
            return _pause(
                state,
                "paused",
                "paused",
                cause,
                text,
                handled=[*state.handled, *(violation.key for violation in violations)],
            )
    return None


def _pause(state: State, kind: str, phase: Phase, cause: Cause, text: str, **changes: object) -> Transition:
    """The traffic stays as it is; only a rollback that is under way continues."""
    intent = state.intent if state.intent is not None and state.intent.kind == "rollback" else None
    return transition_to(
        state,
        kind,
        text,
        phase=phase,
        cause=cause,
        text=text,
        by=None,
        until=None,
        weights=None,
        intent=intent,
        **changes,
    )


def _applied(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """Ends an intent that is known to be applied, by any controller. One that cannot be applied is given up."""
    if (intent := state.intent) is None:
        return None
    arms = shares_of_arms(facts.traffic, facts.experiment)
    if intent.kind == "rollback":
        if not facts.config_is_current or not _have_nothing(intent.treatments, facts):
            return None
        return transition_to(state, "done", f"{_listed(intent.treatments)} has no traffic", intent=None)
    if arms == intent.after:
        text = f"{_shares(arms, facts)}: {intent.reason}"
        if intent.kind == "promote":
            changes = {"phase": "stopped", "cause": "promoted", "text": intent.reason, "until": None, "weights": None}
            return transition_to(state, "stopped", text, intent=None, **changes)
        return transition_to(state, "done", text, intent=None, weights=arms, since=now)
    return None if arms == intent.before else _changed_by_others(state, facts, arms, now)


def _changed(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """Only the ramp moves its arms while it runs; a change by anyone else takes over."""
    arms = shares_of_arms(facts.traffic, facts.experiment)
    if state.phase != "running" or state.weights is None or state.intent is not None or arms == state.weights:
        return None
    return _changed_by_others(state, facts, arms, now)


def _changed_by_others(state: State, facts: RolloutInput, arms: dict[str, int], now: float) -> Transition:
    if facts.planned_by == facts.author:
        if treated_share(arms, facts.experiment):
            text = f"{_shares(arms, facts)}: another controller of experiments did that"
            return transition_to(state, "done", text, intent=None, weights=arms, since=now)
        # It rolled back. Its alarm is in the evidence here, too, or will be.
        ramp = facts.experiment.ramp
        until = now + ramp.cooldown_s if ramp is not None else None
        text = "Another controller of experiments rolled back"
        transition = _pause(state, "paused", "paused", "alarm", text)
        return Transition(
            replace(transition.state, rolled_back=list(facts.experiment.treatments), until=until), transition.kind, text
        )
    who = facts.planned_by or "a deployment of the configuration"
    text = f"{_shares(arms, facts)}: changed by {who}, not by this experiment"
    return _pause(state, "paused", "paused", "superseded", text)


def _traffic_returned(state: State, facts: RolloutInput, now: float) -> Transition | None:
    """Re-arms guardrails when a rolled-back treatment receives traffic again.

    If that was a step of another controller, which did not know of the rollback, it is undone.
    """
    if state.phase == "running" or state.stops or state.intent is not None:
        return None
    fed = [name for name in state.rolled_back if facts.traffic.get(name, 0) > 0]
    if not fed:
        return None
    if facts.planned_by == facts.author and facts.has_control_plane:
        text, phase, cause = f"{_listed(fed)} was given traffic after the rollback", state.phase, state.cause
        transition = rolled_back(state, facts, now, fed, text, phase=phase, cause=cause, until=state.until, by=state.by)
        return Transition(replace(transition.state, text=state.text), transition.kind, text)
    if state.phase == "stopped":
        return None
    text = f"{_listed(fed)} was given traffic again by {facts.planned_by or 'a deployment of the configuration'}"
    transition = _pause(state, "paused", "paused", "superseded", text)
    seen = [key for key in state.handled if key.startswith("worse ")]
    out = [name for name in state.rolled_back if name not in fed]
    return Transition(replace(transition.state, rolled_back=out, armed_since=now, handled=seen), transition.kind, text)


def _cooldown_over(state: State, facts: RolloutInput, now: float) -> Transition | None:
    is_over = state.phase == "paused" and state.until is not None and now >= state.until
    if not is_over or state.stops or state.intent is not None or facts.experiment.state != "running":
        return None
    return resumed(state, now, "The pause after the rollback is over: the ramp begins again")


def _started(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if facts.experiment.ramp is None or state.phase != "running" or state.weights is not None:
        return None
    if now < state.started_at or state.intent is not None:
        return None
    arms = shares_of_arms(facts.traffic, facts.experiment)
    return transition_to(
        state, "ramp", f"The ramp begins where the traffic is: {_shares(arms, facts)}", weights=arms, since=now
    )


def _advance(state: State, facts: RolloutInput, now: float) -> Transition | None:
    if (
        facts.experiment.ramp is None
        or not facts.has_control_plane
        or state.weights is None
        or state.intent is not None
    ):
        return None
    if state.phase != "running" or (step := next_step(state, facts, now)) is None or step.waits_for:
        return None
    return to_step(state, facts, step.weights, f"step to {step.share} %")


def to_step(state: State, facts: RolloutInput, after: dict[str, int], reason: str) -> Transition:
    """The wanted change to other weights of the arms."""
    before = shares_of_arms(facts.traffic, facts.experiment)
    intent = Intent(id=state.revision + 1, kind="step", before=before, after=after, by=facts.author, reason=reason)
    return transition_to(state, "intent", f"{_shares(before, facts)}; {reason}", intent=intent)


_RULES: tuple[Callable[[State, RolloutInput, float], Transition | None], ...] = (
    _budget_exhausted,
    _guardrail_violated,
    _worse,
    _ended,
    _applied,
    _stops,
    _as_the_file_says,
    _paused,
    _changed,
    _cooldown_over,
    _traffic_returned,
    _started,
    _advance,
)


def _have_nothing(names: Sequence[str], facts: RolloutInput) -> bool:
    """True if these arms have no traffic for good. A temporary plan does not count: the earlier weights come back."""
    return not facts.is_temporary and all(not facts.traffic.get(name, 0) for name in names)


def _shares(arms: dict[str, int], facts: RolloutInput) -> str:
    return ", ".join(f"{name} {arms[name]} %" for name in facts.experiment.treatments)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)
