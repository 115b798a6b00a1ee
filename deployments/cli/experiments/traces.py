"""`switchyard experiments export` in the formats of benchmarks."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from app.experiments.columns import RowColumns, Tables
from app.experiments.recordings.reading import UnreadableRecording, read
from app.experiments.replay.traces import Estimates, TraceFormat, trace
from app.ledger.recordings.wire import RecordedRequest
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.experiments.exposures import Part, chosen_rows


def write(url: str, output: Path | None, form: TraceFormat, part: Part) -> list[str]:
    """Writes a trace of the directory's recordings, or of the exposures of `part.experiment`, to a file or to standard
    output. Returns what there is to say of it. Raises CommandError."""
    requests = _exposed(url, part) if part.experiment is not None else _recorded(url, part)
    endpoints = sorted({it.endpoint for it in requests})
    if len(endpoints) > 1:
        raise CommandError(f"A trace is of one endpoint; name it: --endpoint {endpoints[0]}", ExitCode.USAGE)
    estimates = Estimates()
    try:
        if output is None:
            count = _lines(sys.stdout.buffer, requests, form, estimates)
        else:
            with output.open("wb") as file:
                count = _lines(file, requests, form, estimates)
    except BrokenPipeError:  # as in `exposures`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return []
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from None
    return [f"{count} requests", *estimates.notes()]


def _lines(file: IO[bytes], requests: Sequence[RecordedRequest], form: TraceFormat, estimates: Estimates) -> int:
    count = 0
    for line in trace(requests, form, estimates):
        file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        count += 1
    file.flush()
    return count


def _recorded(url: str, part: Part) -> list[RecordedRequest]:
    try:
        found = read(url, Path.cwd())
    except UnreadableRecording as error:
        raise CommandError(f"{error}. Or name an experiment: its exposures have times and lengths, too") from None
    since, until = part.since or 0.0, part.until if part.until is not None else float("inf")
    return [it for it in found if since <= it.at < until and part.endpoint in (None, it.endpoint)]


def _exposed(url: str, part: Part) -> list[RecordedRequest]:
    return sorted(
        (it for rows, tables in chosen_rows(url, part) for it in _requests(rows, tables)), key=lambda it: it.at
    )


def _requests(rows: RowColumns, tables: Tables) -> Iterator[RecordedRequest]:
    for at in range(len(rows)):
        plan, limit = tables.plans[rows.plan[at]], rows.max_tokens[at]
        yield RecordedRequest(
            at=float(rows.at[at]),
            endpoint=plan.endpoint,
            plan=plan.id,
            dialect=tables.names[rows.dialect[at]],
            task=tables.names[rows.task[at]],
            stream=bool(rows.stream[at]),
            unit=f"{int(rows.unit[at]):016x}",
            turn=int(rows.turn[at]),
            status=int(rows.status[at]),
            prompt_bytes=int(rows.prompt_bytes[at]),
            prompt_tokens=_count(rows.prompt_tokens[at]),
            completion_tokens=_count(rows.completion_tokens[at]),
            parameters={} if np.isnan(limit) else {"max_tokens": int(limit)},
        )


def _count(value: float) -> int | None:
    return None if np.isnan(value) else int(value)
