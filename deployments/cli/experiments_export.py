"""`switchyard experiments export`: from a running server or a ledger's directory, into a file or standard output.

`switchyard experiments replay`: reads a recording, sends it again, reports.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from app.config.base import ConfigError
from app.config.experiments import Experiment
from app.config.loading import load
from app.config.schema import TASKS
from app.errors import ClientError
from app.experiments.contract.journal import ExposureFormat
from app.experiments.export import Selection, as_requests, export
from app.experiments.recordings import UnreadableRecording, read
from app.experiments.replay.runner import Replay, ReplayRefused
from app.experiments.replay.traces import NAME, Estimates, NothingToCompare, TraceFormat, config_of, section_of, trace
from app.experiments.runs import runs_of
from app.experiments.storage.journal import read_entries
from app.experiments.storage.store import StoreError, open_store
from app.private_files import open_new
from app.request_recordings.recorder import RecordedRequest
from deployments.cli.experiments_client import open_directory
from deployments.cli.options import CommandError, ExitCode, RouterClient, experiment_path

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
    endpoints = sorted({request.endpoint for request in requests})
    if len(endpoints) > 1:
        raise CommandError(f"A trace is of one endpoint; name it: --endpoint {endpoints[0]}", ExitCode.USAGE)
    estimates = Estimates()
    lines = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in trace(requests, form, estimates)]
    _write(lines, output)
    return [f"{len(lines)} requests", *estimates.notes()]


def _recorded(url: str, wanted: Selection) -> list[RecordedRequest]:
    try:
        requests = read(url, Path.cwd())
    except UnreadableRecording as error:
        raise CommandError(f"{error}. Or name an experiment: its exposures have times and lengths, too") from None
    since, until = wanted.since or 0.0, wanted.until if wanted.until is not None else float("inf")
    return [
        request for request in requests if since <= request.at < until and wanted.endpoint in (None, request.endpoint)
    ]


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


TOTAL_S = 3600.0
"""The timeout of one answer, the default of `timeouts.total_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of the command line. `config`: the file with `experiment`, whose metrics are taken; None: the
    directory of the recording may have it, too."""

    recording: str
    arms: Sequence[str]
    endpoint: str | None
    requests: int | None
    speed: float
    concurrency: int
    experiment: str | None
    config: Path | None
    out: str | None


def arms_of(text: str) -> list[str]:
    """The names in ``blue,green``. Raises CommandError."""
    arms = [name.strip() for name in text.split(",") if name.strip()]
    if len(arms) < 2 or len(set(arms)) < len(arms):
        raise CommandError(f"--arms '{text}': name two deployments or more, control first: blue,green", ExitCode.USAGE)
    return arms


def run(wanted: ReplayOptions, router: RouterClient, key: str | None, form: str) -> bytes:
    """Replays against the server of `router`; returns the report. Raises CommandError."""
    chosen = _chosen(wanted)
    router.readiness()  # the server is ready
    name, declared, prices = _declared(wanted)
    try:
        section = section_of(wanted.arms, chosen, declared)
    except NothingToCompare as error:
        raise CommandError(f"The experiment '{name}' cannot be replayed: {error}; name another one") from None
    with _directory(wanted.out) as directory:
        try:
            replay = Replay(
                name=name,
                config=config_of(name, section, directory, prices=prices, total_s=TOTAL_S),
                requests=chosen,
                url=router.url,
                key=key,
                speed=wanted.speed,
                concurrency=wanted.concurrency,
            )
            asyncio.run(replay.run())
        except KeyboardInterrupt:
            pass  # the report covers what has been answered
        except ReplayRefused as error:
            raise _refused(error) from None
        except (StoreError, ConfigError) as error:
            raise CommandError(f"The replay cannot be made: {error}") from None
        return open_directory(directory, at=None).ask("GET", experiment_path(name, "/report"), {"format": form})


def _chosen(wanted: ReplayOptions) -> list[RecordedRequest]:
    try:
        requests = read(wanted.recording, Path.cwd())
    except UnreadableRecording as error:
        raise CommandError(str(error)) from None
    endpoints = sorted({request.endpoint for request in requests})
    if wanted.endpoint is None and len(endpoints) > 1:
        raise CommandError(f"The recording has several endpoints; name one: --endpoint {endpoints[0]}", ExitCode.USAGE)
    chosen = [request for request in requests if request.endpoint == (wanted.endpoint or endpoints[0])]
    if not chosen:
        raise CommandError(f"The recording has no requests of '{wanted.endpoint}'; it has {', '.join(endpoints)}")
    if unknown := {request.task for request in chosen} - set(TASKS):
        raise CommandError(f"The recording has requests of '{min(unknown)}', which this version cannot replay")
    return chosen[: wanted.requests]


def _declared(wanted: ReplayOptions) -> tuple[str, Experiment | None, Mapping[str, Any]]:
    """The replay's name, the experiment whose metrics it takes, and the prices of deployments."""
    name = wanted.experiment
    if name is None:
        return NAME, None, {}
    if wanted.config is None and (journalled := _journalled(wanted.recording, name)) is not None:
        return name, *journalled
    file = wanted.config or Path("serve_config.yaml")
    try:
        config = load(file)
    except ConfigError as error:
        raise CommandError(f"{file}: {error}") from None
    if name not in config.experiments:
        known = ", ".join(config.experiments) or "none"
        raise CommandError(f"{file} has no experiment '{name}'; it has {known}")
    prices = {
        deployed: deployment.price.model_dump()
        for deployed, deployment in config.deployments.items()
        if deployment.price is not None
    }
    return name, config.experiments[name], prices


def _journalled(recording: str, name: str) -> tuple[Experiment, Mapping[str, Any]] | None:
    """The experiment's section and the prices, if the recording is in the ledger's directory of its server."""
    if "://" not in recording and Path(recording).is_file():
        return None
    try:
        entries = read_entries(open_store(recording, Path.cwd()))
    except StoreError:
        return None
    run = runs_of(entries).get(name)
    prices = next((entry.detail.get("prices") for entry in reversed(entries) if entry.kind == "configuration"), None)
    return (run.experiment, prices or {}) if run is not None else None


@contextmanager
def _directory(out: str | None) -> Iterator[str]:
    """Yields the directory of the replay's ledger: a new one, or one that is removed at the end."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="switchyard-replay-") as directory:
            yield directory
        return
    if "://" in out:
        raise CommandError(f"--out '{out}': name a directory of this machine", ExitCode.USAGE)
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(f"--out '{out}' exists and is not empty; name a new directory", ExitCode.USAGE)
    yield str(path.resolve())


def _refused(error: ReplayRefused) -> CommandError:
    if error.status == 401:
        text = f"{error.message}. Name a key: --key KEY, or the variable SWITCHYARD_API_KEY"
        return CommandError(text, ExitCode.DENIED)
    return CommandError(
        f"The server refuses the replay: {error.message}", ExitCode.DENIED if error.status == 403 else ExitCode.WRONG
    )
