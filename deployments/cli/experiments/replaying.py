"""`switchyard experiments replay`: reads a recording, sends it again, reports."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config.base import ConfigError
from app.config.experiments import Experiment
from app.config.loading import load
from app.config.schema import TASKS
from app.experiments.recordings import UnreadableRecording, read
from app.experiments.replay.runner import Replay, ReplayRefused
from app.experiments.replay.traces import NAME, NothingToCompare, config_of, section_of
from app.experiments.runs import runs_of
from app.experiments.storage import journal
from app.experiments.storage.store import StoreError, open_store
from app.request_recordings.recorder import RecordedRequest
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.experiments.directory import open_directory
from deployments.cli.experiments.source import path_of
from deployments.cli.router_client import RouterClient

TOTAL_S = 3600.0
"""The timeout of one answer, the default of `timeouts.total_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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


def run(wanted: Wanted, router: RouterClient, key: str | None, form: str) -> bytes:
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
        return open_directory(directory, at=None).ask("GET", path_of(name, "/report"), {"format": form})


def _chosen(wanted: Wanted) -> list[RecordedRequest]:
    try:
        found = read(wanted.recording, Path.cwd())
    except UnreadableRecording as error:
        raise CommandError(str(error)) from None
    endpoints = sorted({it.endpoint for it in found})
    if wanted.endpoint is None and len(endpoints) > 1:
        raise CommandError(f"The recording has several endpoints; name one: --endpoint {endpoints[0]}", ExitCode.USAGE)
    chosen = [it for it in found if it.endpoint == (wanted.endpoint or endpoints[0])]
    if not chosen:
        raise CommandError(f"The recording has no requests of '{wanted.endpoint}'; it has {', '.join(endpoints)}")
    if unknown := {it.task for it in chosen} - set(TASKS):
        raise CommandError(f"The recording has requests of '{min(unknown)}', which this version cannot replay")
    return chosen[: wanted.requests]


def _declared(wanted: Wanted) -> tuple[str, Experiment | None, Mapping[str, Any]]:
    """The replay's name, the experiment whose metrics it takes, and the prices of deployments."""
    name = wanted.experiment
    if name is None:
        return NAME, None, {}
    if wanted.config is None and (found := _journalled(wanted.recording, name)) is not None:
        return name, *found
    file = wanted.config or Path("serve_config.yaml")
    try:
        config = load(file)
    except ConfigError as error:
        raise CommandError(f"{file}: {error}") from None
    if name not in config.experiments:
        known = ", ".join(config.experiments) or "none"
        raise CommandError(f"{file} has no experiment '{name}'; it has {known}")
    prices = {it: found.price.model_dump() for it, found in config.deployments.items() if found.price is not None}
    return name, config.experiments[name], prices


def _journalled(recording: str, name: str) -> tuple[Experiment, Mapping[str, Any]] | None:
    """The experiment's section and the prices, if the recording is in the ledger's directory of its server."""
    if "://" not in recording and Path(recording).is_file():
        return None
    try:
        entries = journal.read(open_store(recording, Path.cwd()))
    except StoreError:
        return None
    run = runs_of(entries).get(name)
    prices = next((it.detail.get("prices") for it in reversed(entries) if it.kind == "configuration"), None)
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
