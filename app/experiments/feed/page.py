"""Pages of the journal's events: those after a position, an event or a time."""

from collections.abc import Callable, Mapping, Sequence

from app.config.experiments import Experiment
from app.experiments.feed.entries import event_of, id_of
from app.experiments.feed.wire import Page, time_of
from app.experiments.runs import BEGUN
from app.experiments.storage.entry import Entry

PAGE = 500
"""The most entries that one page looks at."""

_SEARCHED_S = 1e-6
"""The number of decimals of the times in ids."""


def page(entries: Sequence[Entry], declared: Mapping[str, Experiment], query: Mapping[str, str]) -> Page:
    """The page that `query` asks for: entries after `position`; if that does not hold, after the event `after`; if
    there is no such event, after its time, or after the Unix time `since`. Without any, only the end of the journal.

    Raises BadRequest for an `after` or `since` that has no time.
    """
    begin = _begin(entries, query)
    shown = entries[begin : begin + PAGE]
    end = begin + len(shown)
    last = entries[end - 1] if end else None
    endpoint_of = _endpoints(entries, declared)
    return Page(
        position=_position(entries, end),
        latest=id_of(last) if last is not None else "",
        more=end < len(entries),
        events=[event for it in shown if (event := event_of(it, endpoint_of)) is not None],
    )


def _begin(entries: Sequence[Entry], query: Mapping[str, str]) -> int:
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


def _after(entries: Sequence[Entry], id: str, at: float) -> int:
    """The index after the entry of this id, or of the first one that is later than its time."""
    first_later = len(entries)
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if abs(entry.at - at) <= _SEARCHED_S and id_of(entry) == id:
            return index + 1
        if entry.at > at:
            first_later = index
    return first_later


def _position(entries: Sequence[Entry], index: int) -> str:
    """The journal only grows, until another controller has read it, or this one has read earlier entries."""
    if not entries:
        return "..0"
    return f"{entries[-1].writer}.{entries[0].at:.6f}.{index}"


def _endpoints(entries: Sequence[Entry], declared: Mapping[str, Experiment]) -> Callable[[str], str | None]:
    """The endpoint of an experiment: as it is declared, else as its last run was."""

    def endpoint_of(name: str) -> str | None:
        if (experiment := declared.get(name)) is not None:
            return experiment.endpoint
        begun = next((it for it in reversed(entries) if it.kind == BEGUN and it.experiment == name), None)
        endpoint = begun.detail.get("section", {}).get("endpoint") if begun is not None else None
        return endpoint if isinstance(endpoint, str) else None

    return endpoint_of
