"""Starts replicas as copies of a process that has imported torch and vLLM.

These imports take most of a replica's start: once in its own process, and once in its engine's. So each node keeps a
*template*, which imports them and does nothing else. Ray starts a replica's worker with `python -m deployments.engine`
(`py_executable` of its runtime environment), and this has the template fork. The copy forks two *spares*, which wait to
be the replica's engine and to try its constraints, and runs Ray's worker.

- The first replica of a node starts its template, which ends with its raylet, or an hour after its last copy.
- Libraries read variables of the environment while they are imported. So a template serves the workers whose
  environment equals its own, but for `LATER`, and only until a file of this application changes.
- A template touches no device, has no threads but those of libraries that survive a fork (OpenBLAS, jemalloc), and
  draws no random number from a generator that its copies would share.
- Wherever no template is to be had, Ray's worker and vLLM's engine start as they would without one.
"""

import ctypes
import fcntl
import gc
import hashlib
import importlib
import io
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import context, popen_spawn_posix, reduction, spawn, util
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from typing import Any, ClassVar

from deployments.invocation import ROOT

MODULE = "deployments.engine"

LATER = frozenset({"VLLM_CPU_KVCACHE_SPACE"})
"""Variables that differ between engines, and that nothing reads while it is imported."""

RAYLET_PID = "RAY_RAYLET_PID"

IMPORTS = ("ray._private.node", "ray.serve._private.replica", "deployments.engine.replica")
"""What a replica's process imports, and its engine's."""

REGISTER_S, REGISTER_DEFAULT_S = "RAY_worker_register_timeout_seconds", 60.0
"""The variable with the seconds after which Ray gives up on a worker that has not called it, and their number without
the variable."""

PATIENCE, READY_S = 0.7, 10.0
"""The share of them for which a worker waits for a template that is still importing, and the seconds for which it waits
for one that has imported."""

READY = ".ready"
"""The suffix of a file beside a template's socket, which is there once it has imported."""

IDLE_S = 3600.0
"""A template without copies ends after so long: its environment may be that of no deployment any more."""

PR_SET_PDEATHSIG = 1


def py_executable() -> str:
    """Ray's `py_executable` for replicas, which bash reads on the node: Python may be elsewhere there."""
    return f'"$(command -v {shlex.quote(sys.executable)} || command -v python3)" -m {MODULE}'


def main(arguments: Sequence[str]) -> None:
    """Starts Ray's worker: `arguments` are its script, and the script's.

    With `--template`, a listening socket's file descriptor and names of modules, starts a template.
    """
    if arguments[0] != "--template":
        if not _is_forked(arguments):
            os.execv(sys.executable, [sys.executable, *arguments])
        return
    listener = socket.socket(fileno=int(arguments[1]))
    with template(listener, int(os.environ[RAYLET_PID]), arguments[2:]) as connection:
        try:
            connection.send("ready")
            start = Start.received(connection)
            start.take()
            os.setpgid(0, 0)  # Ray ends the group of a worker that has ended
            for _ in range(SPARES):
                Spare.waiting.append(Spare())
            connection.send("started")
        except (OSError, EOFError):  # nobody waits any more, or the worker starts by itself
            return
    sys.argv, sys.path[0] = list(start.arguments), str(Path(start.arguments[0]).parent)
    runpy.run_path(start.arguments[0], run_name="__main__")


@dataclass(frozen=True)
class Start:
    """What a process takes over that is forked in place of another one."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    oom_score_adj: str
    niceness: int

    @classmethod
    def of_this(cls, arguments: Sequence[str] = ()) -> "Start":
        """This process's, with these arguments."""
        oom_score_adj = Path("/proc/self/oom_score_adj").read_text()
        return cls(arguments, dict(os.environ), os.getcwd(), oom_score_adj, os.getpriority(os.PRIO_PROCESS, 0))

    def send(self, connection: Connection) -> None:
        """With the standard files of this process."""
        connection.send(self)
        for file in (0, 1, 2):
            reduction.send_handle(connection, file, 0)

    @classmethod
    def received(cls, connection: Connection) -> "Start":
        """The next one, whose standard files become this process's. Raises EOFError if there is none."""
        start: Start = connection.recv()
        for file in (0, 1, 2):
            received = reduction.recv_handle(connection)
            os.dup2(received, file)
            os.close(received)
        return start

    def take(self) -> None:
        """Makes this process like the one that it takes the place of."""
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment.items() - os.environ.items())  # the rest stays where titles are looked for
        os.chdir(self.directory)
        current_process().authkey = os.urandom(32)
        if (numpy := sys.modules.get("numpy")) is not None:  # Python's own generator sees to itself
            numpy.random.seed()
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(self.oom_score_adj)  # Ray's workers are to be killed first,
            os.setpriority(os.PRIO_PROCESS, 0, self.niceness)  # and run last


def _is_forked(arguments: Sequence[str]) -> bool:
    """Whether a template has started the worker."""
    try:
        place = address(arguments, os.environ)
        with _connected(place) as connection:
            patience_s = PATIENCE * float(os.environ.get(REGISTER_S, REGISTER_DEFAULT_S))
            if not connection.poll(READY_S if place.with_suffix(READY).exists() else patience_s):
                return False
            connection.recv()  # it is ready
            Start.of_this(arguments).send(connection)
            return bool(connection.recv())
    except (OSError, EOFError, LookupError):
        return False


def address(arguments: Sequence[str], environment: Mapping[str, str], root: Path = ROOT) -> Path:
    """Of the socket of the worker's template, beside its raylet's. Raises LookupError for a worker without a raylet.

    `root`: where `app` and `deployments` are.
    """
    raylet = next((Path(each.partition("=")[2]) for each in arguments if each.startswith("--raylet-name=")), None)
    if raylet is None or RAYLET_PID not in environment:
        raise LookupError("no raylet")
    files = [file for package in ("app", "deployments") for file in (root / package).rglob("*.py")]
    key = (
        str(raylet),
        sorted((name, value) for name, value in environment.items() if name not in LATER),
        sys.executable,
        max(file.stat().st_mtime_ns for file in files),
    )
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10]
    return raylet.parent / f"t{name}"  # as short as Ray's own names there, which just fit


def _connected(place: Path) -> Connection:
    """To the template there. Starts one if there is none."""
    with place.with_suffix(".lock").open("w") as lock, socket.socket(socket.AF_UNIX) as connection:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(place))
        except (FileNotFoundError, ConnectionRefusedError):
            _start_template(place)
            connection.connect(str(place))
        return Connection(connection.detach())


def _start_template(place: Path) -> None:
    """Returns before it is ready: connections wait. It is no child of this process, which may become a worker."""
    for path in (place, place.with_suffix(READY)):
        path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o600)
        listener.listen(64)
        command = [sys.executable, "-m", MODULE, "--template", str(listener.fileno()), *IMPORTS]
        if (pid := os.fork()) == 0:
            subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
            os._exit(0)
    os.waitpid(pid, 0)


def template(listener: socket.socket, raylet_pid: int, imports: Sequence[str], idle_s: float = IDLE_S) -> Connection:
    """A template's life. Returns in its copies: each has the connection to what starts a worker."""
    place = Path(listener.getsockname())
    with suppress(ProcessLookupError):
        raylet = os.pidfd_open(raylet_pid)
        load(imports)
        gc.collect()
        gc.freeze()  # collections in a copy would write to all pages, and share none
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        place.with_suffix(READY).touch()
        while raylet not in (ready := wait([listener, raylet], idle_s)):
            if not ready and not Path(f"/proc/self/task/{os.getpid()}/children").read_text():
                break
            if not ready:
                continue
            with Connection(listener.accept()[0].detach()) as connection, suppress(BlockingIOError, MemoryError):
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    os.close(raylet)
                    return Connection(os.dup(connection.fileno()))
    place.unlink(missing_ok=True)
    os._exit(0)


def load(modules: Sequence[str]) -> None:
    """Imports modules without having Ray draw an ID. The generator of its IDs is the process's, and nothing seeds it
    anew in a copy: all copies would go on with the same IDs. Ray ends an actor to which two copies send a call with the
    same ID at once, and both send calls to Serve's controller.
    """
    if not modules:
        return
    from ray import ActorClassID, actor

    class DrawnByTheSystem(ActorClassID):  # type: ignore[misc]  # Ray's is Cython's
        @classmethod
        def from_random(cls) -> ActorClassID:
            return ActorClassID(os.urandom(ActorClassID.size()))

    actor.ActorClassID = DrawnByTheSystem  # each class of an actor that a module declares has one
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        actor.ActorClassID = ActorClassID


SPARES = 2
"""Copies of a replica's process: for its engine, and for what tries constraints."""

FIRST_FILE = 300
"""The number of the first file descriptor that a spare is given with its work; its own are fewer."""


class Spare:
    """A copy of this process that waits for work, and ends with it."""

    waiting: ClassVar[list["Spare"]] = []
    """This process's."""

    def __init__(self) -> None:
        self.connection, own = Pipe()
        self.sentinel, until_it_ends = os.pipe()
        if (pid := os.fork()) == 0:
            for other in (*Spare.waiting, self):
                other.close()
            Spare.waiting = []
            sys.exit(_work(own))
        own.close()
        os.close(until_it_ends)
        self.pid = pid

    def close(self) -> None:
        """Tells the copy, while it waits, that it is not needed."""
        self.connection.close()
        os.close(self.sentinel)


def end_spares() -> None:
    """Ends those of this process that still wait."""
    while Spare.waiting:
        spare = Spare.waiting.pop()
        spare.close()
        os.waitpid(spare.pid, 0)


def _work(connection: Connection) -> int:
    """The life of a spare. Returns its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        start = Start.received(connection)
        for number in range(FIRST_FILE, FIRST_FILE + connection.recv()):
            received = reduction.recv_handle(connection)
            os.dup2(received, number, inheritable=False)
            os.close(received)
    except (OSError, EOFError):
        os._exit(0)  # at once: there is nothing to clean up
    start.take()  # with the environment that Ray has made for the replica meanwhile
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which OpenMP has read before
        import torch

        torch.set_num_threads(int(threads))
    code: int = spawn._main(os.dup(connection.fileno()), connection.fileno())
    return code


class _Popen(popen_spawn_posix.Popen):
    """Has a spare run the process, where there is one."""

    _fds: list[int]
    _spare: Spare | None = None

    def duplicate_for_child(self, fd: int) -> int:
        """The descriptor's number in the process. `multiprocessing` asks while it pickles what the process is given."""
        self._fds.append(fd)
        return fd if self._spare is None else FIRST_FILE + len(self._fds) - 1

    def _launch(self, process_obj: Any) -> None:
        if not Spare.waiting:
            super()._launch(process_obj)  # type: ignore[misc]  # typeshed lacks it
            return
        spare, message = Spare.waiting.pop(), io.BytesIO()
        self._spare = spare
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), message)
            reduction.dump(process_obj, message)
        finally:
            context.set_spawning_popen(None)
        self.pid, self.sentinel = spare.pid, spare.sentinel
        self.finalizer = util.Finalize(self, spare.close)
        Start.of_this().send(spare.connection)
        spare.connection.send(len(self._fds))
        for file in self._fds:
            reduction.send_handle(spare.connection, file, spare.pid)
        with open(spare.connection.fileno(), "wb", closefd=False) as stream:
            stream.write(message.getbuffer())


class _Process(context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> popen_spawn_posix.Popen:
        return _Popen(process_obj)


class Context(context.SpawnContext):
    """Starts processes as `spawn` does, but for the first, which the spare of this process runs."""

    Process = _Process


class Forked:
    """What runs in a spare, with the methods of `subprocess.Popen` that its owner needs."""

    def __init__(self, process: context.SpawnProcess) -> None:
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired([], timeout or 0.0)
        return code


def run_in_spare(target: Callable[..., None], *arguments: Any) -> Forked | None:
    """Runs `target` in a spare of this process; None without one. Sockets and pipes may be arguments."""
    if not Spare.waiting:
        return None
    process = Context().Process(target=target, args=arguments, daemon=True)
    process.start()
    return Forked(process)


def fork_engines() -> None:
    """Has vLLM run its first engine in a spare of this process. vLLM would spawn it, since a copy of this process
    could not use Ray: the spare was copied before."""
    from vllm.v1.engine import utils

    prepare = utils.get_mp_context

    def get_mp_context() -> context.BaseContext:
        prepare()
        return Context()

    utils.get_mp_context = get_mp_context
