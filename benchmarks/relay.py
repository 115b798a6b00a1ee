"""The router's own CPU time for a streamed answer, in front of an upstream that uses almost no CPU.

Three processes: an upstream that sends canned chunks as an engine does (one to every stream at each step), the router
as `switchyard router` runs it, and this one, the clients. The pace leaves the router idle time, so that every chunk is
forwarded separately: under load, several come in one read and cost less. Short and long answers separate the cost of a
request from that of a token.

    python -m benchmarks.relay                        prints the router's CPU time per request and per token
    python -m benchmarks.relay --against CHECKOUT     prints the ratio to another version's, with its 95 % interval
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
import yaml

from app.internal_api import CONTINUATION_HEADER, CONTINUATION_MARKED, CONTINUATION_NEW, MARK_TOKENS
from benchmarks import programs
from benchmarks.load import HOST, Stream
from benchmarks.programs import cpu_clock
from benchmarks.serving import ROOT, TOKENS, Way, request

UPSTREAM_PORT, ROUTER_PORT = 8767, 8768
STEP_S = 0.005
"""Between an engine's steps."""
ANSWERS = {1: 960, TOKENS: 320}
"""The number of answers by length: those of one token take so little time that fewer would not be repeatable."""

PAIRS = 16
"""Measurements of each of two versions, in turn, before both are started anew; each has a tenth of `ANSWERS`."""

TOKEN = (
    b'data: {"id":"chatcmpl-9f6ab9c27fba4c6d8a0b8e9bd84b1e5f","object":"chat.completion.chunk","created":1795266774,'
    b'"model":"tiny-llama","choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
FINISHED = TOKEN.replace(b'"finish_reason":null', b'"finish_reason":"stop"')
USAGE = (
    b'data: {"id":"chatcmpl-9f6ab9c27fba4c6d8a0b8e9bd84b1e5f","object":"chat.completion.chunk","created":1795266774,'
    b'"model":"tiny-llama","choices":[],"usage":{"prompt_tokens":35,"total_tokens":99,"completion_tokens":64}}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
ASKS_FOR_MARKS = f"{CONTINUATION_HEADER}: {CONTINUATION_NEW}\r\n".encode()
MARKED = f"{CONTINUATION_HEADER}: {CONTINUATION_MARKED}\r\n".encode()
MARK = MARK_TOKENS + b"48731\n\n"


class Upstream(asyncio.Protocol):
    """A connection to the upstream: each request is answered with `max_tokens` chunks, one at each step. They are
    marked if the request asks for that, as a replica marks them."""

    def __init__(self, streams: dict["Upstream", int]) -> None:
        self._streams = streams
        self._body = self._mark = b""

    def connection_made(self, transport: Any) -> None:  # uvloop's transport is not an asyncio.Transport by type
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET "):  # a health check
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        self._body += data
        if self._body.endswith(b"}"):  # the body of a request ends with one, and no header does
            head, _, body = self._body.partition(b"\r\n\r\n")
            tokens = json.loads(body)["max_tokens"]
            self._mark = MARK if ASKS_FOR_MARKS in head + b"\r\n" else b""
            self._body = b""
            self._transport.write(HEAD + (MARKED if self._mark else b"") + b"\r\n")
            self._streams[self] = tokens

    def step(self) -> None:
        """Sends one token, or the end."""
        if self._streams[self]:
            self._streams[self] -= 1
            self._transport.write(_chunk(TOKEN + self._mark))
            return
        del self._streams[self]
        parts = [FINISHED, USAGE, b"data: [DONE]\n\n"]
        parts = [b"".join(parts) + self._mark] if self._mark else parts
        self._transport.write(b"".join(map(_chunk, parts)) + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve_upstream(port: int, step_s: float) -> None:
    """Runs until the process ends."""
    streams: dict[Upstream, int] = {}
    await asyncio.get_running_loop().create_server(lambda: Upstream(streams), HOST, port)
    while True:
        await asyncio.sleep(step_s)
        for stream in list(streams):
            stream.step()


@contextmanager
def running(port: int, *command: str, checkout: Path = ROOT) -> Iterator[psutil.Process]:
    """The process of a Python module in `checkout`, which listens on `port`."""
    with tempfile.TemporaryDirectory() as folder:
        process = programs.launch(
            [sys.executable, "-m", *command],
            Path(folder) / "log",
            lambda: programs.listens(port),
            environment=os.environ,
            cwd=checkout,
        )
        try:
            yield psutil.Process(process.pid)
        finally:
            programs.end(process)


async def cpu_us(router: psutil.Process, port: int, *, streams: int, tokens: int, answers: int) -> float:
    """The router's CPU time for an answer of `tokens` tokens, in microseconds, with `streams` of them at once."""
    sent = request(Way("router", "ours", "", "chat"), "", tokens=tokens)

    async def one() -> None:
        _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(sent), HOST, port)
        await stream.done

    clock = cpu_clock(router.pid)
    before = time.clock_gettime(clock)
    for _ in range(answers // streams):
        await asyncio.gather(*(one() for _ in range(streams)))
    return (time.clock_gettime(clock) - before) / answers * 1e6


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay")
    parser.add_argument("--upstream", action="store_true", help="be the upstream (the benchmark starts it)")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--port", type=int, default=UPSTREAM_PORT, help="the upstream's")
    parser.add_argument("--step-s", type=float, default=STEP_S, help="between two chunks of a stream; 0: no pause")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another version to compare this one with")
    parser.add_argument("--starts", type=int, default=4, help="of both versions, for --against")
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve_upstream(arguments.port, arguments.step_s))
        return 0
    if arguments.against is not None:
        for tokens, pairs in compared(arguments.against, arguments.streams, arguments.starts).items():
            ours, theirs = (statistics.median(pair[side] for start in pairs for pair in start) for side in (0, 1))
            ratio, low, high = median_ratio(pairs)
            print(f"answers of {tokens}: {ours:.0f} us against {theirs:.0f}, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]")
        return 0
    request_us, token_us = costs(arguments.streams)
    print(f"CPU per request: {request_us:.0f} us, per token: {token_us:.1f} us")
    return 0


def costs(streams: int = 16) -> tuple[float, float]:
    """The router's CPU time per request and per token, in microseconds."""
    with _upstream(), _router(ROUTER_PORT) as process:
        short, long = (
            uvloop.run(cpu_us(process, ROUTER_PORT, streams=streams, tokens=tokens, answers=answers))
            for tokens, answers in ANSWERS.items()
        )
    return separated(short, long)


Pairs = Sequence[Sequence[tuple[float, float]]]
"""For each start of both versions: the CPU time for an answer of this one and of the other, in microseconds."""


def compared(other: Path, streams: int, starts: int) -> Mapping[int, Pairs]:
    """The pairs by length of the answers. What disturbs the machine disturbs both versions, which take turns in both
    orders; each start has its own places in memory, which alone make some percent."""
    pairs: dict[int, list[list[tuple[float, float]]]] = {tokens: [] for tokens in ANSWERS}
    for start in range(starts):
        with ExitStack() as stack:
            stack.enter_context(_upstream())
            sides = [(ROUTER_PORT, ROOT), (ROUTER_PORT + 1, other)]
            routers = {port: stack.enter_context(_router(port, checkout)) for port, checkout in sides}
            for measured in pairs.values():
                measured.append([])
            for number in range(-1, PAIRS):  # the first one warms up
                for tokens, answers in ANSWERS.items():
                    ports = sorted(routers, reverse=(number + start) % 2 == 1)
                    costs_us = {
                        port: uvloop.run(
                            cpu_us(routers[port], port, streams=streams, tokens=tokens, answers=answers // 10)
                        )
                        for port in ports
                    }
                    if number >= 0:
                        pairs[tokens][start].append((costs_us[ROUTER_PORT], costs_us[ROUTER_PORT + 1]))
    return pairs


def median_ratio(pairs: Pairs, samples: int = 2000) -> tuple[float, float, float]:
    """The median of the pairs' ratios, and its 95 % interval by a bootstrap of starts and of the pairs in each."""
    draw = random.Random(1)
    ratios = [[ours / theirs for ours, theirs in start] for start in pairs]
    medians = sorted(
        statistics.median(
            ratio for start in draw.choices(ratios, k=len(ratios)) for ratio in draw.choices(start, k=len(start))
        )
        for _ in range(samples)
    )
    whole = statistics.median(ratio for start in ratios for ratio in start)
    return whole, medians[round(samples * 0.025)], medians[round(samples * 0.975) - 1]


@contextmanager
def _upstream() -> Iterator[None]:
    with running(UPSTREAM_PORT, "benchmarks.relay", "--upstream"):
        yield


@contextmanager
def _router(port: int, checkout: Path = ROOT) -> Iterator[psutil.Process]:
    document = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"tiny": 100}}},
        "deployments": {"tiny": {"app": "tiny", "model": "tiny-llama"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "relay.yaml"
        config.write_text(yaml.safe_dump(document))
        options = ("--port", str(port), "--serve-url", f"http://{HOST}:{UPSTREAM_PORT}")
        with running(port, "deployments", "router", str(config), *options, checkout=checkout) as process:
            yield process


def separated(short: float, long: float) -> tuple[float, float]:
    """The cost per request and per token, from the costs of answers of one token and of `TOKENS`."""
    per_token = (long - short) / (TOKENS - 1)
    return short - per_token, per_token


if __name__ == "__main__":
    sys.exit(main())
