"""The state of acting on one experiment, as the journal keeps it: every entry has the whole state after it.

Inputs of acting: an experiment's evidence, and the applied traffic, of which arms have shares.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from app.config.experiments import Experiment, Ramp
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.report import Cause, Comparison, Report, Verdict
from app.experiments.rendering import words
from app.exposures.wire import TrafficBlock

SILENCING: dict[str, Cause] = {
    "sample_ratio": "sample_ratio",
    "rows_lost": "rows_lost",
    "incomplete": "incomplete",
    "completeness": "completeness",
    "effect_changed": "effect_changed",
    "returns": "returns",
}
"""Kinds of alarms with which the evidence does not tell what comes: a ramp holds."""

_AGAINST: dict[Verdict, str] = {"worse": "was worse than", "different": "differed from"}
"""Verdicts on a primary metric that speak against a treatment, in words. What was measured is enough to act, even where
a doubt withholds the verdict."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An alarm of a guardrail, or a primary metric that is worse. `key` names it as long as it lasts."""

    key: str
    treatment: str
    action: str
    text: str
    at: float
    """The time at which it was found, in Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInput:
    """The facts about an experiment at one moment."""

    name: str
    experiment: Experiment
    traffic: Mapping[str, int]
    """The endpoint's traffic, as applied."""
    planned_by: str | None
    """The author of that plan."""
    is_temporary: bool
    """Whether that plan ends by itself."""
    has_control_plane: bool
    """Whether there is a control plane."""
    rollout_complete: bool
    """Whether every router has the applied configuration."""
    config_is_current: bool
    """Whether the applied configuration was read after the experiment's last transition."""
    report: Report
    last_error: str = ""
    """The reason why the control plane has not made the wanted change."""

    @property
    def author(self) -> str:
        """The name of this experiment in plans."""
        return author_of(self.name)

    @property
    def alarms(self) -> list[Violation]:
        """The alarms of guardrails."""
        return [
            Violation(
                f"{guardrail.event} ({guardrail.limit}) {guardrail.treatment}",
                guardrail.treatment,
                guardrail.action,
                f"{guardrail.treatment} exceeds the guardrail {guardrail.event}, {guardrail.limit}",
                guardrail.alarmed_at if guardrail.alarmed_at is not None else self.report.at,
            )
            for guardrail in self.report.guardrails
            if guardrail.alarm
        ]

    @property
    def standing(self) -> list[str]:
        """Alarms of guardrails from before they counted anew, that no manager has cleared."""
        return [alarm.text for alarm in self.report.alarms if alarm.kind == "standing"]

    @property
    def worse(self) -> list[Violation]:
        """The findings about treatments' primary metrics: of their time, since their words outlive the interval."""
        return [self._worse(metric) for metric in self.report.primary if metric.measured in _AGAINST]

    def _worse(self, metric: Comparison) -> Violation:
        now = words.moment(self.report.at, self.report.at, short=True)
        return Violation(
            f"worse {metric.metric} {metric.treatment} {metric.since or 0:.0f}",
            metric.treatment,
            self.experiment.on_worse,
            f"{metric.treatment} {_AGAINST[metric.measured]} {self.experiment.control} in {metric.metric} at {now} "
            f"({words.interval(metric, metric.event_test or metric.effect)}"
            + (f", of {metric.measured_on})" if metric.doubt else ")"),
            metric.since if metric.since is not None else self.report.at,
        )

    @property
    def silenced(self) -> list[tuple[Cause, str]]:
        """Reasons why the evidence does not count."""
        return [(SILENCING[alarm.kind], alarm.text) for alarm in self.report.alarms if alarm.kind in SILENCING]

    @property
    def unclear(self) -> list[str]:
        """Guardrails that alarm though the treatment may be well: control, or one caller, may be the cause."""
        return [alarm.text for alarm in self.report.alarms if alarm.kind in ("endpoint_unhealthy", "one_caller")]


class Interventions(msgspec.Struct, frozen=True):
    """Actions on which counting depends. Times are Unix seconds."""

    armed_since: float | None = None
    """Guardrails count from then on."""
    since: float = 0.0
    """The time from which units count for the next step."""
    cleared_until: float | None = None
    """A manager has cleared guardrails' alarms until then."""


def author_of(name: str) -> str:
    """The author that plans made by an experiment carry."""
    return f"experiment {name}"


ACTS = ("ramp", "intent", "done", "stop", "stop_lifted", "paused", "resumed", "stopped", "decision")
"""The journal's entries about acts."""
NOTICED = "noticed"
"""The kind of those about an alarm after which nothing is done: the revision that managers name changes with it."""
KINDS = (*ACTS, NOTICED)
"""The journal's entries with a state."""

Phase = Literal["running", "paused", "stopped"]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A wanted change of the traffic, until it is known to be applied."""

    id: int
    """The revision with which it was made."""
    kind: Literal["step", "promote", "rollback"]
    before: dict[str, int] = {}
    """The arms' weights that it replaces. A rollback replaces any."""
    after: dict[str, int] = {}
    treatments: list[str] = []
    """The treatments that lose their traffic in a rollback."""
    by: str
    reason: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one run. Times are Unix seconds."""

    started_at: float
    """The start of the run."""
    revision: int = 0
    phase: Phase = "running"
    cause: Cause = ""
    text: str = ""
    by: str | None = None
    until: float | None = None
    """The time at which a pause ends by itself."""
    weights: dict[str, int] | None = None
    """The arms' weights that the ramp set last, or found; None before it began, and while it does not run."""
    since: float = 0.0
    """The time from which units count for the next step."""
    intent: Intent | None = None
    stops: list[TrafficBlock] = []
    """In force until a plan has the same effect."""
    rolled_back: list[str] = msgspec.field(name="out", default_factory=list)
    """Treatments that were rolled back, until the experiment is resumed."""
    armed_since: float | None = None
    """Guardrails count from then on; None: from the start."""
    cleared_until: float | None = None
    """A manager has cleared guardrails' alarms until then; later ones stand when guardrails count anew."""
    handled: list[str] = msgspec.field(name="seen", default_factory=list)
    """Alarms and verdicts that have paused it before."""
    noticed: float | None = None
    """The time of the latest of guardrails' alarms that the revision covers."""

    @property
    def interventions(self) -> Interventions:
        """The actions on which counting depends."""
        return Interventions(self.armed_since, self.since, self.cleared_until)

    def entry(self, name: str, kind: str, at: float, text: str, **detail: Any) -> JournalEntry:
        """The state as an entry of the journal."""
        return JournalEntry(at, kind, name, {"text": text, **detail, "state": msgspec.to_builtins(self)})


def states_of(entries: Iterable[JournalEntry]) -> dict[str, State]:
    """Each experiment's last state, by the journal. Of two controllers at once, the one that did more."""
    states: dict[str, State] = {}
    for entry in entries:
        if entry.kind not in KINDS or entry.experiment is None:
            continue
        try:
            state = msgspec.convert(entry.detail["state"], State)
        except (KeyError, msgspec.ValidationError):
            continue
        known = states.get(entry.experiment)
        if known is None or state.revision >= known.revision:
            states[entry.experiment] = state
    return states


# Shares of arms are percentages of the endpoint's traffic; deployments that are not arms keep theirs. Treatments share
# a step equally; what cannot be divided goes to the first ones, a percent each. Control gets the rest of what the arms
# have together, and at least `holdout`.

Weights = Mapping[str, int]


def shares_of_arms(traffic: Weights, experiment: Experiment) -> dict[str, int]:
    """The arms' part of an endpoint's traffic, control first. Labels of mode `aa` share control's."""
    if experiment.mode == "aa":
        return dict.fromkeys(experiment.arms, round(traffic.get(experiment.control, 0) / len(experiment.arms)))
    return {name: traffic.get(name, 0) for name in experiment.arms}


def treated_share(arms: Weights, experiment: Experiment) -> int:
    """Percent that treatments have together."""
    return sum(arms[name] for name in experiment.treatments)


def share_at_step(step: int, arms: Weights, experiment: Experiment) -> int:
    """The share of treatments at a percentage of `ramp.steps`: never more than the arms have, less the holdout."""
    return max(0, min(step, sum(arms.values()) - experiment.holdout))


def ramp_position(ramp: Ramp, arms: Weights, experiment: Experiment) -> int | None:
    """The index of the highest step that treatments have reached; None below the first one."""
    share = treated_share(arms, experiment)
    return max(
        (index for index, step in enumerate(ramp.steps) if share_at_step(step, arms, experiment) <= share), default=None
    )


def weights_at_share(share: int, arms: Weights, experiment: Experiment, among: Sequence[str]) -> dict[str, int]:
    """The arms' weights when the treatments `among` have `share` percent together, and the others none."""
    each, rest = divmod(share, len(among))
    weights = dict.fromkeys(experiment.arms, 0)
    for number, name in enumerate(among):
        weights[name] = each + (number < rest)
    weights[experiment.control] = sum(arms.values()) - share
    return weights


def without_treatments(arms: Weights, experiment: Experiment, treatments: Sequence[str]) -> dict[str, int]:
    """The arms' weights when control has those of `treatments`, too."""
    freed = sum(arms[name] for name in treatments)
    return {**arms, **dict.fromkeys(treatments, 0), experiment.control: arms[experiment.control] + freed}
