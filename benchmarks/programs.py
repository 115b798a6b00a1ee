"""Programs that a benchmark starts, calls and freezes, their CPU time, and what disturbs them."""

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import psutil

from benchmarks.load import HOST

SMALL_ENGINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # a small layer has no work for more threads
}
"""The environment of a vLLM with a model of one or two small layers."""

READY_S = 600.0
"""The longest time until a program answers."""


def launch(
    command: Sequence[str], log: Path, is_up: Callable[[], bool], *, environment: Mapping[str, str], cwd: Path
) -> subprocess.Popen[bytes]:
    """Starts a program, which writes to `log`; returns once `is_up`. Raises SystemExit if it ends before that, or if
    another program is up already.

    It has a session of its own: Ctrl-C is for the benchmark, which then ends it.
    """
    if is_up():
        raise SystemExit(f"another program runs where `{' '.join(command)}` would")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + READY_S
    try:
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"`{' '.join(command)}` did not come up:\n{log.read_text()[-4000:]}")
            time.sleep(0.2)
    except BaseException:
        end(process)
        raise
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and what it started."""
    found = family(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    signal_all(found, signal.SIGKILL)
    process.wait()


def listens(port: int) -> bool:
    """Whether a connection is accepted."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def answers(port: int, path: str, body: Mapping[str, Any]) -> bool:
    """Whether a request gets a 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(number: int) -> list[int]:
    """Ports on which no process listens."""
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(number)]
        for one in bound:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in bound]


def family(pid: int) -> list[int]:
    """A process and all its descendants; empty if it has ended."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, in nanoseconds (clock_getcpuclockid(3)); /proc/<pid>/stat counts in ticks."""
    clock = ctypes.c_int()
    if failed := ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise OSError(failed, os.strerror(failed))
    return clock.value


def cpu_seconds(pids: Iterable[int]) -> float:
    """The CPU time of these processes so far, without those that have ended."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += time.clock_gettime(cpu_clock(pid))
    return total


def other_cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that the machine has spent on anything except these processes and this one, including stolen time."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - cpu_seconds(pids) - time.process_time()


@dataclass(frozen=True, slots=True)
class Stalls:
    """Time in which threads could have run and did not."""

    major_faults: int
    """Pages that were read from disk, which stops a thread for milliseconds each: a machine that reclaims the pages of
    idle processes lets a whole round stand still for seconds."""
    waited_s: float
    """Spent by runnable threads in the queue of a core."""

    @classmethod
    def of(cls, pids: Iterable[int]) -> Self:
        """Of these processes so far, without those that have ended (proc_pid_stat(5), sched-stats in the kernel)."""
        faults, waited_ns = 0, 0
        for pid in pids:
            folder = Path("/proc") / str(pid)
            with suppress(OSError):
                faults += int((folder / "stat").read_text().rpartition(")")[2].split()[9])
                for thread in (folder / "task").iterdir():
                    with suppress(OSError):
                        waited_ns += int((thread / "schedstat").read_text().split()[1])
        return cls(faults, waited_ns / 1e9)

    def since(self, before: Self) -> Self:
        """Between two readings. A thread that has ended meanwhile takes its waits with it, so they may look less."""
        return type(self)(self.major_faults - before.major_faults, max(0.0, self.waited_s - before.waited_s))


class Measured(Protocol):
    """The result of a turn, with what disturbed it."""

    major_faults: int
    other_cores: float


M = TypeVar("M", bound=Measured)

MOST_FAULTS, MOST_OTHER_CORES = 5, 0.3
"""Beyond which a turn is repeated. Waits for a core are no sign: the programs under test share the machine's."""
AGAIN = 3


async def undisturbed(turn: Callable[[], Awaitable[M]]) -> M:
    """The result of a turn in which neither pages had to be read from disk nor other programs ran. After `AGAIN`
    repetitions the last result counts, whatever disturbed it."""
    for number in range(AGAIN + 1):
        result = await turn()
        if result.major_faults <= MOST_FAULTS and result.other_cores <= MOST_OTHER_CORES:
            break
        print(
            f"disturbed by {result.major_faults} major faults and {result.other_cores:.2f} cores of other programs: "
            f"{'repeated' if number < AGAIN else 'counted nevertheless'}",
            file=sys.stderr,
        )
    return result


@contextmanager
def frozen(pids: Iterable[int]) -> Iterator[None]:
    """Freezes these processes while the block runs."""
    stopped = list(pids)
    try:
        signal_all(stopped, signal.SIGSTOP)
        yield
    finally:
        signal_all(stopped, signal.SIGCONT)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to the processes that still run."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
