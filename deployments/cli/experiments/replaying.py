"""`switchyard experiments replay`: reads a recording, sends it again, reports."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.config.base import ConfigError
from app.config.experiments import Experiment
from app.config.schema import Config
from app.config.serve_file import load
from app.experiments.recordings.reading import UnreadableRecording, read
from app.experiments.replay.client import ReplayRefused
from app.experiments.replay.requests import replayed
from app.experiments.replay.runner import Replay
from app.experiments.replay.section import NAME, NothingToCompare, config_of, section_of
from app.experiments.storage.store import StoreError
from app.ledger.recordings.wire import RecordedRequest
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.experiments.directory import open_directory
from deployments.cli.experiments.source import path_of
from deployments.cli.router_client import RouterClient

TOTAL_S = 3600.0
"""For one answer: as `timeouts.total_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line says. `config`: the file with `experiment`, whose metrics are taken."""

    recording: str
    arms: Sequence[str]
    endpoint: str | None
    requests: int | None
    speed: float
    concurrency: int
    experiment: str | None
    config: Path
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
    router.readiness()  # the server is there
    name, declared, config = _declared(wanted)
    try:
        section = section_of(wanted.arms, chosen, declared)
    except NothingToCompare as error:
        raise CommandError(f"The experiment '{name}' cannot be replayed: {error}; name another one") from None
    prices = {it: found.price.model_dump() for it, found in config.deployments.items() if found.price} if config else {}
    with _directory(wanted.out) as directory:
        try:
            replay = Replay(
                name=name,
                config=config_of(name, section, directory, prices=prices, total_s=TOTAL_S),
                requests=[replayed(it) for it in chosen],
                url=router.url,
                key=key,
                speed=wanted.speed,
                concurrency=wanted.concurrency,
            )
            asyncio.run(replay.run())
        except KeyboardInterrupt:
            pass  # the report tells of what has been answered
        except ReplayRefused as error:
            raise _refused(error) from None
        except (StoreError, ConfigError, ValueError) as error:
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
    return chosen[: wanted.requests]


def _declared(wanted: Wanted) -> tuple[str, Experiment | None, Config | None]:
    """The replay's name, and the experiment of a configuration whose metrics it takes."""
    if wanted.experiment is None:
        return NAME, None, None
    try:
        config = load(wanted.config)
    except ConfigError as error:
        raise CommandError(f"{wanted.config}: {error}") from None
    if wanted.experiment not in config.experiments:
        known = ", ".join(config.experiments) or "none"
        raise CommandError(f"{wanted.config} has no experiment '{wanted.experiment}'; it has {known}")
    return wanted.experiment, config.experiments[wanted.experiment], config


@contextmanager
def _directory(out: str | None) -> Iterator[str]:
    """Where the replay's ledger is: a new directory, or one that is removed at the end."""
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
