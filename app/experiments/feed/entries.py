"""Journal entries as events: times, names, numbers and a sentence. They contain no hash of a unit or a caller."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from app.experiments.acting.state import KINDS
from app.experiments.feed.wire import Event
from app.experiments.rendering import words
from app.experiments.storage.entry import Entry

Detail = Mapping[str, Any]


def id_of(entry: Entry) -> str:
    """The entry's id: the same from every controller that has read it."""
    digest = hashlib.blake2b(msgspec.json.encode(entry, order="deterministic"), digest_size=4).hexdigest()
    return f"{entry.at:.6f}-{digest}"


def event_of(entry: Entry, endpoint_of: Callable[[str], str | None]) -> Event | None:
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
    return Event(id=id_of(entry), kind=kind, endpoint=endpoint, data=data)


def recent_actions(entries: Sequence[Entry], experiment: str, most: int) -> list[tuple[float, str]]:
    """The last actions on an experiment with their times (Unix seconds), the latest last."""
    found = (it for it in reversed(entries) if it.experiment == experiment and it.kind in KINDS)
    return [(it.at, _own_text(it.detail)) for it in islice(found, most)][::-1]


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
    stopped = [it["deployment"] for it in state.get("stops", [])]
    known = {name: state.get(name) or None for name in ("revision", "cause", "by", "until", "weights")}
    decision = {name: detail.get(name) for name in ("action", "reason")}
    return {"state": state.get("phase"), **known, **decision, "stopped": stopped or None}


def _named(*names: str) -> Callable[[Detail], dict[str, Any]]:
    return lambda detail: {name: detail.get(name) for name in names}


_FORMS: Mapping[str, tuple[str, Callable[[Detail], Mapping[str, Any]], Callable[[Detail], str]]] = {
    "verdict": ("verdict", _named("metric", "treatment", "verdict", "role"), _own_text),
    "alarm": ("alarm", _named("kind", "metric"), _own_text),
    "plan": ("plan", _named("generation", "plan", "weights", "since", "by", "reason", "overrides", "expires"), _plan),
    "run_begun": ("run", _named("started_at"), _run_started),
    "run_state": ("run", _named("state"), _run_state),
    "controller_started": ("controller", _named(), lambda detail: "The controller of experiments started"),
    **{kind: (kind, _acted, _own_text) for kind in KINDS},
}
"""The event's kind, the members that it passes on, and its sentence, by the entry's kind. Other entries are not events.
"""
