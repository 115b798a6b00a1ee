"""Exports a ledger's exposures: CSV, JSON lines or Parquet."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from app.experiments.columns import RowColumns, Tables
from app.experiments.storage import reading
from app.experiments.storage.arrow import to_arrow
from app.experiments.storage.store import StoreError, open_store
from app.ledger.wire import Failure, Finish, Flag, Reason
from deployments.cli.errors import CommandError, ExitCode

Form = Literal["csv", "jsonl", "parquet"]

_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": Finish, "error": Failure}


def write(
    url: str, output: Path | None, form: Form, *, endpoint: str | None, since: float | None, until: float | None
) -> int:
    """Writes the exposures that arrived from `since` to before `until` (Unix seconds); returns how many.

    Raises CommandError.
    """
    if form == "parquet" and output is None:
        raise CommandError("Parquet needs a file: --output exposures.parquet", ExitCode.USAGE)
    rows = 0
    try:
        store, tables = open_store(url, Path.cwd()), Tables()
        with _writer(form, output) as write_table:
            for exposures in reading.history(store, since or 0.0, tables, {}):
                table = _table(_between(exposures.rows, since, until), tables, endpoint)
                if table.num_rows:
                    write_table(table)
                    rows += table.num_rows
    except StoreError as error:
        raise CommandError(f"The ledger cannot be read: {error}") from None
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from None
    return rows


def _between(rows: RowColumns, since: float | None, until: float | None) -> RowColumns:
    inside = np.ones(len(rows), np.bool_)
    if since is not None:
        inside &= rows.at >= since
    if until is not None:
        inside &= rows.at < until
    return rows if inside.all() else rows.take(inside)


def _table(rows: RowColumns, tables: Tables, endpoint: str | None) -> pa.Table:
    """As people read it: hashes as 16 hexadecimal digits, as the API shows them, codes as words."""
    table = to_arrow(rows, tables)
    columns = {name: _readable(name, table.column(name)) for name in table.column_names}
    readable = pa.table(columns)
    return readable if endpoint is None else readable.filter(pc.equal(readable.column("endpoint"), endpoint))


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


@contextmanager
def _writer(form: Form, output: Path | None) -> Iterator[Callable[[pa.Table], None]]:
    """What writes one table after the other. Without any there is an empty file."""
    if output is None:
        yield from _written(form, sys.stdout.buffer)
        return
    with output.open("wb") as file:
        yield from _written(form, file)


def _written(form: Form, file: IO[bytes]) -> Iterator[Callable[[pa.Table], None]]:
    if form == "jsonl":
        yield lambda table: file.writelines(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
        return
    writers: list[Any] = []
    writer = pa.csv.CSVWriter if form == "csv" else pa.parquet.ParquetWriter

    def write_table(table: pa.Table) -> None:
        if not writers:
            writers.append(writer(file, table.schema))
        writers[0].write_table(table)

    try:
        yield write_table
    finally:
        for it in writers:
            it.close()
    file.flush()
