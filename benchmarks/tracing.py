"""What traces cost the router: CPU time of a request and of a chunk, without them and with a share of the requests
traced, in one run.

Two routers' ASGI applications are called in this process, in front of an upstream that hands over canned chunks, as in
`benchmarks.ledger`: rounds of requests on either alternate. The time is the whole process's, so that the thread
that makes and sends spans counts, too; a collector of the protocol's generated code receives them in a process of its
own.

    python -m benchmarks.tracing      exit code 1 if a request costs more than 1.05 of what it costs without
    python -m benchmarks.tracing --plain    prints a request's cost without traces alone, to compare two versions of
                                            the code: run both alternately
"""

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks.ledger import LONG, SHORT, Asking, Canned, body, started

MOST = 1.05
"""A request's CPU time with a tenth of the requests traced, in that without."""

PERCENT = 10.0
REQUESTS = 500
"""Of each kind in a round: some tenths of a second. Then the sending thread gets the time to send their spans."""

SENT_WITHIN_S = 1.3
"""Spans are sent every second."""


def document(percent: float | None, endpoint: str = "") -> dict[str, Any]:
    """The configuration; `percent` of the requests are traced, None: tracing is off."""
    found: dict[str, Any] = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
        "deployments": {name: {"url": "http://127.0.0.1:9", "model": "tiny-llama"} for name in ("blue", "green")},
    }
    if percent is not None:
        found["tracing"] = {"percent": percent, "endpoint": endpoint}
        for deployment in found["deployments"].values():
            deployment["trace_context"] = True
    return found


def collect(port: Connection) -> None:
    """A collector, until its process is ended. Sends its URL."""
    from tests.support.telemetry.otlp_receiver import receiving

    with receiving() as (_, url):
        port.send(url)
        port.recv()


@contextmanager
def collector() -> Iterator[str]:
    """A running collector's URL."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=collect, args=(theirs,))
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join()


def router(configuration: dict[str, Any]) -> Router:
    """A router in front of the canned upstream."""
    made = Router(RuntimeEnvironment(internal_key="benchmark"), random=Random(1))
    made.reconfigure(configuration)
    made.state.upstream = Canned()
    return made


async def spent(routers: dict[str, Router], tokens: int, rounds: int) -> dict[str, list[float]]:
    """By router, what a request costs in each round, in microseconds of the process's CPU time.

    What the thread does after the requests, to send their spans, belongs to the cost.
    """
    sent = body("chat", tokens)
    found: dict[str, list[float]] = {name: [] for name in routers}
    for number in range(rounds):
        order = list(routers.items())
        for name, it in reversed(order) if number % 2 else order:
            client = Asking(it.app, sent)
            before = time.process_time_ns()
            for _ in range(REQUESTS):
                await client.ask(_ignore)
            await asyncio.sleep(SENT_WITHIN_S)
            found[name].append((time.process_time_ns() - before) / REQUESTS / 1000)
    return found


async def _ignore(message: Any) -> None:
    pass


async def measure(percent: float, rounds: int) -> bool:
    """Prints the costs; whether they are within the bounds."""
    with collector() as url:
        routers = {"off": router(document(None)), "on": router(document(percent, url))}
        async with AsyncExitStack() as stack:
            for it in routers.values():
                await stack.enter_async_context(started(it.app))
            await spent(routers, SHORT, 2)  # imports, connections, caches
            gc.freeze()
            short = await spent(routers, SHORT, rounds)
            long = await spent(routers, LONG, rounds)
    outcomes = {it: _exported(routers["on"], it) for it in ("exported", "failed", "dropped")}
    assert not outcomes["failed"] + outcomes["dropped"], outcomes
    ratios = {name: _ratio(times) for name, times in (("of 2 tokens", short), ("of 34 tokens", long))}
    off, on = (statistics.median(short[name]) for name in ("off", "on"))
    off_long, on_long = (statistics.median(long[name]) for name in ("off", "on"))
    chunk = ((on_long - on) - (off_long - off)) / (LONG - SHORT)
    print(f"{percent:g} % traced: a request takes {on:.0f} us of CPU instead of {off:.0f}, a chunk {chunk:+.2f} us.")
    print("Round by round, " + ", ".join(f"answers {name}: {it:.3f}" for name, it in ratios.items()), end=" ")
    print(f"(at most {MOST:g})")
    return max(ratios.values()) <= MOST


def _ratio(times: dict[str, list[float]]) -> float:
    return statistics.median(on / off for off, on in zip(times["off"], times["on"], strict=True))


def _exported(it: Router, outcome: str) -> float:
    return it.state.telemetry.registry.get_sample_value("switchyard_traced_requests_total", {"outcome": outcome}) or 0


async def plain(rounds: int) -> None:
    """Prints what a request costs without traces."""
    it = router(document(None))
    sent = body("chat", LONG)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(started(it.app))
        times = []
        for _ in range(rounds):
            client = Asking(it.app, sent)
            before = time.thread_time_ns()
            for _ in range(REQUESTS // 10):
                await client.ask(_ignore)
            times.append((time.thread_time_ns() - before) / (REQUESTS // 10) / 1000)
    print(f"{statistics.quantiles(times, n=20)[0]:.2f}")


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--percent", type=float, default=PERCENT)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    if arguments.plain:
        asyncio.run(plain(arguments.rounds))
        return 0
    return 0 if asyncio.run(measure(arguments.percent, arguments.rounds)) else 1


if __name__ == "__main__":
    sys.exit(main())
