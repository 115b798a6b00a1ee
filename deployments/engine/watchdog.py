"""A replica exits with its engine, and when its engine hangs.

A replica whose engine process has died would reject every request within a millisecond, and the ingress, which prefers
the least loaded replica, would send it nearly all of them. Serve's health checks take half a minute to notice; refused
connections are noticed at once and go to another replica. The exit also closes the connections of the engine's streams:
the router knows from that alone that it has to continue them elsewhere.

An engine hangs if it has requests and no output for longer than it ever took for one in the last ten minutes, with a
wide margin. vLLM's engine has an output for each step, also for one that computes but a part of a prompt. A step may
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
from pathlib import Path
from typing import Any

from app.telemetry.logs import event

LOOK_EVERY_S = 0.02
"""The interval of the checks for a dead engine, shorter than the router's pause before a retry
(`app.exchange.forward.RETRY_SAME_AFTER_S`)."""

TICK_S = 0.25
"""The interval of the checks for an engine that hangs."""

LEAST_S, MARGIN, RECENT_S = 5.0, 20.0, 600.0
"""Seconds without output after which an engine hangs: at least, and as a multiple of its longest step of these last
seconds."""

WORKING_S, WORKING_SHARE = 120.0, 0.1
"""At least for an engine that works: for this share of the time."""

_log = logging.getLogger("switchyard")


class Silence:
    """How long an engine has been silent, in seconds, and how long its steps have taken lately. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked = clock()
        self._steps: deque[tuple[float, float]] = deque()
        """The end and the length of steps, each longer than all after it."""
        self.lasts_s = 0.0

    def tick(self, *, is_busy: bool, has_spoken: bool) -> None:
        """What happened since the last tick: whether the engine had requests, and an output.

        Counts no more than two intervals at once: this process may have been the one that stood still.
        """
        now = self._clock()
        passed = min(now - self._ticked, 2 * TICK_S)
        self._ticked = now
        if is_busy and not has_spoken:
            self.lasts_s += passed
            return
        if has_spoken:
            self._remember(now, self.lasts_s + passed)
        self.lasts_s = 0.0

    def _remember(self, now: float, step: float) -> None:
        while self._steps and self._steps[-1][1] <= step:
            self._steps.pop()
        self._steps.append((now, step))
        while self._steps[0][0] < now - RECENT_S:
            self._steps.popleft()

    @property
    def may_last_s(self) -> float:
        """How long a silence may last."""
        return max(LEAST_S, MARGIN * self._steps[0][1] if self._steps else 0.0)

    def is_hung(self, *, works: bool) -> bool:
        """Whether the engine hangs. `works`: it uses CPU time."""
        return self.lasts_s > (max(self.may_last_s, WORKING_S) if works else self.may_last_s)


class Watchdog:
    """Watches vLLM's `engine` (an `AsyncLLM`), and ends this process when it dies or hangs."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._core = engine, engine.engine_core
        self._silence = Silence()
        self._has_spoken = False
        self._work = Work(self._pids())
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
        ticks = round(TICK_S / LOOK_EVERY_S)
        while True:
            for _ in range(ticks):
                if self._engine.errored:
                    self._exit("died", event("engine_died"))
                await asyncio.sleep(LOOK_EVERY_S)
            if self._hangs():
                self._exit(f"had no output for {self._silence.lasts_s:.1f} s", event("engine_hung"))

    def _hangs(self) -> bool:
        is_busy = self._engine.output_processor.has_unfinished_requests() and not self._core.utility_results
        spoke, self._has_spoken = self._has_spoken, False
        self._silence.tick(is_busy=is_busy, has_spoken=spoke)
        if self._silence.lasts_s < LEAST_S / 2:
            self._work.begin()
            return False
        # Without statistics it has no output for a step that computes a part of a prompt.
        works = self._work.goes_on() or self._are_elsewhere
        return bool(self._engine.log_stats) and self._silence.is_hung(works=works)

    def _pids(self) -> list[int]:
        manager = self._core.resources.engine_manager
        return [process.pid for process in getattr(manager, "processes", ())]

    def _exit(self, what: str, extra: dict[str, Any]) -> None:
        message = f"The engine {what}: this replica exits, so that its requests go to others and Serve starts a new one"
        _log.critical(message, extra=extra)
        logging.shutdown()
        # Sockets first, since clients wait for them: on exit the kernel frees gigabytes of memory before it closes
        # files.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # one that is stopped would not notice that this process is gone
        os._exit(1)


class Work:
    """Whether processes and their descendants use CPU time, or would if they got it. Contract: proc(5).

    `clock`: seconds.
    """

    def __init__(self, pids: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids, self._clock = pids, clock
        self._begun: tuple[float, float] | None = None

    def begin(self) -> None:
        """What they have used so far does not count."""
        self._begun = None

    def goes_on(self) -> bool:
        """Whether they have used some since the first call after `begin`, or wait for a disk."""
        now, used = self._clock(), sum(map(_cpu_s, processes := list(_with_descendants(self._pids))))
        if self._begun is None:
            self._begun = now, used
            return True
        begun, before = self._begun
        return used - before > WORKING_SHARE * (now - begun) or any(map(_waits_for_disk, processes))


def _with_descendants(pids: Iterable[int]) -> Iterator[int]:
    pending = list(pids)
    while pending:
        yield (pid := pending.pop())
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                pending += map(int, children.read_text().split())


def _cpu_s(pid: int) -> float:
    """The time for which the threads of a process have run, and waited to run."""
    times = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            ran, waited, _ = map(int, thread.read_text().split())
            times += ran + waited
    return times / 1e9


def _waits_for_disk(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    except OSError:
        return False
