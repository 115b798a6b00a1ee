"""An export of a ledger: its query, and its bytes.

- Exposures as CSV, JSON lines or Parquet.
- Selects the exposures to export, and finds them in the ledger's directory.
- Exported exposures as requests of a recording, of which traces are made: times and lengths, no texts.
"""

import io
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from app.errors import BadRequest, NotFound
from app.experiments.contract.journal import EXPOSURE_FORMATS, MEDIA_TYPES, ExposureFormat, JournalEntry
from app.experiments.contract.query import choice, unix_seconds
from app.experiments.runs import ExperimentRun, runs_of
from app.experiments.storage import directory
from app.experiments.storage.columns import Bool, RowColumns, Tables, to_arrow
from app.experiments.storage.store import FileStore
from app.exposures.controller_client import Export
from app.exposures.wire import Failure, FinishCode, Flag, Reason
from app.request_recordings.recorder import RecordedRequest
from app.telemetry.logs import event

_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": FinishCode, "error": Failure}
_JSON_ROWS = 1000


def encoded(pieces: Iterable[tuple[RowColumns, Tables]], form: ExposureFormat) -> Iterator[bytes]:
    """The file's bytes, piece by piece. Without any row it is empty."""
    tables = (_table(rows, tables) for rows, tables in pieces)
    return _json_lines(tables) if form == "jsonl" else _written(tables, form)


def _json_lines(tables: Iterator[pa.Table]) -> Iterator[bytes]:
    for table in tables:
        for batch in table.to_batches(_JSON_ROWS):
            yield b"".join(json.dumps(row).encode() + b"\n" for row in batch.to_pylist())


def _written(tables: Iterator[pa.Table], form: ExposureFormat) -> Iterator[bytes]:
    sink, writer = _Sink(), None
    for table in tables:
        if writer is None:
            writer = (pa.csv.CSVWriter if form == "csv" else pa.parquet.ParquetWriter)(sink, table.schema)
        writer.write_table(table)
        yield sink.taken()
    if writer is not None:
        writer.close()
        yield sink.taken()


class _Sink(io.RawIOBase):
    """A write-only file whose content is removed as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


def _table(rows: RowColumns, tables: Tables) -> pa.Table:
    """The table for people: hashes as 16 hexadecimal digits, as the API shows them, codes as words."""
    table = to_arrow(rows, tables)
    return pa.table({name: _readable(name, table.column(name)) for name in table.column_names})


def _readable(name: str, column: pa.ChunkedArray) -> Any:
    if name in _HASHES:
        return pa.array([f"{value:016x}" for value in column.to_pylist()], pa.string())
    if name in _ENUMS:
        words = {member.value: member.name.lower() for member in _ENUMS[name]}
        return pa.array([words[value] for value in column.to_pylist()], pa.string())
    if name == "flags":
        return pa.array([_flags(value) for value in column.to_pylist()], pa.string())
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _flags(value: int) -> str:
    return " ".join(flag.name.lower() for flag in Flag if flag & value and flag.name)


_log = logging.getLogger("switchyard")


class Selection(NamedTuple):
    """`since` and `until`, which is not included, are Unix seconds of a request's arrival."""

    experiment: str | None = None
    """The experiment of whose last run exposures are exported: its endpoint's, by its arms, since its start, without
    pauses.
    """
    endpoint: str | None = None
    since: float | None = None
    until: float | None = None

    def query(self) -> dict[str, str]:
        """The parameters that `selection` reads this from."""
        given = {"experiment": self.experiment, "endpoint": self.endpoint}
        times = {"since": self.since, "until": self.until}
        return {name: value for name, value in given.items() if value is not None} | {
            name: repr(time) for name, time in times.items() if time is not None
        }


def selection(query: Mapping[str, str]) -> Selection:
    """The selection that a query asks for. Raises BadRequest with the parameter's name."""
    return Selection(query.get("experiment"), query.get("endpoint"), _time(query, "since"), _time(query, "until"))


def selected(store: FileStore, wanted: Selection) -> Iterator[tuple[RowColumns, Tables]]:
    """The rows, piece by piece, in the order of writing. Raises StoreError; NotFound if the experiment never ran."""
    tables = Tables()
    contents = directory.contents(store)
    run = _run(contents.entries, wanted.experiment) if wanted.experiment is not None else None
    since = max(wanted.since or 0.0, run.started_at if run is not None else 0.0)
    for exposures in directory.history(store, since, tables, {}, contents.gaps):
        rows = exposures.rows.take(_is_selected(exposures.rows, tables, wanted._replace(since=since), run))
        if len(rows):
            yield rows, tables
    if damaged := contents.gaps.since(since):
        _log.warning(
            "Parts of the ledger are missing, and so in the export: %s",
            "; ".join(damaged),
            extra=event("export_incomplete", files=len(damaged)),
        )


def _time(query: Mapping[str, str], name: str) -> float | None:
    if (text := query.get(name)) is None:
        return None
    try:
        return unix_seconds(text)
    except ValueError:
        message = f"{name}: '{text}' is not a valid time: Unix seconds, or ISO 8601 (UTC)"
        raise BadRequest(message, param=name) from None


def _run(entries: Sequence[JournalEntry], experiment: str) -> ExperimentRun:
    runs = runs_of(entries)
    if experiment not in runs:
        known = ", ".join(runs) or "none"
        raise NotFound(f"The ledger has no run of '{experiment}'; it has {known}", param="experiment")
    return runs[experiment]


def _is_selected(rows: RowColumns, tables: Tables, wanted: Selection, run: ExperimentRun | None) -> Bool:
    chosen = rows.at >= (wanted.since or 0.0)
    if wanted.until is not None:
        chosen &= rows.at < wanted.until
    endpoints = np.array([plan.endpoint for plan in tables.plans], np.str_)
    for endpoint in (wanted.endpoint, run.experiment.endpoint if run is not None else None):
        if endpoint is not None:
            chosen &= (endpoints == endpoint)[rows.plan]
    if run is not None:
        arms = run.experiment.arms if run.experiment.mode == "ab" else (run.experiment.control,)
        chosen &= np.isin(rows.assigned, [tables.name(arm) for arm in arms])
        if (covered := run.covers(rows.at)) is not None:
            chosen &= covered
    return chosen


def export(store: FileStore, query: Mapping[str, str]) -> Export:
    """The export that a query asks for: `experiment`, `endpoint`, `since`, `until`, `format`.

    The rows are those of the directory: what was recorded within the last minute may not be there yet. Raises
    BadRequest, and while it is read StoreError, and NotFound if the experiment never ran.
    """
    form = next(form for form in EXPOSURE_FORMATS if form == choice(query, "format", EXPOSURE_FORMATS))
    return Export(MEDIA_TYPES[form], encoded(selected(store, selection(query)), form))


def as_requests(pieces: Iterable[bytes]) -> list[RecordedRequest]:
    """The requests of an export in JSON lines, in the order of arrival. `pieces` may end anywhere."""
    return sorted((_request(line) for line in _lines(pieces)), key=lambda request: request.at)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _request(line: bytes) -> RecordedRequest:
    row = json.loads(line)
    return RecordedRequest(
        at=row["at"],
        endpoint=row["endpoint"],
        plan=row["plan"],
        dialect=row["dialect"],
        task=row["task"],
        stream=row["stream"],
        unit=row["unit"],
        turn=row["turn"],
        status=row["status"],
        prompt_bytes=row["prompt_bytes"],
        prompt_tokens=_count(row["prompt_tokens"]),
        completion_tokens=_count(row["completion_tokens"]),
        parameters={} if row["max_tokens"] is None else {"max_tokens": int(row["max_tokens"])},
    )


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)
