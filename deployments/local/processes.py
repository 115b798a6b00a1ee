"""Records and ends the processes of a local run.

Every process of a run inherits SWITCHYARD_RUN_ID, and no other process is ever touched. The record in the run
directory holds that id, so that a run whose launcher was killed can be cleaned up too. Ray's own shutdown misses
HAProxy and vLLM's engine processes once their parent has died.

- The directories of a local run's record and the prepared models: in the checkout, else in the current directory.
- Signals set an event and interrupt nothing: work in progress ends where it checks the event.
- The ports of a local run: free ones that no other run takes before this one listens on them.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from deployments.invocation import command

ROOT = Path(__file__).resolve().parents[2]
"""The directory that `app` and `deployments` are imported from."""


def home() -> Path:
    """The checkout that this code belongs to. An installed copy has none, and an image's belongs to another user: they
    use the current directory."""
    return ROOT if (ROOT / "pyproject.toml").is_file() and os.access(ROOT, os.W_OK) else Path.cwd()


def models_directory() -> Path:
    """The directory of prepared models, unless SWITCHYARD_MODELS sets another."""
    return home() / ".models"


class LaunchError(Exception):
    """A local run cannot start or continue. The text gives the reason and the remedy; it may have several lines."""


class NotRunning(LaunchError):
    """This installation runs no application."""


class Unresponsive(NotRunning):
    """A part of this installation's run does not answer. The text names the part and the reason, without a remedy."""


MARKER = "SWITCHYARD_RUN_ID"
RUN_DIRECTORY = "SWITCHYARD_RUN_DIR"

GRACE_S = 5.0
"""The time that a process has to end after SIGTERM before SIGKILL."""

LAUNCHER_S = 90.0
"""The time that a launcher has to stop everything after SIGTERM."""


class Phase(StrEnum):
    """The part of its life that a run is in."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True)
class Run:
    """One `serve`: its launcher, its marker, the directory of its sockets and logs, the file that it was started
    with."""

    pid: int
    run_id: str
    port: int
    dashboard: str
    directory: str
    config: str = ""
    phase: str = Phase.READY


class AlreadyRunning(Exception):
    """Another launcher holds this run directory."""


def run_directory() -> Path:
    """The directory with the record of a local run. Each directory holds one run at a time."""
    return Path(os.environ.get(RUN_DIRECTORY) or home() / ".run")


def record(directory: Path) -> Run | None:
    """The run that was recorded last, whether it is alive or not."""
    try:
        return Run(**json.loads((directory / "local.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running(port: int | None = None) -> Run:
    """The run that this installation has started. Raises NotRunning, also while it stops, and if it is not on `port`
    (None: any)."""
    run = record(run_directory())
    if run is None:
        raise NotRunning(f"Nothing is running. Start it with: {command('serve')}")
    require_port(run, port)
    if run.phase == Phase.STOPPING and _is_alive(run):
        raise NotRunning(f"The application is stopping. Once it has stopped, start it again with: {command('serve')}")
    return run


def require_port(run: Run, port: int | None) -> None:
    """Raises NotRunning if the run is on another port than `port` (None: any)."""
    if port is not None and run.port != port:
        raise NotRunning(f"Nothing of this installation runs on port {port}: its application is on port {run.port}")


def require_none(directory: Path) -> None:
    """Raises LaunchError if another launcher holds the run directory."""
    try:
        with exclusive(directory):
            return
    except AlreadyRunning:
        raise LaunchError(held(directory)) from None


def held(directory: Path) -> str:
    """The message for a person who starts a second run in `directory`."""
    run = record(directory)
    if run is not None and run.phase == Phase.STOPPING:
        return f"The run on port {run.port} is still stopping. Start again once its terminal (pid {run.pid}) is free"
    where = f" on port {run.port} (pid {run.pid})" if run is not None else ""
    return f"Another instance of this installation already runs{where}. Stop it with: {command('stop')}"


def explained(unanswered: str) -> str:
    """The message for a person about a part of the run that does not answer: what the run does, and the remedy."""
    try:
        run = running()
    except NotRunning as error:  # it has ended meanwhile
        return str(error)
    if not _is_alive(run):
        return f"The application was killed. Clean up with: {command('stop')}"
    if run.phase == Phase.STARTING:
        return f"The application is starting: {unanswered}. Its terminal says when it is ready"
    return f"{unanswered}. Clean up with: {command('stop')}"


def _is_alive(run: Run) -> bool:
    return Path(f"/proc/{run.pid}").exists()


def write_record(directory: Path, run: Run) -> None:
    """Writes it atomically, so that `stop` never reads half of it."""
    draft = directory / "local.json.new"
    draft.write_text(json.dumps(asdict(run), indent=2) + "\n")
    draft.replace(directory / "local.json")


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Locks the run directory; raises AlreadyRunning. The kernel releases the lock however the launcher dies."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning from None
        yield


def processes_of(run_id: str) -> list[int]:
    """The live processes of the run, without this one."""
    needle = f"{MARKER}={run_id}".encode()
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def sweep(run_id: str) -> int:
    """Ends every process of the run: SIGTERM, then SIGKILL after GRACE_S. Returns their number."""
    signalled: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while alive := processes_of(run_id):
        late = time.monotonic() > deadline
        for pid in alive:
            if late or pid not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled.update(alive)
        time.sleep(0.1)
    return len(signalled)


def clean(directory: Path) -> int:
    """Ends the rest of the recorded run and deletes its record. The caller holds the directory's lock."""
    run = record(directory)
    if run is None:
        return 0
    ended = sweep(run.run_id)
    shutil.rmtree(run.directory, ignore_errors=True)
    (directory / "local.json").unlink(missing_ok=True)
    return ended


def stop(directory: Path, port: int | None = None) -> str:
    """Stops the run of `directory`, its launcher first if it is alive. Returns what happened, for the terminal. Raises
    NotRunning if the run is not on `port` (None: any)."""
    run = record(directory)
    if run is not None:
        require_port(run, port)
    deadline = time.monotonic() + LAUNCHER_S
    signalled = False
    while True:
        try:
            with exclusive(directory):
                ended = clean(directory)
            break
        except AlreadyRunning:
            run = record(directory)
            if run is not None and not signalled:
                os.kill(run.pid, signal.SIGTERM)
                signalled = True
            elif run is not None and time.monotonic() > deadline:
                os.kill(run.pid, signal.SIGKILL)
            time.sleep(0.2)
    if signalled:
        return "Stopped."
    return f"Cleaned up {ended} processes of a run that was killed." if run else "Nothing is running."


# So the cleanup at the end of a run is never cut short, not even by a second signal.

T = TypeVar("T")


class Stopped(Exception):
    """A signal arrived while the application was starting."""


@contextlib.contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set."""
    stop = threading.Event()
    handle_signals(stop)
    yield stop


def handle_signals(stop: threading.Event) -> None:
    """Installs the handlers. SIGINT too: a shell that starts a program with `&` has it ignored. SIGHUP, the signal of a
    closed terminal, stays ignored under `nohup`."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: stop.set())


def raise_if_stopped(stop: threading.Event, wait_s: float = 0.0) -> None:
    """Waits up to `wait_s`. Raises Stopped as soon as the event is set."""
    if stop.wait(wait_s):
        raise Stopped


def run_in_background(work: Callable[[], T], stop: threading.Event) -> T:
    """The result of `work`, which runs in a thread. Raises Stopped at once if a signal arrives first."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again by `future.result()`)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not future.done():
        raise_if_stopped(stop)
        wait([future], timeout=0.1)
    return future.result()


HOST = "127.0.0.1"

REPLICA_PORTS = 990
"""Serve does not use a replica's port again for an hour and 30 s, as long as an old HAProxy may know it
(RAY_SERVE_PORT_QUARANTINE_S). That is a restart every 3.7 s, quicker than any engine starts: a crash loop does not
keep other replicas from starting."""

REPLICA_RANGES = range(20000, 32000, 1000)
"""The first of a run's ports: those of its replicas, then its other ones. They end below the ports that Linux gives to
outgoing connections (32768), which could take one before the run listens on it."""


@dataclass(frozen=True)
class Ports:
    """Every port of a run besides the public one. Two runs on a machine must not share any."""

    dashboard: int
    dashboard_metrics: int
    autoscaler_metrics: int
    stats: int
    metrics: int
    fallback_http: int
    fallback_grpc: int
    replicas: int


CLAIMS: list[int] = []
"""The descriptors of reserved ports, open for the lifetime of this process."""


def free_ports(taken: int, claims: list[int] = CLAIMS) -> Ports:
    """Ports that are free now, other than `taken`, and that no other run takes before this one listens on them.

    Adds the descriptors that reserve them to `claims`; the ports are reserved until these are closed.
    """
    dashboard = 8265 if taken != 8265 and is_free(8265) and claim(8265, claims) else 0
    replicas = next((ports for ports in REPLICA_RANGES if is_free(ports) and claim(ports, claims)), REPLICA_RANGES[0])
    others = range(replicas + REPLICA_PORTS, replicas + REPLICA_RANGES.step)
    free = [port for port in others if port != taken and is_free(port)]
    return Ports(dashboard or free[0], free[1], free[2], free[3], free[4], free[5], free[6], replicas)


def claim(port: int, claims: list[int]) -> bool:
    """Reserves the port until the descriptor in `claims` is closed; returns whether that succeeded.

    Runs that start at the same moment all find the port free, seconds before they listen; only one can bind the name of
    an abstract socket.
    """
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0switchyard-port-{port}")
    except OSError:
        taken.close()
        return False
    claims.append(taken.detach())
    return True


def is_free(port: int) -> bool:
    """Whether `port` is free on every interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
