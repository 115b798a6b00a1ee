"""`switchyard experiments export`: from a running server or a ledger's directory, into a file or standard output."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet

from app.errors import ClientError
from app.experiments.contract.journal import ExposureFormat
from app.experiments.export import Selection, as_requests, export
from app.experiments.recordings import UnreadableRecording, read
from app.experiments.replay.traces import Estimates, TraceFormat, trace
from app.experiments.storage.store import StoreError, open_store
from app.private_files import open_new
from app.request_recordings.recorder import RecordedRequest
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.router_client import RouterClient

Exposures = Callable[[Selection, ExposureFormat], Iterator[bytes]]
"""The source of exposures: yields the bytes of a file of them. Raises CommandError."""


def of_server(client: RouterClient) -> Exposures:
    """The exposures of a running server."""
    return lambda wanted, form: client.pieces("/api/exposures", {**wanted.query(), "format": form})


def of_directory(url: str) -> Exposures:
    """Recordings of a directory, or of an object store's address."""

    def pieces(wanted: Selection, form: ExposureFormat) -> Iterator[bytes]:
        try:
            yield from export(open_store(url, Path.cwd()), {**wanted.query(), "format": form}).pieces
        except StoreError as error:
            raise CommandError(f"The ledger cannot be read: {error}") from None
        except ClientError as error:
            raise CommandError(error.message) from None

    return pieces


def write_exposures(exposures: Exposures, output: Path | None, form: ExposureFormat, wanted: Selection) -> list[str]:
    """Writes a file of exposures. Returns messages about it. Raises CommandError."""
    if form == "parquet" and output is None:
        raise CommandError("Parquet needs a file: --output exposures.parquet", ExitCode.USAGE)
    lines = 0

    def counted() -> Iterator[bytes]:
        nonlocal lines
        for piece in exposures(wanted, form):
            lines += piece.count(b"\n")
            yield piece

    _write(counted(), output)
    if form == "parquet":
        assert output is not None
        lines = pyarrow.parquet.read_metadata(output).num_rows if output.stat().st_size else 0
    return [f"{max(0, lines - 1) if form == 'csv' else lines} exposures"]


def write_trace(
    exposures: Exposures, ledger: str | None, output: Path | None, form: TraceFormat, wanted: Selection
) -> list[str]:
    """Writes a trace of the exposures of `wanted.experiment`, or of the recordings in `ledger`.

    Returns messages about it. Raises CommandError.
    """
    if wanted.experiment is not None:
        requests = as_requests(exposures(wanted, "jsonl"))
    elif ledger is not None:
        requests = _recorded(ledger, wanted)
    else:
        message = "Recordings are read from a directory: --ledger .run/ledger. Or name an experiment"
        raise CommandError(f"{message}: its exposures have times and lengths, too", ExitCode.USAGE)
    endpoints = sorted({it.endpoint for it in requests})
    if len(endpoints) > 1:
        raise CommandError(f"A trace is of one endpoint; name it: --endpoint {endpoints[0]}", ExitCode.USAGE)
    estimates = Estimates()
    lines = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in trace(requests, form, estimates)]
    _write(lines, output)
    return [f"{len(lines)} requests", *estimates.notes()]


def _recorded(url: str, wanted: Selection) -> list[RecordedRequest]:
    try:
        found = read(url, Path.cwd())
    except UnreadableRecording as error:
        raise CommandError(f"{error}. Or name an experiment: its exposures have times and lengths, too") from None
    since, until = wanted.since or 0.0, wanted.until if wanted.until is not None else float("inf")
    return [it for it in found if since <= it.at < until and wanted.endpoint in (None, it.endpoint)]


def _write(pieces: Iterable[bytes], output: Path | None) -> None:
    """Writes a file for its owner alone: there are hashes of users in it, and perhaps prompts."""
    try:
        with open_new(output) if output is not None else nullcontext(sys.stdout.buffer) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python would report an error when it flushes the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}") from None
