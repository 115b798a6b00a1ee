"""The cost of a mirror for clients' requests: their time with the mirror off, and with one whose shadow hangs.

The router's ASGI application is called in this process, in front of an upstream that returns canned chunks. It has two
recorded endpoints. Every request of one is copied to a shadow, a real server that accepts and never answers: its slots
and its queue are full at once, which is the worst case. Short blocks of requests on each endpoint alternate, so that
other work on the machine affects both.

    python -m benchmarks.mirror       prints the median and the 99th percentile of a request's time, and their ratios
"""

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from app.mirror.mirrors import MOST_WAITING
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.ledger import Acknowledging, Asking, Canned, body, started

BLOCK, TOKENS = 20, 34
SLOTS = 4


def document(shadow: str) -> dict[str, Any]:
    """The configuration: the endpoint `off` has no mirror, `on` is the same with one."""
    endpoint = {
        "tasks": ["chat"],
        "traffic": {"blue": 100},
        "sticky": {"by": "conversation"},
        "ledger": "always",
    }
    mirror = {"deployment": "shadow", "percent": 100, "max_concurrent": SLOTS}
    urls = {"blue": "http://127.0.0.1:9", "shadow": shadow}
    return {
        "endpoints": {"off": endpoint, "on": {**endpoint, "mirror": mirror}},
        "deployments": {name: {"url": url, "model": "tiny-llama"} for name, url in urls.items()},
    }


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[str, list[int]]]:
    """A server that accepts connections and never answers: its URL, and the sizes of what it received."""
    received: list[int] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            received.append(len(data))
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        server.close()


async def block(app: Any, sent: bytes) -> list[float]:
    """The time of each of some requests until its client has the whole answer, in microseconds."""
    client = Asking(app, sent)
    ended = 0.0

    async def send(message: Any) -> None:
        nonlocal ended
        ended = time.perf_counter()

    times: list[float] = []
    for _ in range(BLOCK):
        before = time.perf_counter()
        await client.ask(send)
        times.append((ended - before) * 1e6)
        await asyncio.sleep(0)  # copies begin
    return times


async def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Times of requests with the mirror off and on, in microseconds."""
    router = Router(
        RuntimeEnvironment(internal_key="benchmark"), random=Random(1), controller=Acknowledging(), send_every_s=0.05
    )
    times: dict[str, list[float]] = {"off": [], "on": []}
    async with hanging() as (url, received):
        router.reconfigure(document(url))
        router.state.upstream = Canned()
        gc.freeze()
        async with started(router.app):
            for _ in range(10):  # the slots and the queue fill
                await block(router.app, body("on", TOKENS))
            for number in range(rounds):
                for endpoint in ("on", "off") if number % 2 else ("off", "on"):
                    times[endpoint] += await block(router.app, body(endpoint, TOKENS))
            await asyncio.sleep(0.1)
            exposed = router.state.telemetry.expose(None).decode()
            assert len(received) >= SLOTS, "the shadow was not called"
            assert f'switchyard_mirror_waiting{{deployment="shadow",endpoint="on"}} {MOST_WAITING}.0' in exposed
    return times["off"], times["on"]


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirror")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    off, on = asyncio.run(measure(arguments.rounds))
    for name, percentile in (("median", 50), ("99th percentile", 99)):
        without, with_one = (statistics.quantiles(times, n=100)[percentile - 1] for times in (off, on))
        print(f"{name}: {without:.0f} us without a mirror, {with_one:.0f} us with one that hangs", end=", ")
        print(f"ratio {with_one / without:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
