"""People's decisions: the effect of each on an experiment, and the cases in which it is not applicable."""

from collections.abc import Callable

import msgspec

from app.errors import Conflict
from app.experiments.acting import shares
from app.experiments.acting.facts import Facts
from app.experiments.acting.machine import Turn, resumed, rolled_back, to_step, turned
from app.experiments.acting.next_step import ALL, next_step
from app.experiments.acting.state import Intent, State
from app.experiments.questions import Action, Request
from app.experiments.summary import Foreseen

_ALONE = "there is no control plane: change the traffic in the router's configuration file, and start it again"


def decided(state: State, facts: Facts, request: Request, now: float) -> Turn:
    """The turn that carries out a decision. Raises Conflict where it is not applicable, with the remedy."""
    if facts.experiment.mode == "aa":
        raise Conflict("Mode aa routes nothing: there is nothing to decide")
    if state.phase == "stopped":
        raise Conflict(
            f"The experiment is stopped ({state.text}). A new run begins when what it compares, or `starts_at`, "
            "changes in the configuration; traffic is changed with the traffic API"
        )
    turn = _ACTIONS[request.action](state, facts, request, now)
    return Turn(turn.state, "decision", f"{request.action}, by {request.by}: {request.reason}")


def foreseen(turn: Turn, state: State, facts: Facts) -> Foreseen:
    """The effect of a `decided` turn on the traffic. `state`: before it."""
    arms, intent = shares.of_arms(facts.traffic, facts.experiment), turn.state.intent
    after = arms
    if intent is not None and intent.kind == "rollback":
        after = shares.without(arms, facts.experiment, intent.treatments)
    elif intent is not None:
        after = intent.after
    stopped = [stop.deployment for stop in turn.state.stops]
    return Foreseen(revision=state.revision, state=turn.state.phase, before=arms, after=after, stopped=stopped)


def _promote(state: State, facts: Facts, request: Request, now: float) -> Turn:
    treatments = facts.experiment.treatments
    if request.treatment is None and len(treatments) > 1:
        raise Conflict(f"There are several treatments: name the `treatment` to promote, {' or '.join(treatments)}")
    if request.treatment is not None and request.treatment not in treatments:
        raise Conflict(f"treatment: '{request.treatment}' is none of {', '.join(treatments)}")
    _refuse_unless_movable(state, facts)
    arms = shares.of_arms(facts.traffic, facts.experiment)
    chosen = [request.treatment or treatments[0]]
    after = shares.divided(shares.share_at(ALL, arms, facts.experiment), arms, facts.experiment, chosen)
    intent = Intent(
        id=state.revision + 1, kind="promote", before=arms, after=after, by=facts.author, reason=_words(request)
    )
    return turned(state, "decision", "", phase="running", cause="", text="", until=None, by=request.by, intent=intent)


def _advance(state: State, facts: Facts, request: Request, now: float) -> Turn:
    if facts.experiment.ramp is None:
        raise Conflict("There is no `ramp` to advance: change the traffic with the traffic API, or promote")
    if state.phase == "paused":
        raise Conflict(f"The experiment is paused ({state.text}): resume it, then advance")
    _refuse_unless_movable(state, facts)
    if (step := next_step(state, facts, now)) is None:
        raise Conflict("The ramp is at its last step: promote, or stop the experiment")
    if step.decision:
        raise Conflict(f"The last step waits for {step.decision}: `promote` takes it all the same")
    turn = to_step(state, facts, step.weights, _words(request))
    return Turn(msgspec.structs.replace(turn.state, by=request.by), turn.kind, turn.text)


def _pause(state: State, facts: Facts, request: Request, now: float) -> Turn:
    if state.phase == "paused":
        raise Conflict(f"The experiment is paused already ({state.text})")
    return _halted(state, "paused", request)


def _resume(state: State, facts: Facts, request: Request, now: float) -> Turn:
    if state.phase == "running":
        raise Conflict("The experiment runs: there is nothing to resume")
    if facts.experiment.state == "paused":
        raise Conflict("Its configuration says `state: paused`: change it there")
    if facts.can_move and (state.stops or state.intent is not None):
        raise Conflict("The rollback is not complete yet, some routers may still have the plan before: resume later")
    return resumed(state, now, "", request.by, "decision")


def _roll_back(state: State, facts: Facts, request: Request, now: float) -> Turn:
    arms = shares.of_arms(facts.traffic, facts.experiment)
    # A step may have reached routers before the applied configuration was read again.
    on_its_way = state.intent.after if state.intent is not None else {}
    stopped = {stop.deployment for stop in state.stops}
    if all(not (arms[name] or on_its_way.get(name)) or name in stopped for name in facts.experiment.treatments):
        raise Conflict("No treatment has traffic: there is nothing to roll back")
    text, names = _words(request), facts.experiment.treatments
    return rolled_back(state, facts, now, names, text, phase="paused", cause="decision", by=request.by)


def _stop(state: State, facts: Facts, request: Request, now: float) -> Turn:
    return _halted(state, "stopped", request)


def _halted(state: State, phase: str, request: Request) -> Turn:
    """The traffic stays; a rollback that is under way continues."""
    intent = state.intent if state.intent is not None and state.intent.kind == "rollback" else None
    changes = {"cause": "decision", "text": _words(request), "by": request.by, "until": None}
    return turned(state, "decision", "", phase=phase, weights=None, intent=intent, **changes)


def _refuse_unless_movable(state: State, facts: Facts) -> None:
    if not facts.can_move:
        raise Conflict(f"Traffic cannot be moved, {_ALONE}")
    if state.stops:
        raise Conflict("A rollback is under way: wait until it is complete")
    if state.intent is not None:
        raise Conflict("A change of the traffic is under way: wait until it is applied, or pause the experiment")


def _words(request: Request) -> str:
    return f"{request.action} by {request.by}: {request.reason}"


_ACTIONS: dict[Action, Callable[[State, Facts, Request, float], Turn]] = {
    "promote": _promote,
    "advance": _advance,
    "pause": _pause,
    "resume": _resume,
    "rollback": _roll_back,
    "stop": _stop,
}
