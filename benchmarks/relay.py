"""The router's own CPU time for a streamed answer, in front of an upstream that uses almost no CPU.

Three processes: an upstream that sends canned chunks as an engine does (one to every stream at each step), the router
as `switchyard router` runs it, and this one, the clients. The pace leaves the router idle time, so that every chunk is
forwarded separately: under load, several come in one read and cost less. Short and long answers separate the cost of a
request from that of a token.

    python -m benchmarks.relay        prints the router's CPU time per request and per token
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
import yaml

from benchmarks import programs
from benchmarks.load import HOST, Stream
from benchmarks.programs import cpu_clock
from benchmarks.serving import ROOT, TOKENS, Way, request

UPSTREAM_PORT, ROUTER_PORT = 8767, 8768
STEP_S = 0.005
"""Between an engine's steps."""
ANSWERS = {1: 960, TOKENS: 320}
"""The number of answers by length: those of one token take so little time that fewer would not be repeatable."""

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
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class Upstream(asyncio.Protocol):
    """A connection to the upstream: each request is answered with `max_tokens` chunks, one at each step."""

    def __init__(self, streams: dict["Upstream", int]) -> None:
        self._streams = streams
        self._body = b""

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
            tokens = json.loads(self._body.partition(b"\r\n\r\n")[2])["max_tokens"]
            self._body = b""
            self._transport.write(HEAD)
            self._streams[self] = tokens

    def step(self) -> None:
        """Sends one token, or the end."""
        if self._streams[self]:
            self._streams[self] -= 1
            self._transport.write(_chunk(TOKEN))
            return
        del self._streams[self]
        self._transport.write(_chunk(FINISHED) + _chunk(USAGE) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


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
def running(port: int, *command: str) -> Iterator[psutil.Process]:
    """A Python module's process that listens on `port`."""
    with tempfile.TemporaryDirectory() as folder:
        process = programs.launch(
            [sys.executable, "-m", *command],
            Path(folder) / "log",
            lambda: programs.listens(port),
            environment=os.environ,
            cwd=ROOT,
        )
        try:
            yield psutil.Process(process.pid)
        finally:
            programs.end(process)


async def cpu_us(router: psutil.Process, *, streams: int, tokens: int, endpoint: str = "chat") -> float:
    """The router's CPU time for an answer of `tokens` tokens, in microseconds, with `streams` of them at once."""
    sent = request(Way("router", "ours", "", endpoint), "", tokens=tokens)

    async def one() -> None:
        _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(sent), HOST, ROUTER_PORT)
        await stream.done

    clock, answers = cpu_clock(router.pid), ANSWERS[tokens]
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
    arguments = parser.parse_args()
    if arguments.upstream:
        uvloop.run(serve_upstream(arguments.port, arguments.step_s))
        return 0
    request_us, token_us = costs(arguments.streams)
    print(f"CPU per request: {request_us:.0f} us, per token: {token_us:.1f} us")
    return 0


def costs(streams: int = 16) -> tuple[float, float]:
    """The router's CPU time per request and per token, in microseconds."""
    document = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"tiny": 100}}},
        "deployments": {"tiny": {"url": f"http://{HOST}:{UPSTREAM_PORT}", "model": "tiny-llama"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "relay.yaml"
        config.write_text(yaml.safe_dump(document))
        router = ("deployments", "router", str(config), "--port", str(ROUTER_PORT))
        with (
            running(UPSTREAM_PORT, "benchmarks.relay", "--upstream"),
            running(ROUTER_PORT, *router) as process,
        ):
            short, long = (uvloop.run(cpu_us(process, streams=streams, tokens=tokens)) for tokens in (1, TOKENS))
    return separated(short, long)


def separated(short: float, long: float) -> tuple[float, float]:
    """The cost per request and per token, from the costs of answers of one token and of `TOKENS`."""
    per_token = (long - short) / (TOKENS - 1)
    return short - per_token, per_token


if __name__ == "__main__":
    sys.exit(main())
