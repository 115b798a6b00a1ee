"""The router's CPU time for a stream's token in each chat dialect, compared with OpenAI's, measured as in
`benchmarks.relay`.

The engine is that of the other benchmarks here, at 5 ms a step; the dialects take turns.

    python -m benchmarks.scale.dialects     prints a table; exit status 1 beyond the limit
"""

import asyncio
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import psutil
import uvloop

from benchmarks.scale import client, machine

RATIO = 1.3
"""The limit for a token's cost, relative to OpenAI's dialect."""
STREAMS, TOKENS, BURSTS, ROUNDS = 16, 64, 6, 5
_ENGINE, _ROUTER = 8778, 8779

DOCUMENT = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"steps": 100}}},
    "deployments": {"steps": machine.deployment(_ENGINE)},
}
_MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def request(dialect: str, tokens: int) -> bytes:
    """A streamed chat in that dialect."""
    body: dict[str, Any] = {"model": "chat", "messages": _MESSAGES, "max_tokens": tokens, "stream": True}
    match dialect:
        case "Anthropic":
            return client.http("/v1/messages", body)
        case "Azure":
            del body["model"]
            return client.http("/openai/deployments/chat/chat/completions?api-version=2024-10-21", body)
        case "Databricks":
            del body["model"]
            return client.http("/serving-endpoints/chat/invocations", body)
        case "TGI":
            return client.http("/tgi/chat/v1/chat/completions", {**body, "model": "tgi"})
        case "Friendli":
            return client.http("/v1/chat/completions", body, "x-friendli-team: t\r\n")
        case _:
            return client.http("/v1/chat/completions", body)


DIALECTS = ("OpenAI", "Anthropic", "Azure", "Databricks", "Friendli", "TGI")


async def burst(router: psutil.Process, dialect: str, tokens: int) -> float:
    """A stream's CPU time in microseconds."""
    sent, clock = request(dialect, tokens), machine.CpuTime(router)
    before = clock.us()
    for _ in range(BURSTS):
        await asyncio.gather(*(client.stream(_ROUTER, sent) for _ in range(STREAMS)))
    return (clock.us() - before) / BURSTS / STREAMS


async def measure(router: psutil.Process) -> Mapping[str, float]:
    """A token's CPU time in microseconds, by dialect."""
    found: dict[str, list[float]] = {dialect: [] for dialect in DIALECTS}
    for dialect in DIALECTS:
        await burst(router, dialect, 1)
    for _ in range(ROUNDS):
        for dialect, costs in found.items():
            short, long = [await burst(router, dialect, tokens) for tokens in (1, TOKENS)]
            costs.append((long - short) / (TOKENS - 1))
    return {dialect: statistics.median(costs) for dialect, costs in found.items()}


def main() -> int:
    """The command line; returns the exit status."""
    with machine.engine(_ENGINE, 5), machine.router(_ROUTER, DOCUMENT) as router:
        found = uvloop.run(measure(router))
    for dialect, cost in found.items():
        print(
            f"{dialect}: {cost:.1f} us of CPU per token, {cost / found['OpenAI']:.2f} of OpenAI's (at most {RATIO:g})"
        )
    return 0 if max(found.values()) <= RATIO * found["OpenAI"] else 1


if __name__ == "__main__":
    sys.exit(main())
