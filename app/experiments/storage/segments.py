"""Segments: the records that the controller received from routers in about a minute, as Parquet files written together.

    exposures/date=2026-11-12/<writer>-<n>.parquet      rows; always there, written last: it commits the others
    starts/…  late/…  feedback/…  pairs/…               same date and name, if there are any; nothing without the first

`date` is the day (UTC) on which the segment was written. The footer of the first file lists the batches that the
segment holds, so that a restarted controller does not count them twice; every record names its router
(a hash) and batch. Between the writing of a merged segment and the deletion of its sources records are there twice:
readers that mind take each (router, seq) once.

The batches of one router that are done: a set of numbers, kept as a few ranges, since they come almost in order.
"""

import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.experiments.storage.columns import (
    NAMES,
    C,
    Columns,
    Exposures,
    FeedbackColumns,
    OverdueColumns,
    PairColumns,
    RowColumns,
    StartColumns,
    Tables,
    from_arrow,
    lacking,
    router_hash,
    to_arrow,
)
from app.experiments.storage.store import Damaged, FileStore, Missing
from app.exposures.wire import Lost


class Numbers:
    """A set of whole numbers."""

    def __init__(self, numbers: Iterable[int] = (), *, ranges: Iterable[Sequence[int]] = ()) -> None:
        """`numbers`: single numbers, or ranges as first and last."""
        self._ranges: list[list[int]] = []
        for first, last in sorted([*([n, n] for n in numbers), *(list(pair) for pair in ranges)]):
            if self._ranges and first <= self._ranges[-1][1] + 1:
                self._ranges[-1][1] = max(self._ranges[-1][1], last)
            else:
                self._ranges.append([first, last])

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._ranges, number, key=lambda pair: pair[0]) - 1
        return index >= 0 and number <= self._ranges[index][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self._ranges:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._ranges)

    def add(self, number: int) -> None:
        """Puts `number` into the set."""
        if self._ranges and number == self._ranges[-1][1] + 1:
            self._ranges[-1][1] = number
        elif number not in self:
            self._ranges = Numbers([number], ranges=self._ranges)._ranges

    def union(self, other: "Numbers") -> "Numbers":
        """The union."""
        return Numbers(ranges=[*self._ranges, *other._ranges])

    def update(self, other: "Numbers") -> None:
        """Puts all of `other` into the set."""
        self._ranges = self.union(other)._ranges

    def is_within(self, other: "Numbers") -> bool:
        """Whether `other` holds everything that this holds."""
        return self.union(other)._ranges == other._ranges

    def reach(self, floor: int) -> int:
        """The largest number up to which all above `floor` are in the set; `floor` itself if the next is not."""
        index = bisect_right(self._ranges, floor + 1, key=lambda pair: pair[0]) - 1
        return max(floor, self._ranges[index][1]) if index >= 0 else floor

    def dump(self) -> list[list[int]]:
        """The ranges: first and last."""
        return [list(pair) for pair in self._ranges]


EXPOSURES = "exposures"
KINDS = (EXPOSURES, "starts", "late", "feedback", "pairs")

_FOOTER = b"switchyard"
_NONE = Numbers()
_ENUMS = ("flags", "status", "reason", "finish", "primary_finish", "skipped")
_FEW_VALUES = [*NAMES, "endpoint", "plan", "weights", "router", "batch", "arrived", *_ENUMS]
_PATH = re.compile(r"[a-z]+/date=(\d{4}-\d\d-\d\d)/([^/]+)\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment's date and name. Those of one writer sort by their time."""

    date: str
    name: str

    def path(self, kind: str) -> str:
        """The path of the file of this kind."""
        return f"{kind}/date={self.date}/{self.name}.parquet"


class RouterRecord(msgspec.Struct, frozen=True):
    """One router as a controller knew it: its stored batches (`Numbers.dump`), the rows that it reported as lost."""

    stored: list[list[int]]
    lost: list[Lost]
    heard_at: float
    oldest: int = 0
    """The last `Batch.oldest`; 0: not known, as in earlier versions."""

    @property
    def rows_lost(self) -> int:
        """The rows that it reported as lost, of all deployments."""
        return sum(arm.rows for arm in self.lost)


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a segment."""

    written_at: float
    batches: dict[str, list[list[int]]]
    """The batches that it holds, by router id: ranges of numbers, first and last."""
    records: dict[str, int] = {}
    """The number of records by kind; set by `write`."""
    checksums: dict[str, int] = {}
    """The CRC-32 of each other file of the segment by kind, set by `write`: Parquet checks values, but no schema."""
    routers: dict[str, RouterRecord]
    """All routers that the controller knew, with this segment counted as stored."""
    merged: bool = False

    def stored(self) -> dict[str, list[list[int]]]:
        """The batches that were in the directory, by router id, with those of this segment."""
        return {name: router.stored for name, router in self.routers.items()}


class FirstFooter(Footer, frozen=True, kw_only=True):
    """One of the first version, whose routers' `stored` batches may be such as a router had dropped."""


class _FirstRouterState(msgspec.Struct, frozen=True):
    """`RouterRecord` in the first version: in `stored` a number up to which all are stored, then numbers above it."""

    stored: list[int]
    lost: list[Lost]
    heard_at: float


class _FirstFooter(msgspec.Struct, frozen=True, kw_only=True):
    """`Footer` in the first version: `batches` are single numbers."""

    written_at: float
    batches: dict[str, list[int]]
    records: dict[str, int] = {}
    routers: dict[str, _FirstRouterState]
    merged: bool = False

    def upgraded(self) -> Footer:
        """The footer as it is written now."""
        states = {
            name: RouterRecord(
                Numbers(router.stored[1:], ranges=[[1, router.stored[0]]]).dump(), router.lost, router.heard_at
            )
            for name, router in self.routers.items()
        }
        batches = {name: Numbers(numbers).dump() for name, numbers in self.batches.items()}
        return FirstFooter(
            written_at=self.written_at, batches=batches, records=self.records, routers=states, merged=self.merged
        )


class SegmentContent(NamedTuple):
    """A segment as it was read."""

    footer: Footer
    exposures: Exposures
    lacking: Counter[str]
    """The columns that its files do not have, since another version wrote them, with the number of their records."""


def date_of(at: float) -> str:
    """The day (UTC) of a Unix time, as folders name it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def segment_at(path: str) -> Segment | None:
    """The segment of a file; None for other files."""
    match = _PATH.fullmatch(path)
    return Segment(match[1], match[2]) if match and not match[2].startswith(".") else None


def committed(store: FileStore, since: str = "") -> list[Segment]:
    """Every segment from the day `since` on, in order. Raises StoreError."""
    listed = (segment_at(file.path) for file in store.list(EXPOSURES))
    return sorted(segment for segment in listed if segment is not None and segment.date >= since)


def write(store: FileStore, segment: Segment, exposures: Exposures, tables: Tables, footer: Footer) -> Footer:
    """Writes all files; the segment exists from the last one on. Raises StoreError; it may exist then.

    Written again, a segment replaces its former self. Returns the footer with its records counted.
    """
    parts = _by_kind(exposures)
    records = {kind: len(columns) for kind, columns in parts.items()}
    footer = msgspec.structs.replace(footer, records=records, checksums={})
    for kind, columns in parts.items():
        if len(columns) or kind == EXPOSURES:
            table = to_arrow(columns, tables)
            metadata = {_FOOTER: msgspec.json.encode(footer)} if kind == EXPOSURES else {}
            data = _parquet(table.replace_schema_metadata(metadata))
            store.write(segment.path(kind), data)
            footer.checksums[kind] = zlib.crc32(data)
    return footer


def read_footer(store: FileStore, segment: Segment) -> Footer:
    """Raises StoreError: Missing, or Damaged if another program wrote the segment."""
    with store.open(segment.path(EXPOSURES)) as file:
        return _footer(pq.ParquetFile(file).schema_arrow.metadata)


def read(store: FileStore, segment: Segment, tables: Tables) -> SegmentContent:
    """The whole segment. Raises StoreError, as `read_footer`; Missing, too, if a part of it has been deleted."""
    footer, missing = read_footer(store, segment), Counter[str]()

    def part(kind: str, columns: type[C]) -> C:
        if not footer.records.get(kind):
            return columns.empty()
        try:
            return _read(store, segment, kind, columns, tables, missing, footer.checksums.get(kind))
        except Missing:
            raise Missing(f"its {kind} are gone") from None
        except Damaged as error:
            raise Damaged(f"its {kind}: {error}") from None

    starts, rows = part("starts", StartColumns), _read(store, segment, EXPOSURES, RowColumns, tables, missing)
    late, feedback = part("late", OverdueColumns), part("feedback", FeedbackColumns)
    exposures = Exposures(starts, rows, late, feedback, part("pairs", PairColumns))
    own = _by_kind(fresh(exposures, {}, of=batches_of(footer)))
    for kind, columns in _by_kind(exposures).items():
        if len(own[kind]) != footer.records.get(kind, len(columns)):
            raise Damaged(f"its {kind} are not those that were written with it")
    return SegmentContent(footer, exposures, missing)


def _by_kind(exposures: Exposures) -> dict[str, Columns]:
    """In the order in which files are written: the last one commits the others."""
    return {
        "starts": exposures.starts,
        "late": exposures.late,
        "feedback": exposures.feedback,
        "pairs": exposures.pairs,
        EXPOSURES: exposures.rows,
    }


def fresh(exposures: Exposures, known: Mapping[int, Numbers], *, of: Mapping[int, Numbers] | None = None) -> Exposures:
    """The exposures without the records of batches that are `known` already, by router hash; with `of`, only those of
    its batches.
    """

    def is_wanted(router: int, batch: int) -> bool:
        return batch not in known.get(router, _NONE) and (of is None or batch in of.get(router, _NONE))

    return Exposures(*(_of_batches(columns, is_wanted) for columns in exposures))


def batches_of(footer: Footer) -> dict[int, Numbers]:
    """The batches that a segment holds, by router hash."""
    return {router_hash(router): Numbers(ranges=ranges) for router, ranges in footer.batches.items()}


def known_by(footer: Footer, known: dict[int, Numbers]) -> None:
    """Adds the footer's batches to `known`, by router hash."""
    for router, numbers in batches_of(footer).items():
        known.setdefault(router, Numbers()).update(numbers)


def delete(store: FileStore, segment: Segment) -> None:
    """Deletes the commit first: after a failure the remaining files are ignored. Raises StoreError."""
    for kind in KINDS:
        store.delete(segment.path(kind))


def _read(
    store: FileStore,
    segment: Segment,
    kind: str,
    columns: type[C],
    tables: Tables,
    missing: Counter[str],
    checksum: int | None = None,
) -> C:
    with store.open(segment.path(kind)) as file:
        data = file.read()
        if checksum is not None and zlib.crc32(data) != checksum:
            raise Damaged("not what was written")
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        try:
            missing.update(dict.fromkeys(lacking(table, columns), len(table)))
            return from_arrow(table, columns, tables)
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise Damaged(str(error.args[0] if error.args else error)) from error


def _footer(metadata: Mapping[bytes, bytes] | None) -> Footer:
    try:
        encoded = (metadata or {})[_FOOTER]
        try:
            return msgspec.json.decode(encoded, type=Footer)
        except msgspec.ValidationError:
            return msgspec.json.decode(encoded, type=_FirstFooter).upgraded()
    except (KeyError, IndexError, msgspec.DecodeError) as error:
        raise Damaged("not a segment of this application") from error


def _of_batches(columns: Any, is_wanted: Callable[[int, int], bool]) -> Any:
    """Records of a batch are adjacent, so that few of them need a check."""
    if not len(columns):
        return columns
    change = np.flatnonzero(np.diff(columns.batch) | np.diff(columns.router)) + 1
    begins = np.concatenate([[0], change])
    pairs = zip(columns.router[begins].tolist(), columns.batch[begins].tolist(), strict=True)
    wanted = np.array([is_wanted(router, batch) for router, batch in pairs])
    if wanted.all():
        return columns
    return columns.take(np.repeat(wanted, np.diff(np.append(begins, len(columns)))))


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    few = [name for name in _FEW_VALUES if name in table.column_names]
    pq.write_table(table, sink, compression="zstd", use_dictionary=few, write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data
