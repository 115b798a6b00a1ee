"""Journal entries as events: times, names, numbers and a sentence. They contain no hash of a unit or a caller.

Pages of the journal's events: those after a position, an event or a time.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from app.config.experiments import Experiment
from app.experiments.automation.state import ACTS
from app.experiments.contract.journal import FeedEvent, JournalEntry, Page, time_of
from app.experiments.rendering import words
from app.experiments.runs import BEGUN

Detail = Mapping[str, Any]


def id_of(entry: JournalEntry) -> str:
    """The entry's id: the same from every controller that has read it."""
    digest = hashlib.blake2b(msgspec.json.encode(entry, order="deterministic"), digest_size=4).hexdigest()
    return f"{entry.at:.6f}-{digest}"


def event_of(entry: JournalEntry, endpoint_of: Callable[[str], str | None]) -> FeedEvent | None:
    """The entry as an event; None if it is for the controller alone, or about an unknown experiment.

    `endpoint_of` an experiment returns its endpoint.
    """
    if (form := _FORMS.get(entry.kind)) is None:
        return None
    endpoint = entry.detail.get("endpoint")
    if entry.experiment is not None:
        endpoint = endpoint_of(entry.experiment)
        if endpoint is None:
            return None
    kind, members, sentence = form
    about = {"experiment": entry.experiment, "endpoint": endpoint}
    data = {
        "at": entry.at,
        **{name: value for name, value in about.items() if value is not None},
        "text": sentence(entry.detail),
        **{name: value for name, value in members(entry.detail).items() if value is not None},
    }
    return FeedEvent(id=id_of(entry), kind=kind, endpoint=endpoint, data=data)


def recent_actions(entries: Sequence[JournalEntry], experiment: str, most: int) -> list[tuple[float, str]]:
    """The last actions on an experiment with their times (Unix seconds), the latest last."""
    own = (entry for entry in reversed(entries) if entry.experiment == experiment and entry.kind in ACTS)
    return [(entry.at, _own_text(entry.detail)) for entry in islice(own, most)][::-1]


def _own_text(detail: Detail) -> str:
    return str(detail.get("text", ""))


def _plan(detail: Detail) -> str:
    split = ", ".join(f"{name} {share} %" for name, share in detail.get("weights", {}).items())
    by = f"by {detail['by']}" if detail.get("by") else "with a file"
    until = f", until {words.moment(detail['expires'])} UTC" if detail.get("expires") else ""
    reason = f" ({detail['reason']})" if detail.get("reason") else ""
    return f"Plan {detail.get('generation')}, {by}{until}: {split}{reason}"


def _run_started(detail: Detail) -> str:
    section = detail.get("section", {})
    return f"A new run begins: {', '.join(section.get('treatments', []))} against {section.get('control')}"


def _run_state(detail: Detail) -> str:
    return "The run goes on" if detail.get("state") == "resumed" else "The run is stopped by the configuration"


def _acted(detail: Detail) -> dict[str, Any]:
    """The experiment's state after the action."""
    state = detail.get("state", {})
    stopped = [stop["deployment"] for stop in state.get("stops", [])]
    known = {name: state.get(name) or None for name in ("revision", "cause", "by", "until", "weights")}
    decision = {name: detail.get(name) for name in ("action", "reason")}
    return {"state": state.get("phase"), **known, **decision, "stopped": stopped or None}


def _named(*names: str) -> Callable[[Detail], dict[str, Any]]:
    return lambda detail: {name: detail.get(name) for name in names}


_FORMS: Mapping[str, tuple[str, Callable[[Detail], Mapping[str, Any]], Callable[[Detail], str]]] = {
    "verdict": ("verdict", _named("metric", "treatment", "verdict", "role", "no_longer"), _own_text),
    "alarm": ("alarm", _named("kind", "metric"), _own_text),
    "plan": ("plan", _named("generation", "plan", "weights", "since", "by", "reason", "overrides", "expires"), _plan),
    "run_begun": ("run", _named("started_at"), _run_started),
    "run_state": ("run", _named("state"), _run_state),
    "controller_started": ("controller", _named(), lambda detail: "The controller of experiments started"),
    **{kind: (kind, _acted, _own_text) for kind in ACTS},
}
"""The event's kind, the members that it passes on, and its sentence, by the entry's kind. Other entries are not events.
"""


PAGE = 500
"""The most entries that a page looks at for a caller."""

_SEARCHED_S = 1e-6
"""The number of decimals of the times in ids."""


def page(
    entries: Sequence[JournalEntry], declared: Mapping[str, Experiment], query: Mapping[str, str], *, size: int = PAGE
) -> Page:
    """The page that `query` asks for: entries after `position`; if that does not hold, after the event `after`; if
    there is no such event, after its time, or after the Unix time `since`. Without any, only the end of the journal.
    `size`: the most entries that it looks at.

    Raises BadRequest for an `after` or `since` that has no time.
    """
    begin = _begin(entries, query)
    shown = entries[begin : begin + size]
    end = begin + len(shown)
    last = entries[end - 1] if end else None
    endpoint_of = _endpoints(entries, declared)
    return Page(
        position=_position(entries, end),
        latest=id_of(last) if last is not None else "",
        more=end < len(entries),
        events=[event for entry in shown if (event := event_of(entry, endpoint_of)) is not None],
    )


def _begin(entries: Sequence[JournalEntry], query: Mapping[str, str]) -> int:
    """The index of the first entry to look at."""
    if (position := query.get("position")) is not None:
        number = position.rpartition(".")[2]
        index = int(number) if number.isascii() and number.isdigit() else 0
        if index <= len(entries) and position == _position(entries, index):
            return index
    for name in ("after", "since"):
        if (id := query.get(name)) is not None:
            return _after(entries, id, time_of(id, name))
    return len(entries)


def _after(entries: Sequence[JournalEntry], id: str, at: float) -> int:
    """The index after the entry of this id, or of the first one that is later than its time."""
    first_later = len(entries)
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if abs(entry.at - at) <= _SEARCHED_S and id_of(entry) == id:
            return index + 1
        if entry.at > at:
            first_later = index
    return first_later


def _position(entries: Sequence[JournalEntry], index: int) -> str:
    """The journal only grows, until another controller has read it, or this one has read earlier entries."""
    if not entries:
        return "..0"
    return f"{entries[-1].writer}.{entries[0].at:.6f}.{index}"


def _endpoints(entries: Sequence[JournalEntry], declared: Mapping[str, Experiment]) -> Callable[[str], str | None]:
    """The endpoint of an experiment: as it is declared, else as its last run was."""

    def endpoint_of(name: str) -> str | None:
        if (experiment := declared.get(name)) is not None:
            return experiment.endpoint
        begun = next((entry for entry in reversed(entries) if entry.kind == BEGUN and entry.experiment == name), None)
        endpoint = begun.detail.get("section", {}).get("endpoint") if begun is not None else None
        return endpoint if isinstance(endpoint, str) else None

    return endpoint_of
