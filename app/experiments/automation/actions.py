"""Acting on a controller's experiments: their states, which the journal keeps, and the changes that follow.

Synchronous, in the controller's thread. A change of the traffic is due once the journal's directory has its intent; a
stop, too, unless the directory fails or takes long: then traffic is taken away all the same, since a failing treatment
hurts and a repeated stop does not.

Carries out a wanted change of the traffic: by compare-and-set, through the control plane, as often as is needed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.config.endpoints import MAX_REASON
from app.config.experiments import Experiment
from app.config.schema import Config
from app.control_plane import Authorship, ControlPlane, WantedPlan, change_plan
from app.errors import Conflict, PreconditionFailed, SwitchyardError
from app.experiments.automation.decisions import automation_status, decided, foreseen, next_of_stopped, next_sentence
from app.experiments.automation.machine import MAX_TRANSITIONS, Transition, next_transition
from app.experiments.automation.state import (
    NOTICED,
    Intent,
    Interventions,
    RolloutInput,
    State,
    shares_of_arms,
    states_of,
    without_treatments,
)
from app.experiments.contract.journal import JournalEntry, history
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import AutomationStatus, Foreseen, Report
from app.experiments.runs import ExperimentRun
from app.exposures.wire import TrafficBlock
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")
_TEMPORARY = "the present plan is temporary"
_GONE = "the arms are not in the endpoint's traffic any more"


@dataclass(frozen=True, slots=True)
class TrafficChange:
    """A change that an experiment wants of its endpoint's traffic."""

    experiment: str
    section: Experiment
    intent: Intent
    generation: int
    """The last known plan of the endpoint."""


async def carry_out(control: ControlPlane, change: TrafficChange, now: float) -> str | None:
    """Makes the change if it has not been made, and if the traffic is still that which it is to replace. Returns the
    reason to try again, in words; None if nothing is left to do: the change is applied, or what is applied is something
    else, which the caller reads. `now`: Unix seconds.
    """
    intent, endpoint = change.intent, change.section.endpoint

    def check(config: Config) -> WantedPlan:
        plan, traffic = config.endpoints[endpoint].plan, config.endpoints[endpoint].traffic
        if not set(change.section.arms) <= set(traffic):
            raise Conflict(_GONE)
        arms = _after(change, traffic)
        if plan.expires is not None and intent.kind != "rollback":
            raise Conflict(_TEMPORARY)
        if arms is None:
            raise _Other
        # A treatment that is rolled back loses running conversations, too, permanently.
        rolled_back = intent.treatments if intent.kind == "rollback" else []
        withdrawn = dict.fromkeys(rolled_back, change.section.control)
        return WantedPlan({**traffic, **arms}, plan.overrides, reason=intent.reason[:MAX_REASON], withdrawn=withdrawn)

    author = Authorship(intent.by, now, change.generation + 1)
    try:
        before, after = await change_plan(control, endpoint, check=check, author=author)
    except _Other:
        return None
    except SwitchyardError as error:
        waits = event("experiment_waits", experiment=change.experiment, endpoint=endpoint, error=error.message)
        _log.warning("An experiment could not move traffic yet", extra=waits)
        return error.message
    if before is not after:
        traffic = {"before": dict(before.traffic), "after": dict(after.traffic)}
        moved = event("experiment_moved_traffic", experiment=change.experiment, endpoint=endpoint, **traffic)
        _log.info("An experiment has moved traffic", extra=moved)
    return None


class _Other(Exception):
    """The arms' weights are not those that the change is to replace."""


def _after(change: TrafficChange, traffic: Mapping[str, int]) -> dict[str, int] | None:
    intent, arms = change.intent, shares_of_arms(traffic, change.section)
    if intent.kind == "rollback":
        return without_treatments(arms, change.section, intent.treatments)
    return intent.after if arms in (intent.before, intent.after) else None


PATIENCE_S = 0.5
"""The longest wait of a stop for the directory."""

RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Back-off between consecutive refused changes."""


@dataclass(slots=True)
class _Progress:
    """The rollout inputs of one experiment besides its state."""

    transition: int = 0
    """The number of its last transition."""
    position: int = 0
    """The journal position of the state's entry."""
    changed_at: float = 0.0
    stops: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The journal position and time at which each present stop first appeared: later events no longer delay it."""
    refusals: int = 0
    retry_at: float = 0.0
    last_error: str = ""


class Journal:
    """The journal as actions need it: `add` returns the number of entries, of which `durable` are written."""

    def __init__(
        self, add: Callable[[Sequence[JournalEntry]], int], durable: Callable[[], int], is_failing: Callable[[], bool]
    ) -> None:
        self.add, self.durable, self.is_failing = add, durable, is_failing


class Actions:
    """Carries out transitions. `has_control_plane`: traffic can be moved. Times are Unix seconds."""

    def __init__(self, journal: Journal, *, has_control_plane: bool) -> None:
        self.rollout_complete = not has_control_plane
        """Whether every router has the applied configuration."""
        self.transitions = 0
        """The number of transitions so far. In any thread."""
        self.seen_transitions = 0
        """The number of transitions when the applied configuration was read."""
        self._journal, self._has_control_plane = journal, has_control_plane
        self._states: dict[str, State] = {}
        self._progresses: dict[str, _Progress] = {}

    def restore(self, entries: Iterable[JournalEntry]) -> None:
        """Continues from the journal."""
        for name, state in states_of(entries).items():
            known = self._states.get(name)
            if known is None or known.revision < state.revision:
                self._states[name] = state

    def obstacles(self) -> dict[str, Any]:
        """What besides the states decides on the next step, as plain data: whether there is a control plane, whether
        every router has its configuration, and why a change was refused.
        """
        last_error = {name: progress.last_error for name, progress in self._progresses.items() if progress.last_error}
        return {"can_move": self._has_control_plane, "settled": self.rollout_complete, "trouble": last_error}

    def meet(self, obstacles: Mapping[str, Any]) -> None:
        """Takes the `obstacles` of a journal, to tell what was next then."""
        self._has_control_plane, self.rollout_complete = obstacles["can_move"], obstacles["settled"]
        for name, last_error in obstacles["trouble"].items():
            self._progress(name).last_error = last_error

    def learn(self, entries: Iterable[JournalEntry], runs: Mapping[str, ExperimentRun]) -> None:
        """Takes another controller's entries about the same runs. A controller's own runs have their own states."""
        same = {name: run.started_at for name, run in runs.items()}
        self.restore(
            entry for entry in entries if entry.experiment in same and _started_at(entry) == same[entry.experiment]
        )

    def interventions(self, run: ExperimentRun) -> Interventions:
        """The actions on which counting depends."""
        return self._state(run).interventions

    def act(self, run: ExperimentRun, config: Config, report: Report, now: float) -> bool:
        """Takes every transition that is due. Returns whether there was any."""
        facts, has_turned = self._facts(run, config, report), False
        for _ in range(MAX_TRANSITIONS):
            if (transition := next_transition(self._state(run), facts, now)) is None:
                break
            self._take(run.name, transition, now)
            facts, has_turned = replace(facts, config_is_current=False), True
        return has_turned

    def decide(self, run: ExperimentRun, config: Config, report: Report, request: ManualDecision, now: float) -> None:
        """Takes a person's decision. Raises Conflict if it is not applicable now, PreconditionFailed if it is stale."""
        transition = self._decided(run, config, report, request, now)
        by = {"action": request.action, "reason": request.reason, "by": request.by}
        self._take(run.name, transition, now, **by)

    def foresee(
        self, run: ExperimentRun, config: Config, report: Report, request: ManualDecision, now: float
    ) -> Foreseen:
        """The consequences of that decision. Raises the same."""
        transition = self._decided(run, config, report, request, now)
        return foreseen(transition, self._state(run), self._facts(run, config, report))

    def _decided(
        self, run: ExperimentRun, config: Config, report: Report, request: ManualDecision, now: float
    ) -> Transition:
        if run.stopped_at is not None:
            raise Conflict("Its configuration has stopped the experiment: change its `state` there")
        state = self._state(run)
        if request.revision is not None and request.revision != state.revision:
            message = f"revision: the experiment is at {state.revision} now; look at it, then decide again"
            raise PreconditionFailed(message, current={})
        return decided(state, self._facts(run, config, report), request, now)

    def stops(self, runs: Mapping[str, ExperimentRun], now: float) -> list[TrafficBlock]:
        """Stops that routers are to apply."""
        present = ((name, state) for name, state in self._states.items() if _is_of(state, runs.get(name)))
        return [stop for name, state in present for stop in state.stops if self._is_due(name, stop, now)]

    @property
    def waits_for_directory(self) -> bool:
        """Whether a stop or a change waits until its entry is written."""
        return any(
            (state.stops or state.intent is not None) and not self._is_durable(name)
            for name, state in self._states.items()
        )

    @property
    def waits_for_delivery(self) -> bool:
        """Whether the next turn depends on the applied configuration and its delivery."""
        return self._has_control_plane and any(
            state.stops or state.intent is not None for state in self._states.values()
        )

    def changes(
        self, config: Config, runs: Mapping[str, ExperimentRun], entries: Sequence[JournalEntry], now: float
    ) -> list[TrafficChange]:
        """The changes of traffic that are due."""
        return list(self._changes(config, runs, entries, now))

    def tried(self, change: TrafficChange, refusal: str | None, now: float) -> None:
        """Records that a change was made (`refusal` is None), or is to be tried again."""
        progress = self._progress(change.experiment)
        if refusal is None:
            progress.refusals, progress.retry_at, progress.last_error = 0, now + RETRY_S[0], ""
            return
        pauses = RETRY_S[:2] if change.intent.kind == "rollback" else RETRY_S
        progress.retry_at = now + pauses[min(progress.refusals, len(pauses) - 1)]
        progress.refusals += 1
        progress.last_error = refusal

    def acting(self, run: ExperimentRun, config: Config, report: Report, now: float) -> AutomationStatus | None:
        """The present state for summaries; None if nothing acts on the experiment."""
        if report.mode == "aa" or run.stopped_at is not None:
            return None
        return automation_status(self._state(run), self._facts(run, config, report), now)

    def next_sentence(self, run: ExperimentRun, config: Config, report: Report, now: float, declared: str) -> str:
        """The report's sentence about the next step; its own one if nothing acts. `declared`: what the configuration
        says of the experiment's state."""
        if run.stopped_at is not None:
            return next_of_stopped(self._state(run), declared)
        if report.mode == "aa":
            return report.next
        return next_sentence(self._state(run), self._facts(run, config, report), now)

    def weights(self, run: ExperimentRun, traffic: Mapping[str, int]) -> dict[str, int]:
        """The arms' weights for the report: of the endpoint's applied `traffic`, less the stops in force."""
        arms = shares_of_arms(traffic, run.experiment)
        if run.stopped_at is not None:
            return arms
        return without_treatments(arms, run.experiment, [stop.deployment for stop in self._state(run).stops])

    def _changes(
        self, config: Config, runs: Mapping[str, ExperimentRun], entries: Sequence[JournalEntry], now: float
    ) -> Iterator[TrafficChange]:
        for name, state in self._states.items():
            section, run = config.experiments.get(name), runs.get(name)
            if not self._has_control_plane or state.intent is None or section is None or not _is_of(state, run):
                continue
            progress = self._progress(name)
            if now < progress.retry_at:
                continue
            is_stop = state.intent.kind == "rollback"
            if self._is_durable(name) or (is_stop and self._may_stop(progress.position, progress.changed_at, now)):
                generation = max((plan.generation for plan in history(entries, section.endpoint)), default=0)
                yield TrafficChange(name, section, state.intent, generation)

    def _take(self, name: str, transition: Transition, now: float, **detail: object) -> None:
        progress = self._progress(name)
        self.transitions += 1
        progress.transition = self.transitions
        if transition.kind not in ("done", NOTICED):
            progress.refusals, progress.retry_at = 0, 0.0
        progress.last_error = progress.last_error if transition.state.intent is not None else ""
        known = {stop.id: progress.stops.get(stop.id, (0, now)) for stop in self._states[name].stops}
        self._states[name] = transition.state
        entry = transition.state.entry(name, transition.kind, now, transition.text, **detail)
        progress.position = self._journal.add([entry])
        progress.changed_at = now
        progress.stops = {stop.id: known.get(stop.id, (progress.position, now)) for stop in transition.state.stops}

    def _is_due(self, name: str, stop: TrafficBlock, now: float) -> bool:
        return self._may_stop(*self._progress(name).stops.get(stop.id, (0, now)), now)

    def _may_stop(self, position: int, since: float, now: float) -> bool:
        is_late = now >= since + PATIENCE_S
        return self._journal.durable() >= position or self._journal.is_failing() or is_late

    def _is_durable(self, name: str) -> bool:
        return self._journal.durable() >= self._progress(name).position

    def _state(self, run: ExperimentRun) -> State:
        known = self._states.get(run.name)
        if known is None or known.started_at != run.started_at:
            known = State(started_at=run.started_at, revision=known.revision if known is not None else 0)
            self._states[run.name] = known
        return known

    def _progress(self, name: str) -> _Progress:
        return self._progresses.setdefault(name, _Progress())

    def _facts(self, run: ExperimentRun, config: Config, report: Report) -> RolloutInput:
        section = config.experiments[run.name]
        endpoint = config.endpoints[section.endpoint]
        return RolloutInput(
            name=run.name,
            experiment=section,
            traffic=endpoint.traffic,
            planned_by=endpoint.plan.by,
            is_temporary=endpoint.plan.expires is not None,
            has_control_plane=self._has_control_plane,
            rollout_complete=self.rollout_complete,
            config_is_current=self.seen_transitions >= self._progress(run.name).transition,
            report=report,
            last_error=self._progress(run.name).last_error,
        )


def _started_at(entry: JournalEntry) -> float | None:
    """The start of the run that an entry's state belongs to."""
    state = entry.detail.get("state")
    return state.get("started_at") if isinstance(state, dict) else None


def _is_of(state: State, run: ExperimentRun | None) -> bool:
    """Whether a state belongs to the present run, and the run continues: pending work of any other run is void."""
    return run is not None and run.stopped_at is None and run.started_at == state.started_at
