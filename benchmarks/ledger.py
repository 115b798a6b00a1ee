"""The cost of recording an experiment's exposures in the router: CPU time with the ledger on and off, in one run.

The router's ASGI application is called in this process, in front of an upstream that returns canned chunks, so that
only the router's own work is timed, at the pace of a busy router. It has two endpoints: one with an experiment and one
without, both sticky by conversation. Short blocks of requests on each alternate, and the fastest blocks are compared,
so that other work on the machine affects neither. The controller acknowledges everything and stores nothing.

    python -m benchmarks.ledger       prints what recording adds per request and per chunk; exit code 1 above the bounds
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from app.config.schema import Timeouts
from app.engine.answers import EventCheck
from app.exposures.controller_client import Answer
from app.exposures.log import AT_ONCE
from app.exposures.wire import Acknowledgement, encode_acknowledgement
from app.server.application import Router
from app.upstream.balancer import Placement
from app.upstream.client import NO_CONTEXT, Encode, Groups, OnHead, ResponseStream, Upstream
from app.upstream.http.connection import Take
from app.upstream.target import RuntimeEnvironment, Target
from benchmarks.relay import TOKEN, USAGE

MOST_PER_REQUEST_US, MOST_PER_CHUNK_US = 20.0, 0.3
SHORT, LONG = 2, 34
"""Tokens of the two kinds of answers: their difference is the chunks' share of the cost."""

BLOCK = 4
"""Requests between two changes of endpoint: less than a millisecond, so that many blocks run undisturbed."""

POSITIONS = AT_ONCE // BLOCK
"""The ledger makes entries for this many requests at once, in one of this many blocks."""

_FASTEST = 20
"""The fastest of this many blocks counts (the 5th percentile): other processes can only make a block slower."""

_SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/chat/completions",
    "query_string": b"",
    "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
}
_EVERYTHING = encode_acknowledgement(Acknowledgement(2**62, 2**62))
_END = [TOKEN.replace(b'"finish_reason":null', b'"finish_reason":"stop"'), USAGE, b"data: [DONE]\n\n"]


class Acknowledging:
    """A controller that accepts everything at once."""

    async def send(self, batch: bytes) -> bytes:
        return _EVERYTHING

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        return Answer(404, b"")


class Canned(Upstream):
    """The upstream: `max_tokens` chunks, at once. Every request here is streamed."""

    def stream(
        self,
        target: Target,
        path: str,
        body: Mapping[str, Any] | bytes,
        *,
        request_id: str,
        timeouts: Timeouts,
        context: Mapping[str, str] = NO_CONTEXT,
        placement: Placement | None = None,
        on_head: OnHead | None = None,
        encode: Encode | None = None,
        groups: Groups | None = None,
    ) -> ResponseStream:
        assert not isinstance(body, bytes)
        return _Chunks(body["max_tokens"], on_head)


class _Chunks(ResponseStream):
    def __init__(self, tokens: int, on_head: OnHead | None) -> None:
        self._tokens, self._on_head = tokens, on_head

    async def begin(self, *, events: bool = True, check: EventCheck | None = None) -> None:
        if self._on_head is not None:
            self._on_head({})

    def close(self) -> None:
        pass

    async def each(self, take: Take) -> bytes:
        for chunk in [TOKEN] * (self._tokens - 1) + _END[:-1]:
            if (unfinished := take(chunk)) is not None:
                await unfinished
        return _END[-1]


def document() -> dict[str, Any]:
    """The configuration: the endpoint `off` has no experiment, `on` is the same with one."""
    endpoint = {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "conversation"}}
    experiment = {
        "endpoint": "on",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    return {
        "endpoints": {"off": endpoint, "on": endpoint},
        "deployments": {name: {"url": "http://127.0.0.1:9", "model": "tiny-llama"} for name in ("blue", "green")},
        "experiments": {"recorded": experiment},
    }


def body(endpoint: str, tokens: int) -> bytes:
    """A chat's second turn."""
    said = ["You are a helpful assistant.", "Tell me a story.", "Once upon a time.", "Go on."]
    roles = ["system", "user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    return json.dumps({"model": endpoint, "messages": messages, "max_tokens": tokens, "stream": True}).encode()


@asynccontextmanager
async def started(app: Any) -> AsyncIterator[None]:
    """The application between its startup and its shutdown."""
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, events.get, answers.put))
    await events.put({"type": "lifespan.startup"})
    await answers.get()
    yield
    await events.put({"type": "lifespan.shutdown"})
    await answers.get()
    await task


class Asking:
    """A client that sends one chat after the other, all with the same body."""

    def __init__(self, app: Any, sent: bytes) -> None:
        self._app, self._sent, self._is_read = app, sent, False

    async def ask(self, send: Callable[[Any], Awaitable[None]]) -> None:
        """Returns when the application is done; `send` gets its answer, which must be one."""
        self._is_read = False

        async def checked(message: Any) -> None:
            assert message.get("status", 200) == 200, message
            await send(message)

        await self._app({**_SCOPE}, self._receive, checked)

    async def _receive(self) -> dict[str, Any]:
        if self._is_read:
            await asyncio.get_running_loop().create_future()
        self._is_read = True
        return {"type": "http.request", "body": self._sent, "more_body": False}


async def block(app: Any, sent: bytes, requests: int) -> float:
    """CPU time of a number of requests, in microseconds per request."""
    client = Asking(app, sent)

    async def send(message: Any) -> None:
        pass

    before = time.thread_time_ns()
    for _ in range(requests):
        await client.ask(send)
    return (time.thread_time_ns() - before) / requests / 1000


async def spent(app: Any, tokens: int, rounds: int) -> tuple[float, float]:
    """A request's undisturbed CPU time with the ledger off and on, in microseconds. Blocks are compared with those at
    the same position, since the ledger does its work for all of them in some blocks.
    """
    blocks: dict[str, list[list[float]]] = {name: [[] for _ in range(POSITIONS)] for name in ("off", "on")}
    for number in range(rounds * POSITIONS):
        for endpoint in ("on", "off") if number % 2 else ("off", "on"):
            blocks[endpoint][number % POSITIONS].append(await block(app, body(endpoint, tokens), BLOCK))
    off, on = (
        statistics.fmean(statistics.quantiles(times, n=_FASTEST)[0] for times in positions)
        for positions in blocks.values()
    )
    return off, on


async def measure(rounds: int) -> tuple[float, float, float]:
    """A request's CPU time without the ledger, and the time that recording adds per request and per chunk, in
    microseconds."""
    router = Router(
        RuntimeEnvironment(internal_key="benchmark"), random=Random(1), controller=Acknowledging(), send_every_s=3600
    )
    router.reconfigure(document())
    router.state.upstream = Canned()
    gc.freeze()
    async with started(router.app):
        off, on = await spent(router.app, SHORT, rounds)
        off_long, on_long = await spent(router.app, LONG, rounds)
    per_chunk = ((on_long - off_long) - (on - off)) / (LONG - SHORT)
    return off, on - off - SHORT * per_chunk, per_chunk


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    base, request, chunk = asyncio.run(measure(arguments.rounds))
    print(f"Recording adds {request:.1f} us of CPU per request (to {base:.0f}), {chunk:.2f} us per chunk", end=" ")
    print(f"(at most {MOST_PER_REQUEST_US:g} and {MOST_PER_CHUNK_US:g})")
    return 0 if request <= MOST_PER_REQUEST_US and chunk <= MOST_PER_CHUNK_US else 1


if __name__ == "__main__":
    sys.exit(main())
