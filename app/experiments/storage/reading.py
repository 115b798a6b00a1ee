"""Reads the content of the ledger's directory, also while another controller merges or deletes segments.

Nothing is left out silently: `Gaps` has what could not be read, and what a file of another version does not have.

Exposures as plain data, for answers in JSON.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage import journal, segments
from app.experiments.storage import journal as snapshots
from app.experiments.storage.columns import NAMES, Exposures, FeedbackColumns, RowColumns, Tables, from_arrow
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.segments import EXPOSURES, Footer, Numbers, Segment, date_of
from app.experiments.storage.store import Damaged, FileStore, Missing, StoreError
from app.exposures.wire import Failure, FeedbackItem, FinishCode, Flag, Reason

_EARLY_S = 3600.0
UNREADABLE = (Missing, Damaged)
"""Errors of a segment that another controller has merged or deleted, or that is not ours."""


@dataclass(slots=True)
class Gaps:
    """What reading has left out."""

    damaged: dict[str, str] = field(default_factory=dict)
    """Files that cannot be read, each with the reason."""
    lacking: dict[str, Counter[str]] = field(default_factory=dict)
    """By day, columns that files of another version do not have, with the number of their records."""

    def since(self, at: float) -> list[str]:
        """The damaged files that may hold something recorded since a Unix time, each with the reason."""
        day = date_of(at)
        dated = {path: segments.segment_at(path) for path in sorted(self.damaged)}
        return [
            f"{path}: {self.damaged[path]}" for path, segment in dated.items() if segment is None or segment.date >= day
        ]

    def lacking_since(self, at: float) -> Counter[str]:
        """The columns that records lack which were stored since a Unix time, with the number of these records."""
        return sum((lacking for day, lacking in self.lacking.items() if day >= date_of(at)), Counter[str]())

    def note(self, segment: Segment, lacking: Counter[str]) -> None:
        """Adds what the records of a segment lack."""
        if lacking:
            self.lacking.setdefault(segment.date, Counter()).update(lacking)

    def add(self, segment: Segment, error: StoreError) -> None:
        """Adds a segment that could not be read."""
        self.damaged[segment.path(EXPOSURES)] = str(error)


class Contents(NamedTuple):
    """Everything but the exposures."""

    entries: list[JournalEntry]
    snapshots: dict[str, AnalysisSnapshot]
    segments: set[Segment]
    footers: dict[Segment, Footer]
    """Footers of the last two days that have any: they hold everything that a controller knew of routers."""
    gaps: Gaps
    """Files of the journal that cannot be read. What is wrong with segments, `history` finds."""


def contents(store: FileStore) -> Contents:
    """Raises StoreError."""
    committed, gaps = segments.committed(store), Gaps()
    days = sorted({segment.date for segment in committed})[-2:]
    footers = dict(_footers(store, days[0], Gaps())) if days else {}
    return Contents(journal.read(store, gaps.damaged), snapshots.latest(store), {*committed, *footers}, footers, gaps)


def history(
    store: FileStore,
    since: float,
    tables: Tables,
    known: dict[int, Numbers],
    gaps: Gaps,
    *,
    of: Mapping[int, Numbers] | None = None,
) -> Iterator[Exposures]:
    """Exposures stored since a Unix time, and maybe before: each batch once, in the order of writing.

    Batches by router hash: only those of `of` if it is given, and not those that are `known`, to which the found ones
    are added. What cannot be read is added to `gaps`. Raises StoreError.
    """
    failed: dict[Segment, tuple[Footer, StoreError]] = {}
    for segment, footer in _footers(store, date_of(since), gaps):
        if not _is_known(footer, known):
            try:
                content = segments.read(store, segment, tables)
            except UNREADABLE as error:
                failed[segment] = footer, error
                continue  # the segment into which it was merged comes later
            gaps.note(segment, content.lacking)
            yield segments.fresh(content.exposures, known, of=of)
            segments.known_by(footer, known)
    still_there = {*segments.committed(store, date_of(since))} if failed else set()
    for segment, (footer, cause) in failed.items():
        if segment in still_there and not _is_known(footer, known):
            gaps.add(segment, cause)


def unknown(
    store: FileStore, listed: list[Segment], tables: Tables, known: dict[int, Numbers], gaps: Gaps
) -> Iterator[tuple[Segment, Footer, Exposures | None]]:
    """The segments among `found` that can be read, each with the exposures of batches that are not `known`. The damaged
    ones are added to `gaps`.
    """
    for segment, footer in _read_footers(store, listed, gaps):
        try:
            content = None if _is_known(footer, known) else segments.read(store, segment, tables)
        except Missing:
            continue
        except Damaged as error:
            gaps.add(segment, error)
            continue
        if content is not None:
            gaps.note(segment, content.lacking)
        yield segment, footer, segments.fresh(content.exposures, known) if content is not None else None
        segments.known_by(footer, known)


def find(store: FileStore, request: int) -> tuple[RowColumns, Tables] | None:
    """The rows of a request id's hash, or of an answer id's, in the newest segment that has any. Raises StoreError."""
    for segment in reversed(segments.committed(store)):
        tables = Tables()
        try:
            with store.open(segment.path(EXPOSURES)) as file:
                parquet = pq.ParquetFile(file)
                ids = parquet.read(columns=["request", "answer"])
                hits = (ids.column("request").to_numpy() == request) | (ids.column("answer").to_numpy() == request)
                if hits.any():
                    rows = from_arrow(parquet.read().take(np.flatnonzero(hits)), RowColumns, tables)
                    return rows, tables
        except UNREADABLE:
            continue
    return None


def scores(store: FileStore, rows: RowColumns) -> list[FeedbackItem]:
    """The stored scores of these requests, the oldest first. Raises StoreError."""
    items: list[FeedbackItem] = []
    # A score may come a little before its request has ended.
    for segment in segments.committed(store, date_of(float(rows.at.min()) - _EARLY_S)):
        tables = Tables()
        try:
            with store.open(segment.path("feedback")) as file:
                columns = from_arrow(pq.read_table(file), FeedbackColumns, tables)
        except UNREADABLE:
            continue  # most segments have no scores
        items += columns.take(is_of(columns, rows)).items(tables)
    return sorted(items, key=lambda item: item.at)


def is_of(feedback: FeedbackColumns, rows: RowColumns) -> npt.NDArray[np.bool_]:
    """The mask of the scores for one of these requests, by the id of either the request or its answer."""
    return np.isin(feedback.request, np.concatenate([rows.request, rows.answer]))


def _footers(store: FileStore, since: str, gaps: Gaps) -> Iterator[tuple[Segment, Footer]]:
    """Footers of all segments, listed until no new one appears: a segment that was merged in the meantime is found in
    the merged one.
    """
    seen: set[Segment] = set()
    while new := [segment for segment in segments.committed(store, since) if segment not in seen]:
        yield from _read_footers(store, new, gaps)
        seen.update(new)


def _read_footers(store: FileStore, listed: list[Segment], gaps: Gaps) -> list[tuple[Segment, Footer]]:
    footers: list[tuple[Segment, Footer]] = []
    for segment in listed:
        try:
            footers.append((segment, segments.read_footer(store, segment)))
        except Missing:
            continue
        except Damaged as error:
            gaps.add(segment, error)
    return sorted(footers, key=lambda item: (item[1].written_at, item[0]))


def _is_known(footer: Footer, known: Mapping[int, Numbers]) -> bool:
    nothing = Numbers()
    return all(numbers.is_within(known.get(router, nothing)) for router, numbers in segments.batches_of(footer).items())


_MANAGER = f"{0:016x}"
_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": FinishCode, "error": Failure}


def exposures_of(rows: RowColumns, tables: Tables) -> list[dict[str, Any]]:
    """One object for each row, by time of arrival. Codes are words there, hashes 16 hexadecimal digits."""
    documents = [
        {name: _plain(name, getattr(rows, name)[index].item(), tables) for name in rows.names()}
        for index in range(len(rows))
    ]
    return sorted(documents, key=lambda row: float(row["at"]))


def scored(exposures: list[dict[str, Any]], items: Iterable[FeedbackItem] | None) -> list[dict[str, Any]]:
    """The exposures with `feedback`: the last score of each metric, of those by its caller or a manager.

    `items` are in the order in which they came, None if they could not be read; `feedback` is then None, too.
    """
    if items is None:
        return [{**row, "feedback": None} for row in exposures]
    scores = [(f"{item.request:016x}", f"{item.caller:016x}", item.metric, item.value) for item in items]
    return [
        {
            **row,
            "feedback": {
                metric: value
                for request, caller, metric, value in scores
                if request in (row["request"], row["answer"]) and caller in (_MANAGER, row["caller"])
            },
        }
        for row in exposures
    ]


def _plain(name: str, value: Any, tables: Tables) -> Any:
    if name == "plan":
        plan = tables.plans[value]
        return {"endpoint": plan.endpoint, "id": plan.id, "weights": plan.weights}
    if name in NAMES:
        return tables.names[value] if value >= 0 else None
    if name in _HASHES:
        return f"{value:016x}"
    if name in _ENUMS:
        return _ENUMS[name](value).name.lower()
    if name == "flags":
        return [flag.name.lower() for flag in Flag if flag & value and flag.name]
    return None if isinstance(value, float) and math.isnan(value) else value
