"""The state of acting on one experiment, as the journal keeps it: every entry has the whole state after it."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from app.experiments.acting.facts import Interventions
from app.experiments.storage.entry import Entry
from app.experiments.summary import Cause
from app.exposures.wire import Stop

KINDS = ("ramp", "intent", "done", "stop", "stop_lifted", "paused", "resumed", "stopped", "decision")
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
    stops: list[Stop] = []
    """In force until a plan has the same effect."""
    out: list[str] = []
    """Treatments that were rolled back, until the experiment is resumed."""
    armed_since: float | None = None
    """Guardrails count from then on; None: from the start."""
    seen: list[str] = []
    """Alarms and verdicts that have paused it before."""

    @property
    def interventions(self) -> Interventions:
        """The actions on which counting depends."""
        return Interventions(self.armed_since, self.since)

    def entry(self, name: str, kind: str, at: float, text: str, **detail: Any) -> Entry:
        """The state as an entry of the journal."""
        return Entry(at, kind, name, {"text": text, **detail, "state": msgspec.to_builtins(self)})


def states_of(entries: Iterable[Entry]) -> dict[str, State]:
    """Each experiment's last state, by the journal. Of two controllers at once, the one that did more."""
    found: dict[str, State] = {}
    for entry in entries:
        if entry.kind not in KINDS or entry.experiment is None:
            continue
        try:
            state = msgspec.convert(entry.detail["state"], State)
        except (KeyError, msgspec.ValidationError):
            continue
        known = found.get(entry.experiment)
        if known is None or state.revision >= known.revision:
            found[entry.experiment] = state
    return found
