"""Many endpoints, and many streams at once.

Endpoints: two routers in front of one engine, one with 2 endpoints and deployments, one with 1,000. They serve blocks
of short answers in turn, each request on another endpoint; the routers' CPU times are compared. Then `/metrics` of the
second one is read.

Streams: clients read the same number of streams directly from the engine and through a router, in turn, and record how
long after sending each token arrives. The router's memory is read while the streams run. The more streams, the slower
each of them: two cores carry 10,000 tokens a second.

    python -m benchmarks.scale.wide   prints a table; exit status 1 beyond a limit
"""

import asyncio
import sys
from contextlib import ExitStack
from typing import Any

import httpx
import psutil
import uvloop

from benchmarks.load import HOST
from benchmarks.scale import client, machine

FEW, MANY = 2, 1000
RATIO = 1.1
"""The limit for a request's cost with many endpoints, relative to few."""
BLOCK, BLOCKS = 250, 24
AT_ONCE = 16

STREAMS, TOKENS, ROUNDS = (500, 2000, 5000), 48, 3
TOKENS_PER_S = 10_000
STREAM_KIB, LATE_MS = 100.0, 50.0
SCRAPE_MB, SCRAPE_S = 2.0, 0.3

_ENGINE, _ROUTERS = 8771, {FEW: 8772, MANY: 8773}


def document(count: int) -> dict[str, Any]:
    """A configuration with this many endpoints, each with its own deployment."""
    return {
        "endpoints": {f"e{number}": {"tasks": ["chat"], "traffic": {f"d{number}": 100}} for number in range(count)},
        "deployments": {f"d{number}": machine.deployment(_ENGINE) for number in range(count)},
    }


async def ask(port: int, requests: list[bytes]) -> None:
    """Sends the requests, with a limited number at once."""
    for begin in range(0, len(requests), AT_ONCE):
        await asyncio.gather(*(client.stream(port, request) for request in requests[begin : begin + AT_ONCE]))


async def endpoints(routers: dict[int, psutil.Process]) -> dict[int, float]:
    """A request's CPU time in microseconds, by the number of endpoints."""
    requests = {count: [client.streamed(f"e{number}", 1) for number in range(count)] for count in routers}
    blocks: dict[int, list[float]] = {count: [] for count in routers}
    for count in routers:  # one each first: an endpoint's first request creates its metrics
        await ask(_ROUTERS[count], requests[count] * (MANY // count))
    for number in range(BLOCKS):
        for count, process in routers.items():
            sent = [requests[count][(number * BLOCK + offset) % count] for offset in range(BLOCK)]
            clock = machine.CpuTime(process)
            before = clock.us()
            await ask(_ROUTERS[count], sent)
            blocks[count].append((clock.us() - before) / BLOCK)
    return {count: client.median(them) for count, them in blocks.items()}


def scrape(port: int, router: psutil.Process) -> tuple[float, float]:
    """The size of `/metrics` in MB, and the router's CPU time for it in seconds: the least of some readings."""
    clock, costs = machine.CpuTime(router), []
    for _ in range(ROUNDS):
        before = clock.us()
        size = len(httpx.get(f"http://{HOST}:{port}/metrics", timeout=60).content)
        costs.append((clock.us() - before) / 1e6)
    return size / 1e6, min(costs)


async def streams(count: int, router: psutil.Process) -> tuple[float, float, float]:
    """How late tokens are at p99 directly from the engine and through the router, and KiB of memory per stream."""
    request = client.streamed("e0", TOKENS)
    await ask(_ROUTERS[FEW], [client.streamed("e0", 1)] * AT_ONCE)
    late: dict[int, list[float]] = {_ENGINE: [], _ROUTERS[FEW]: []}
    before = machine.rss_kib(router)
    most = before
    for _ in range(ROUNDS):
        for port, stream_tokens in late.items():
            running = asyncio.gather(*(client.stream(port, request) for _ in range(count)))
            while not running.done():
                await asyncio.sleep(0.5)
                most = max(most, machine.rss_kib(router))
            # The first tokens come while other clients still connect.
            stream_tokens += [token.late for tokens in await running for token in tokens[TOKENS // 8 :]]
    direct, through = (client.p99_ms(tokens) for tokens in late.values())
    return direct, through, (most - before) / count


def main() -> int:
    """The command line; returns the exit status."""
    with ExitStack() as stack:
        stack.enter_context(machine.engine(_ENGINE, 1))
        routers = {
            count: stack.enter_context(machine.router(port, document(count))) for count, port in _ROUTERS.items()
        }
        costs = uvloop.run(endpoints(routers))
        size, took = scrape(_ROUTERS[MANY], routers[MANY])
    ratio = costs[MANY] / costs[FEW]
    print(f"A request costs {costs[FEW]:.0f} us of CPU with {FEW} endpoints, {costs[MANY]:.0f} with {MANY}:", end=" ")
    print(f"{ratio:.3f} (at most {RATIO:g}), each on a new connection: {1e6 / costs[MANY]:.0f} a second and core.")
    print(f"/metrics of {MANY} endpoints has {size:.1f} MB (at most {SCRAPE_MB:g})", end=" ")
    print(f"and takes {took:.2f} s of CPU time (at most {SCRAPE_S:g}).")
    is_met = ratio <= RATIO and size <= SCRAPE_MB and took <= SCRAPE_S
    for count in STREAMS:
        step_ms = count / TOKENS_PER_S * 1000
        with machine.engine(_ENGINE, step_ms), machine.router(_ROUTERS[FEW], document(FEW)) as process:
            direct, through, kib = uvloop.run(streams(count, process))
        later = through - direct
        print(f"{count} streams: {kib:.0f} KiB each (at most {STREAM_KIB:g}); tokens' p99 is {direct:.1f} ms", end=" ")
        print(
            f"straight from the engine and {through:.1f} through the router: {later:.1f} later (at most {LATE_MS:g})."
        )
        is_met &= kib <= STREAM_KIB and later <= LATE_MS
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
