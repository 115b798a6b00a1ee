"""The cost of Friendli's dialect for a request that uses none of its extras: OpenAI's completions compared with
Friendli's, with the same engine and answers, both through the router. Friendli sends each token with its id, so that
its chunks are parsed and rewritten, while OpenAI's pass through. The model has one random layer, so that the benchmark
measures the serving path. The clients take short turns, in another order each round. An OpenAI client that asks for
token ids shows the engine's part of the cost.

    python -m benchmarks.friendli     prints a table; exit status 1 below the bar

The bar: at 16 streams Friendli's completions give at least 0.9 of OpenAI's tokens/s, at one stream their first token
comes at most 5 ms later.
"""

import argparse
import asyncio
import secrets
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import uvloop

from benchmarks.load import post
from benchmarks.serving import ROOT, SETTLE_S, TOKENS, Round, burst, configuration, engine, medians, ours
from deployments.local import processes
from deployments.weights.cache import default_cache, prepare_tiny

RATIO, LATER_MS = 0.9, 5.0


@dataclass(frozen=True)
class Client:
    """A client: its headers, additional fields, and the end of its stream."""

    name: str
    headers: str
    fields: Mapping[str, Any]
    end: bytes


OPENAI = Client("OpenAI", "x-stainless-lang: python", {"ignore_eos": True}, b"[DONE]")
NEVER = {"eos_token": [49_151]}
CLIENTS = (
    OPENAI,
    Client("OpenAI, token ids", OPENAI.headers, {**OPENAI.fields, "return_token_ids": True}, OPENAI.end),
    Client("Friendli, classic", "x-friendli-team: t", NEVER, b'"event":"complete"'),
    Client("Friendli, modern", "user-agent: friendli-core", NEVER, b"[DONE]"),
)


def request(client: Client) -> bytes:
    """The HTTP request for one streamed answer of TOKENS tokens."""
    calls = {"model": "chat", "prompt": "Tell me a story.", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    return post("/v1/completions", {**calls, **client.fields}, client.headers)


Found = dict[str, dict[str, list[Round]]]
"""By client and number of streams."""


async def measure(run: processes.Run, rounds: int) -> Found:
    """Rounds per client, at 16 streams and at one, the clients taking turns."""
    found: Found = {client.name: {"16": [], "1": []} for client in CLIENTS}
    await asyncio.sleep(SETTLE_S)
    order = Random(0)
    for number in range(-1, rounds):  # the first one warms up
        for streams, requests in ((16, 32), (1, 4)):
            for client in order.sample(CLIENTS, len(CLIENTS)):
                result = await burst(request(client), run, streams=streams, requests=requests, end=client.end)
                if number >= 0:
                    found[client.name][str(streams)].append(result)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def show(found: Found) -> bool:
    """Prints the medians and the ratios to OpenAI's; returns whether the target is met."""
    for streams in ("16", "1"):
        rows = {name: medians(by_streams[streams]) for name, by_streams in found.items()}
        print(f"\n{streams + ' stream(s)':20}" + "".join(f"{name:>23}" for name in rows[OPENAI.name]))
        for name, row in rows.items():
            print(f"{name:20}" + "".join(f"{value:>23.2f}" for value in row.values()))
    print()
    met = True
    for client in CLIENTS[1:]:
        ratio = _compared(found, client, "16", lambda mine, theirs: mine.tokens_per_s / theirs.tokens_per_s)
        later = _compared(found, client, "1", lambda mine, theirs: mine.ttft_p50 - theirs.ttft_p50)
        met &= ratio >= RATIO and later <= LATER_MS
        print(f"{client.name}: {ratio:.2f} of OpenAI's tokens/s (bar {RATIO}),", end=" ")
        print(f"first token {later:+.1f} ms (bar {LATER_MS})")
    return met


def _compared(found: Found, client: Client, streams: str, by: Any) -> float:
    mine: Sequence[Round] = found[client.name][streams]
    return float(statistics.median(by(m, t) for m, t in zip(mine, found[OPENAI.name][streams], strict=True)))


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.friendli")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    llm_config = engine(prepare_tiny(default_cache()).absolute())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster ends with this process
    with ours(configuration(llm_config), secrets.token_urlsafe(16), ROOT / ".run" / "bench-friendli") as run:
        return 0 if show(uvloop.run(measure(run, arguments.rounds))) else 1


if __name__ == "__main__":
    sys.exit(main())
