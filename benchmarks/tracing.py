"""The cost of tracing in the router: CPU time of a request and of a chunk, with and without tracing, in one run.

Three routers' ASGI applications are called in this process, in front of an upstream that returns canned chunks, as in
`benchmarks.ledger`: one without tracing, one that traces none of its requests, one that traces all. Short blocks of
requests on each take turns, and the fastest blocks are compared, so that other work on the machine affects none of
them. The CPU time of the thread that makes and sends spans is its own clock's; a collector built on the protocol's
generated code receives them in a separate process. The cost of tracing a share of the requests follows from the three;
it is compared with what a whole request costs a router that is served over HTTP, as `benchmarks.relay` measures it in
the same run.

    python -m benchmarks.tracing            exit code 1 if a request costs more than 1.05 of what it costs without
    python -m benchmarks.tracing --plain    prints a request's cost without tracing alone, to compare two versions of
                                            the code: run both alternately
"""

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection
from random import Random
from typing import Any, NamedTuple

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from benchmarks import relay
from benchmarks.ledger import LONG, SHORT, Canned, block, body, started

MOST = 1.05
"""The limit for a request's CPU time with a tenth of the requests traced, relative to that without tracing."""

PERCENT = 10.0
BLOCK = 8
"""Requests between two changes of router: one or two milliseconds."""

SHARES: Mapping[str, float | None] = {"off": None, "none": 0, "all": 100}
"""Percent of the requests that each router traces; None: tracing is off."""

_FASTEST = 20
"""The fastest of this many blocks counts (the 5th percentile): other processes can only make a block slower."""

_WARM_UP = 100
_SENT_WITHIN_S = 3.0
"""Spans are sent every second."""


def document(percent: float | None, endpoint: str = "") -> dict[str, Any]:
    """The configuration; `percent` of the requests are traced, None: tracing is off."""
    deployment = {"url": "http://127.0.0.1:9", "model": "tiny-llama", "trace_context": True}
    found: dict[str, Any] = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
        "deployments": {"blue": deployment, "green": deployment},
    }
    if percent is not None:
        found["tracing"] = {"percent": percent, "endpoint": endpoint}
    return found


def collect(port: Connection) -> None:
    """A collector, until it is sent something. Sends its URL."""
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
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def router(configuration: dict[str, Any]) -> Router:
    """A router in front of the canned upstream."""
    made = Router(RuntimeEnvironment(internal_key="benchmark"), random=Random(1))
    made.reconfigure(configuration)
    made.state.upstream = Canned()
    return made


async def spent(apps: Mapping[str, Any], tokens: int, rounds: int) -> dict[str, float]:
    """A request's undisturbed CPU time on the event loop with each router, in microseconds."""
    sent = body("chat", tokens)
    blocks: dict[str, list[float]] = {name: [] for name in apps}
    names = list(apps)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            blocks[name].append(await block(apps[name], sent, BLOCK))
    return {name: statistics.quantiles(times, n=_FASTEST)[0] for name, times in blocks.items()}


class Costs(NamedTuple):
    """In microseconds of CPU time. `loop`: of a request on the event loop, by router, for short and for long answers.
    `sending`: of the sender's thread, for a request that is traced."""

    short: Mapping[str, float]
    long: Mapping[str, float]
    sending: float

    def added(self, loop: Mapping[str, float], percent: float) -> float:
        """The additional cost of a request if this percentage is traced."""
        share = percent / 100
        return (1 - share) * loop["none"] + share * (loop["all"] + self.sending) - loop["off"]

    def chunk(self, name: str) -> float:
        """The additional cost of a chunk with tracing."""
        more = (self.long[name] - self.short[name]) - (self.long["off"] - self.short["off"])
        return more / (LONG - SHORT)


async def measure(rounds: int) -> Costs:
    """What requests cost."""
    with collector() as url:
        routers = {name: router(document(percent, url)) for name, percent in SHARES.items()}
        async with AsyncExitStack() as stack:
            before = set(threading.enumerate())
            for each_router in routers.values():
                await stack.enter_async_context(started(each_router.app))
            senders = [
                thread
                for thread in threading.enumerate()
                if thread not in before and thread.name == "switchyard-traces"
            ]
            apps = {name: router.app for name, router in routers.items()}
            await spent(apps, SHORT, _WARM_UP)
            await asyncio.sleep(_SENT_WITHIN_S)
            gc.freeze()
            exported, used = _counted(routers["all"], "exported"), sum(map(_cpu_s, senders))
            short, long = await spent(apps, SHORT, rounds), await spent(apps, LONG, rounds)
            await asyncio.sleep(_SENT_WITHIN_S)
            exported, used = _counted(routers["all"], "exported") - exported, sum(map(_cpu_s, senders)) - used
    assert exported == 2 * rounds * BLOCK, "every span was sent"
    return Costs(short, long, used * 1e6 / exported)


def _counted(router: Router, outcome: str) -> float:
    return (
        router.state.telemetry.registry.get_sample_value("switchyard_traced_requests_total", {"outcome": outcome}) or 0
    )


def _cpu_s(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


async def plain(rounds: int) -> float:
    """A request's cost without tracing, in microseconds."""
    plain_router = router(document(None))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(started(plain_router.app))
        return (await spent({"off": plain_router.app}, LONG, rounds))["off"]


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--percent", type=float, default=PERCENT)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    if arguments.plain:
        print(f"{asyncio.run(plain(arguments.rounds)):.1f} us of CPU per request")
        return 0
    costs, percent = asyncio.run(measure(arguments.rounds)), arguments.percent
    off, none, all_ = (costs.short[name] for name in SHARES)
    print(f"A request takes {off:.0f} us of CPU; {none - off:.1f} more if it could have been traced,")
    print(f"{all_ - off:.1f} more if it is, and {costs.sending:.0f} in the thread that sends its spans.")
    print(f"A chunk takes {costs.chunk('none'):.2f} more, or {costs.chunk('all'):.2f}.")
    added = [costs.added(loop, percent) for loop in (costs.short, costs.long)]
    request_us, token_us = relay.costs()
    whole = [request_us + tokens * token_us for tokens in (SHORT, LONG)]
    print(f"With {percent:g} % traced: {added[0]:.1f} more, {added[1]:.1f} for an answer of {LONG} tokens;", end=" ")
    print(f"with HTTP such requests take {whole[0]:.0f} and {whole[1]:.0f} us without tracing.")
    ratios = [1 + more / base for more, base in zip(added, whole, strict=True)]
    print(f"Ratios: {ratios[0]:.3f} and {ratios[1]:.3f} (at most {MOST:g}).", end=" ")
    print(f"Without the HTTP server and client: {1 + added[0] / off:.3f} and {1 + added[1] / costs.long['off']:.3f}.")
    return 0 if max(ratios) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
