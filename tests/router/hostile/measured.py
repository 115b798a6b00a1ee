"""A router in a process of its own, which tells what a request has cost it: the law for bodies.

The event loop is held while another request has to wait for this process: between two turns of the loop, it or a thread
that keeps the interpreter's lock is at work. The clock on the wall tells more than this where other programs run, and
the process's CPU time more where a thread runs beside the loop. So the shorter of both counts, which on a quiet machine
is how long the other request waits. `benchmarks/scale/large.py` measures that wait itself.

    python -m tests.router.hostile.measured ENGINE_URL MAX_BODY_BYTES MAX_BODIES_BYTES

serves. Its first line of output is the URL; then it answers each line of input with a Cost.
"""

import asyncio
import ctypes
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.router.hostile.client import Client, Reply
from tests.router.hostile.engine import HostileEngine
from tests.router.hostile.rig import HostileRig
from tests.support.processes.servers import serve

_MOST_MEMORY = 4 * 1024**3
"""Bytes of address space: a router that breaks the law dies, and not the machine."""

MOST_BODIES = 512 * 1024**2
"""The default of `max_bodies_bytes`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the requests since the last question have cost. `held_s`: the longest time for which the event loop was
    held; `cpu_s`: the process's CPU time; `memory`: its growth in bytes.
    """

    held_s: float
    cpu_s: float
    memory: int


class MeasuredRouter:
    """The router's process and a client. Everything is sent on one connection, one request after another."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self.url = self._output.readline().strip()
        host, _, port = self.url.removeprefix("http://").partition(":")
        self.client = Client(host, int(port))

    def cost(self) -> Cost:
        """The cost since the last call; begins the next measurement."""
        self._input.write("\n")
        self._input.flush()
        answer = self._output.readline()
        assert answer, "the router's process has ended"
        return Cost(**json.loads(answer))

    def measured(self, method: str, target: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[Reply, Cost]:
        """The answer to a request, and its cost."""
        self.cost()
        reply = self.client.request(method, target, body, headers)
        return reply, self.cost()


@contextmanager
def measured_router(
    engine_url: str, max_body_bytes: int, max_bodies_bytes: int = MOST_BODIES
) -> Iterator[MeasuredRouter]:
    """A router that takes bodies of that size, and so much of them together, in front of the deployment."""
    command = [sys.executable, "-m", __name__, engine_url, str(max_body_bytes), str(max_bodies_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        router = MeasuredRouter(process)
        try:
            yield router
        finally:
            router.client.close()
            process.kill()


class _Meter:
    """A task on the event loop that is always ready soon, and notes how much time passes between its turns."""

    def __init__(self) -> None:
        self.held_s = 0.0

    async def run(self) -> None:
        while True:
            cpu, clock = time.process_time(), time.perf_counter()
            await asyncio.sleep(0.001)
            held = min(time.process_time() - cpu, time.perf_counter() - clock)
            self.held_s = max(self.held_s, held)

    async def ended(self) -> float:
        """The longest time since the last call. The turn under way may be the longest: it ends first, so that what an
        answer's last bytes have cost is told with that answer."""
        await asyncio.sleep(0.01)
        held_s, self.held_s = self.held_s, 0.0
        return held_s


def _serve(engine_url: str, max_body_bytes: int, max_bodies_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    rig = HostileRig(HostileEngine(), engine_url)
    rig.config["endpoints"]["chat"]["content_filter"] = {"patterns": ["(?i)secret project"]}
    sizes = {"max_body_bytes": max_body_bytes, "max_bodies_bytes": max_bodies_bytes}
    rig.router.reconfigure({**rig.config, **sizes, "timeouts": {}})
    meter = _Meter()
    trim = ctypes.CDLL(None).malloc_trim
    with serve(rig.app) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        Client(host, int(port)).request("GET", "/health")
        assert rig.app.loop is not None
        asyncio.run_coroutine_threadsafe(meter.run(), rig.app.loop)
        _tell(url)
        began, before = 0.0, 0
        for _ in sys.stdin:
            held_s = asyncio.run_coroutine_threadsafe(meter.ended(), rig.app.loop).result()
            cost = Cost(held_s, time.process_time() - began, _memory("VmHWM") - before)
            gc.collect()
            trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = _memory("VmRSS")
            asyncio.run_coroutine_threadsafe(meter.ended(), rig.app.loop).result()  # not what the collection has held
            _tell(json.dumps(asdict(cost)))
            began = time.process_time()


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _memory(name: str) -> int:
    """A value of this process's memory, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


if __name__ == "__main__":
    _serve(sys.argv[1], *map(int, sys.argv[2:]))
