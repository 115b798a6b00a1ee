"""A cluster's volume of weights: a Job fills it (`fetch_all`), and engines wait until their model is there (`arrival`).

A source is `package:NAME`, which `cache` builds, or `hf:OWNER/NAME@REVISION`, which a hub has. Its folder has the rest
of its name. A folder that came from a hub has a marker with the size of every file, written last; the packages' have
`cache`'s. Beside a folder that is not complete, a line of text says how far the Job is, or why it failed.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from app.internal_api import PACKAGE_PREFIX
from deployments.weights import hub
from deployments.weights.cache import is_prepared, prepare
from deployments.weights.errors import WeightsError

MARKER = ".fetched.json"

_HUB = re.compile(r"hf:(?P<id>[^@]+)(?:@(?P<revision>.+))?")

Say = Callable[[str], None]


def folder_of(source: str, volume: Path) -> Path:
    """The source's folder."""
    return volume / source.partition(":")[2]


def is_complete(source: str, volume: Path) -> bool:
    """Whether the folder has every file in its full size."""
    if source.startswith(PACKAGE_PREFIX):
        return is_prepared(source.removeprefix(PACKAGE_PREFIX), volume)
    folder = folder_of(source, volume)
    try:
        files: Mapping[str, int] = json.loads((folder / MARKER).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError):
        return False


def state(source: str, volume: Path) -> str:
    """What the Job said last about a source that is not complete."""
    try:
        return _state_file(source, volume).read_text()
    except OSError:
        return "no Job has begun to fetch it"


async def arrival(sources: Sequence[str], volume: Path, say: Say, every_s: float = 5.0) -> None:
    """Waits until all `sources` are complete. Says at every change what it waits for."""
    for source in sources:
        said = None
        while not await asyncio.to_thread(is_complete, source, volume):
            if (now := await asyncio.to_thread(state, source, volume)) != said:
                say(f"Waiting for the weights {source}: {now}")
                said = now
            await asyncio.sleep(every_s)


def fetch_all(sources: Sequence[str], volume: Path, say: Say) -> list[str]:
    """Fetches what is missing, and returns the sources that could not be fetched: the others do not depend on them."""
    failed = []
    for source in sources:
        try:
            _fetch(source, volume, say)
        except Exception as error:  # noqa: BLE001  whatever it is, other models can be fetched
            failed.append(source)
            _tell(source, volume, f"failed: {error if isinstance(error, WeightsError) else repr(error)}", say)
    return failed


def _fetch(source: str, volume: Path, say: Say) -> None:
    folder = folder_of(source, volume)
    if is_complete(source, volume):
        say(f"{source} is complete in {folder}")
        return
    _tell(source, volume, "begins", say)
    if source.startswith(PACKAGE_PREFIX):
        prepare(source.removeprefix(PACKAGE_PREFIX), volume, say=say)
    elif found := _HUB.fullmatch(source):
        commit, files = hub.download(
            found["id"], found["revision"], folder, lambda progress: _tell(source, volume, progress, say)
        )
        marker = {"source": source, "commit": commit, "files": files}
        _write(folder / MARKER, json.dumps(marker, indent=2) + "\n")
    else:
        raise WeightsError(f"'{source}' is not a source. Write {PACKAGE_PREFIX}NAME or hf:OWNER/NAME@REVISION")
    _state_file(source, volume).unlink(missing_ok=True)
    say(f"{source} is complete in {folder}")


def _tell(source: str, volume: Path, what: str, say: Say) -> None:
    """Says it here, and writes it for the engines that wait."""
    say(f"{source}: {what}")
    _write(_state_file(source, volume), f"{what} ({datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)")


def _state_file(source: str, volume: Path) -> Path:
    folder = folder_of(source, volume)
    return folder.with_name(f".{folder.name}.state")


def _write(path: Path, text: str) -> None:
    """In one step: readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)
