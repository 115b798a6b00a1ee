"""Exposures as CSV, JSON lines or Parquet."""

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from app.experiments.columns import RowColumns, Tables
from app.experiments.export.formats import ExposureFormat
from app.experiments.storage.arrow import to_arrow
from app.exposures.wire import Failure, Finish, Flag, Reason

_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": Finish, "error": Failure}
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
        words = {it.value: it.name.lower() for it in _ENUMS[name]}
        return pa.array([words[value] for value in column.to_pylist()], pa.string())
    if name == "flags":
        return pa.array([_flags(value) for value in column.to_pylist()], pa.string())
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _flags(value: int) -> str:
    return " ".join(flag.name.lower() for flag in Flag if flag & value and flag.name)
