"""A replica exits with its engine, and when its engine hangs.

A replica whose engine process has died would reject every request within a millisecond, and the ingress, which prefers
the least loaded replica, would send it nearly all of them. Serve's health checks take half a minute to notice; refused
connections are noticed at once and go to another replica. The exit also closes the connections of the engine's streams:
the router knows from that alone that it has to continue them elsewhere. A thread waits for the process's end, since the
event loop may be busy for seconds: vLLM has it log an error for each stream.

An engine hangs if it has requests, no output, and rests: it uses no CPU time, for longer than it ever did in a step of
the last ten minutes, with a wide margin. vLLM's engine has an output for each step, also for one that computes but a
part of a prompt. How long steps take says little: on a busy machine they are long, and the engine works all the time;
one that is stopped works no more. A GPU's steps may be long while the engine rests, and so are its margin's. A step may
take long once: an adapter is loaded, or a kernel compiled that no request has needed before. Loading is vLLM's own call
and known here; compiling uses CPU time, so that an engine that works gets more time than one that rests.
"""

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

from app.telemetry.logs import event

LOOK_EVERY_S = 0.02
"""The interval of the checks for a dead engine, shorter than the router's pause before a retry
(`app.exchange.handler.RETRY_SAME_AFTER_S`)."""

TICK_S = 0.25
"""The interval of the checks for an engine that hangs."""

LEAST_S, MARGIN, RECENT_S = 8.0, 20.0, 600.0
"""Seconds of rest without output after which an engine hangs: at least, and as a multiple of its longest rest in a step
of these last seconds."""

WORKING_S, WORKING_SHARE = 120.0, 0.1
"""Seconds without output after which an engine hangs that works, at least: for this share of the time since the last
look. Else `MARGIN` times its longest step."""

_log = logging.getLogger("switchyard")


class Silence:
    """How long an engine has been silent, in seconds, how long it has rested since it last worked, and how long its
    steps, and the rests in them, have taken lately. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked = clock()
        self._steps, self._rests = _LongestLately(), _LongestLately()
        self.lasts_s = self.rests_s = self._longest_rest_s = 0.0

    def tick(self, *, is_busy: bool, has_spoken: bool, works: bool = False) -> None:
        """What happened since the last tick: whether the engine had requests, and an output, and if not, CPU time.

        Counts no more than two intervals at once: this process may have been the one that stood still.
        """
        now = self._clock()
        passed = min(now - self._ticked, 2 * TICK_S)
        self._ticked = now
        if is_busy and not has_spoken:
            self.lasts_s += passed
            self.rests_s = 0.0 if works else self.rests_s + passed
            self._longest_rest_s = max(self._longest_rest_s, self.rests_s)
            return
        if has_spoken:
            self._steps.add(now, self.lasts_s + passed)
            self._rests.add(now, self._longest_rest_s)
        self.lasts_s = self.rests_s = self._longest_rest_s = 0.0

    @property
    def may_rest_s(self) -> float:
        """How long a rest may last."""
        return max(LEAST_S, MARGIN * self._rests.value)

    @property
    def may_last_s(self) -> float:
        """How long a silence may last, with work."""
        return max(WORKING_S, MARGIN * self._steps.value)

    @property
    def is_hung(self) -> bool:
        """Whether the engine hangs."""
        return self.rests_s > self.may_rest_s or self.lasts_s > self.may_last_s


class _LongestLately:
    """The greatest of the last value, and of those of `RECENT_S` before it."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque()
        """Times and values, each greater than all after it."""

    def add(self, now: float, value: float) -> None:
        while self._kept and self._kept[-1][1] <= value:
            self._kept.pop()
        self._kept.append((now, value))
        while self._kept[0][0] < now - RECENT_S:
            self._kept.popleft()

    @property
    def value(self) -> float:
        """0 before the first one."""
        return self._kept[0][1] if self._kept else 0.0


class Watchdog:
    """Watches vLLM's `engine` (an `AsyncLLM`), and ends this process when it dies or hangs."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._core = engine, engine.engine_core
        self._silence = Silence()
        self._has_spoken = False
        self._work = Work([process.pid for process in self._processes()])
        # Nobody knows here what Ray's workers do, which may be on other nodes.
        self._are_elsewhere = engine.vllm_config.parallel_config.distributed_executor_backend == "ray"
        receive = self._core.get_output_async

        async def observed() -> Any:
            outputs = await receive()
            self._has_spoken = True
            return outputs

        self._core.get_output_async = observed

    async def run(self) -> None:
        """Never returns otherwise."""
        Thread(target=self._wait_for_end, name="engine's end", daemon=True).start()
        ticks = round(TICK_S / LOOK_EVERY_S)
        while True:
            for _ in range(ticks):
                if self._engine.errored:
                    self._exit("died", event("engine_died"))
                await asyncio.sleep(LOOK_EVERY_S)
            if self._hangs():
                self._exit(f"had no output for {self._silence.lasts_s:.1f} s", event("engine_hung"))

    def _wait_for_end(self) -> None:
        if sentinels := [process.sentinel for process in self._processes()]:
            wait(sentinels)
            self._exit("died", event("engine_died"))

    def _hangs(self) -> bool:
        is_busy = self._engine.output_processor.has_unfinished_requests() and not self._core.utility_results
        spoke, self._has_spoken = self._has_spoken, False
        if is_busy and not spoke:
            works = self._are_elsewhere or self._work.goes_on()
        else:
            works = False
            self._work.begin()
        self._silence.tick(is_busy=is_busy, has_spoken=spoke, works=works)
        # Without statistics it has no output for a step that computes a part of a prompt.
        return bool(self._engine.log_stats) and self._silence.is_hung

    def _processes(self) -> Sequence[Any]:
        """The engine's, unless they are Ray's."""
        return getattr(self._core.resources.engine_manager, "processes", ())

    def _exit(self, what: str, extra: dict[str, Any]) -> None:
        message = f"The engine {what}: this replica exits, so that its requests go to others and Serve starts a new one"
        _log.critical(message, extra=extra)
        logging.shutdown()
        # Sockets first, since clients wait for them: on exit the kernel frees gigabytes of memory before it closes
        # files.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # one that is stopped would not notice that this process is gone
        os._exit(1)


class Work:
    """Whether processes and their descendants use CPU time, or would if they got it. Contract: proc(5).

    `clock`: seconds.
    """

    def __init__(self, pids: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids, self._clock = pids, clock
        self._seen: tuple[float, float] | None = None

    def begin(self) -> None:
        """What they have used so far does not count."""
        self._seen = None

    def goes_on(self) -> bool:
        """Whether they have used some since the last call, or wait for a core or a disk. The first call after `begin`
        does not know, and takes them for working."""
        now, processes = self._clock(), list(_with_descendants(self._pids))
        known = [seconds for seconds in map(_cpu_s, processes) if seconds is not None]
        if not known:  # a kernel or a sandbox that does not tell
            return True
        used = sum(known)
        seen, self._seen = self._seen, (now, used)
        if seen is None or used - seen[1] > WORKING_SHARE * (now - seen[0]):
            return True
        return any(map(_waits, processes))


# An engine has hundreds of threads, and is looked at four times a second while it is silent: these read files as the
# system has them, which `Path` takes ten times as long for.


def _with_descendants(pids: Iterable[int]) -> Iterator[int]:
    pending = list(pids)
    while pending:
        yield (pid := pending.pop())
        for children in _of_threads(pid, "children"):
            pending += map(int, children.split())


def _cpu_s(pid: int) -> float | None:
    """The time for which the threads of a process have run, and waited to run; None if that is not known."""
    times = [sum(map(int, schedstat.split()[:2])) for schedstat in _of_threads(pid, "schedstat")]
    return sum(times) / 1e9 if times else None


def _waits(pid: int) -> bool:
    """Whether a thread of a process waits for a core, or a disk."""
    return any(stat.rpartition(b")")[2][:3].strip() in (b"R", b"D") for stat in _of_threads(pid, "stat"))


def _of_threads(pid: int, file: str) -> Iterator[bytes]:
    """What the file of each thread of a process says, if anything."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if content := _read(f"/proc/{pid}/task/{thread}/{file}"):
                yield content


def _read(path: str) -> bytes:
    """The first 64 KiB of a file; nothing of one that is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, 64 * 1024)
        finally:
            os.close(descriptor)
    except OSError:
        return b""
