"""What a local run leaves on the machine, and how to find it again.

Every process of a run inherits SWITCHYARD_RUN_ID, and nothing without it is ever touched. The record in
the run directory says which id that was, so that a run whose launcher was killed can be cleaned up too.
Ray's own shutdown misses HAProxy and vLLM's engine processes: they belong to nobody once their parent dies.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MARKER = "SWITCHYARD_RUN_ID"
RUN_DIRECTORY = "SWITCHYARD_RUN_DIR"

GRACE_S = 5.0
"""How long a process may take to end after SIGTERM before SIGKILL."""

LAUNCHER_S = 90.0
"""How long a launcher may take to stop everything after SIGTERM."""


@dataclass(frozen=True)
class Run:
    """One `serve`: its launcher, its marker, where its sockets and logs are."""

    pid: int
    run_id: str
    port: int
    dashboard: str
    directory: str


class AlreadyRunning(Exception):
    """Another launcher holds this run directory."""


def run_directory() -> Path:
    """Where the record of a local run is kept; one run at a time for each."""
    return Path(os.environ.get(RUN_DIRECTORY) or Path(__file__).resolve().parent.parent / ".run")


def record(directory: Path) -> Run | None:
    """The run that was recorded last, whether it lives or not."""
    try:
        return Run(**json.loads((directory / "local.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_record(directory: Path, run: Run) -> None:
    """Atomically, so that `stop` never reads half of it."""
    draft = directory / "local.json.new"
    draft.write_text(json.dumps(asdict(run), indent=2) + "\n")
    draft.replace(directory / "local.json")


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Holds the run directory; raises AlreadyRunning. The kernel lets go when the launcher dies, however it dies."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning from None
        yield


def processes_of(run_id: str) -> list[int]:
    """The live processes of the run, this one left out."""
    needle = f"{MARKER}={run_id}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def sweep(run_id: str) -> int:
    """Ends every process of the run: asks, waits, then kills. Returns how many there were."""
    asked: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while alive := processes_of(run_id):
        late = time.monotonic() > deadline
        for pid in alive:
            if late or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(alive)
        time.sleep(0.1)
    return len(asked)


def clean(directory: Path) -> int:
    """Ends what the recorded run left and forgets it. The caller holds the run directory."""
    run = record(directory)
    if run is None:
        return 0
    ended = sweep(run.run_id)
    shutil.rmtree(run.directory, ignore_errors=True)
    (directory / "local.json").unlink(missing_ok=True)
    return ended


def stop(directory: Path) -> str:
    """Stops the run of `directory`, its launcher first if it lives. Returns what happened, for the terminal."""
    run = record(directory)
    deadline = time.monotonic() + LAUNCHER_S
    asked = False
    while True:
        try:
            with exclusive(directory):
                ended = clean(directory)
            break
        except AlreadyRunning:
            run = record(directory)
            if run is not None and not asked:
                os.kill(run.pid, signal.SIGTERM)
                asked = True
            elif run is not None and time.monotonic() > deadline:
                os.kill(run.pid, signal.SIGKILL)
            time.sleep(0.2)
    if asked:
        return "Stopped."
    return f"Cleaned up {ended} processes of a run that was killed." if run else "Nothing is running."
