"""Exports a ledger's exposures: CSV, JSON lines or Parquet."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from app.experiments.columns import Bool, RowColumns, Tables
from app.experiments.runs import Run, runs_of
from app.experiments.storage import journal, reading
from app.experiments.storage.arrow import to_arrow
from app.experiments.storage.store import Store, StoreError, open_store
from app.ledger.wire import Failure, Finish, Flag, Reason
from deployments.cli.errors import CommandError, ExitCode

Form = Literal["csv", "jsonl", "parquet"]

_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": Finish, "error": Failure}


class Part(NamedTuple):
    """Which exposures. `since` and `until`, which is not included, are in Unix seconds of their arrival."""

    experiment: str | None = None
    """Those of its last run: its endpoint's, by its arms, since its start, without pauses."""
    endpoint: str | None = None
    since: float | None = None
    until: float | None = None


def write(url: str, output: Path | None, form: Form, part: Part) -> int:
    """Writes the exposures to a file or to standard output; returns how many. Raises CommandError."""
    if form == "parquet" and output is None:
        raise CommandError("Parquet needs a file: --output exposures.parquet", ExitCode.USAGE)
    rows = 0
    try:
        with _writer(form, output) as write_table:
            for chosen, tables in chosen_rows(url, part):
                write_table(_table(chosen, tables))
                rows += len(chosen)
    except BrokenPipeError:
        # Whoever read it, such as `head`, has enough. What is buffered has nowhere to go, and Python would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from None
    return rows


def chosen_rows(url: str, part: Part) -> Iterator[tuple[RowColumns, Tables]]:
    """The rows of a ledger's directory, piece by piece. Raises CommandError."""
    try:
        store, tables = open_store(url, Path.cwd()), Tables()
        run = _run(store, part.experiment) if part.experiment is not None else None
        since = max(part.since or 0.0, run.started_at if run is not None else 0.0)
        for exposures in reading.history(store, since, tables, {}):
            chosen = exposures.rows.take(_chosen(exposures.rows, tables, part._replace(since=since), run))
            if len(chosen):
                yield chosen, tables
    except StoreError as error:
        raise CommandError(f"The ledger cannot be read: {error}") from None


def _run(store: Store, experiment: str) -> Run:
    runs = runs_of(journal.read(store))
    if experiment not in runs:
        raise CommandError(f"The ledger has no run of '{experiment}'; it has {', '.join(runs) or 'none'}")
    return runs[experiment]


def _chosen(rows: RowColumns, tables: Tables, part: Part, run: Run | None) -> Bool:
    chosen = rows.at >= (part.since or 0.0)
    if part.until is not None:
        chosen &= rows.at < part.until
    endpoints = np.array([plan.endpoint for plan in tables.plans], np.str_)
    for endpoint in (part.endpoint, run.experiment.endpoint if run is not None else None):
        if endpoint is not None:
            chosen &= (endpoints == endpoint)[rows.plan]
    if run is not None:
        arms = run.experiment.arms if run.experiment.mode == "ab" else (run.experiment.control,)
        chosen &= np.isin(rows.assigned, [tables.name(arm) for arm in arms])
        if (covered := run.covers(rows.at)) is not None:
            chosen &= covered
    return chosen


def _table(rows: RowColumns, tables: Tables) -> pa.Table:
    """As people read it: hashes as 16 hexadecimal digits, as the API shows them, codes as words."""
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
