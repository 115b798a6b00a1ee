"""Large requests and answers while streams run. Some streams run through a router all the time, with their own engine.
Meanwhile large requests go to another engine through the same router, one after another or many at once, with pauses.
The comparison is of how late the streams' tokens are during a large request and in the pauses.

    python -m benchmarks.scale.large [CASE ...]      prints a table; exit status 1 beyond a limit
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.scale import client, machine
from benchmarks.scale.engine import ANSWER_BYTES, EMBEDDINGS

LATE_MS = 20.0
PER_S = 200.0
"""The least number of requests a second and core, of those that come many at once."""
KEPT_MIB = 16.0
"""How much more memory the router may have at the end than before."""
STREAMS, STEP_MS = 16, 5.0
TIMES, PAUSE_S = 12, 0.25
MESSAGES = 4000

_PACED, _LARGE, _ROUTER = 8775, 8776, 8777

DOCUMENT = {
    "max_body_bytes": 32 * 1024 * 1024,
    "endpoints": {
        "paced": {"tasks": ["chat"], "traffic": {"steps": 100}},
        "large": {"tasks": ["chat"], "traffic": {"whole": 100}},
        "vectors": {"tasks": ["embeddings"], "traffic": {"embedder": 100}},
    },
    "deployments": {
        "steps": machine.deployment(_PACED),
        "whole": machine.deployment(_LARGE),
        "embedder": {**machine.deployment(_LARGE), "tasks": ["embeddings"]},
    },
}


class Case(NamedTuple):
    """A large request."""

    path: str
    body: Mapping[str, Any]
    is_refused: bool = False
    at_once: int = 1
    late_ms: float = LATE_MS
    """How much later than in the pauses a stream's token may be, at p99."""

    @property
    def request(self) -> bytes:
        """The request as it is sent."""
        return client.http(self.path, self.body)


def _messages(count: int, size: int) -> list[dict[str, str]]:
    text = "The quick brown fox jumps over the lazy dog. " * (size // 45 + 1)
    return [{"role": ("user", "assistant")[number % 2], "content": text[:size]} for number in range(count)]


def _image(size: int) -> list[dict[str, Any]]:
    url = "data:image/png;base64," + "QUJD" * (size // 4)
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


_MOST = 31 * 1024 * 1024
_LONG = _messages(1, 1024 * 1024)
_CONVERSATION = _messages(MESSAGES - 1, 120)
_SHORT = _messages(1, 40)
_IDS = [12345] * 350_000
_EMPTY: list[dict[str, str]] = [{}] * 40_000

CASES: Mapping[str, Case] = {
    "150 prompts of 220 kB at once": Case(
        "/v1/chat/completions", {"model": "large", "messages": _messages(1, 220_000)}, at_once=150, late_ms=30.0
    ),
    "a prompt of 1 MiB": Case("/v1/chat/completions", {"model": "large", "messages": _LONG}),
    "a prompt of 1 MiB, Anthropic": Case("/v1/messages", {"model": "large", "max_tokens": 9, "messages": _LONG}),
    f"{EMBEDDINGS:,} embeddings": Case(
        "/v1/embeddings",
        {"model": "vectors", "input": [f"Sentence {number} of a long text." for number in range(EMBEDDINGS)]},
    ),
    f"{MESSAGES:,} messages": Case("/v1/chat/completions", {"model": "large", "messages": _CONVERSATION}),
    f"{MESSAGES:,} messages, Anthropic": Case(
        "/v1/messages", {"model": "large", "max_tokens": 9, "messages": _CONVERSATION}
    ),
    "350,000 token ids": Case("/v1/embeddings", {"model": "vectors", "input": _IDS}),
    "40,000 empty messages, refused": Case("/v1/chat/completions", {"model": "large", "messages": _EMPTY}, True),
    "a million empty messages, refused": Case(
        "/v1/chat/completions", {"model": "large", "messages": _EMPTY * 25}, True
    ),
    "a long grammar, refused": Case(
        "/v1/chat/completions",
        {"model": "large", "messages": _SHORT, "structured_outputs": {"grammar": 'root ::= "\\' + '"\\' * 500_000}},
        True,
    ),
    "an image of 31 MiB": Case("/v1/chat/completions", {"model": "large", "messages": _image(_MOST)}),
    "a text of 31 MiB": Case("/v1/chat/completions", {"model": "large", "messages": _messages(1, _MOST)}),
    "a text of 31 MiB with an emoji": Case(
        "/v1/chat/completions",
        {"model": "large", "messages": [{"role": "user", "content": "😀" + "word " * (_MOST // 5)}]},
    ),
    "4,000 messages of 31 MiB": Case(
        "/v1/chat/completions", {"model": "large", "messages": _messages(4000, _MOST // 4000 - 100)}
    ),
    "2,048 inputs of 31 MiB": Case(
        "/v1/embeddings", {"model": "vectors", "input": ["word " * (_MOST // 2048 // 5)] * 2048}
    ),
    "a schema of 31 MiB, refused": Case(
        "/v1/chat/completions",
        {"model": "large", "messages": _SHORT, "structured_outputs": {"json": {"description": "{9}" * (_MOST // 3)}}},
        True,
    ),
    f"an answer of {ANSWER_BYTES // 10**6} MB": Case(
        "/v1/chat/completions", {"model": "large", "messages": _SHORT, "logprobs": True, "top_logprobs": 5}
    ),
    f"an answer of {ANSWER_BYTES // 10**6} MB, Databricks": Case(
        "/serving-endpoints/large/invocations", {"messages": _SHORT, "logprobs": True, "top_logprobs": 5}
    ),
}


class Late(NamedTuple):
    """How late tokens are, at p99 in milliseconds, in the pauses and during large requests; and the median time of
    such requests in milliseconds. `per_s`: such requests per second of the router's CPU time, without streams."""

    quiet: float
    busy: float
    took: float
    per_s: float

    @property
    def delay(self) -> float:
        """The additional lateness due to the large request."""
        return self.busy - self.quiet


async def ask(case: Case, request: bytes) -> None:
    """Sends the case's requests."""
    await asyncio.gather(*(client.whole(_ROUTER, request, may_refuse=case.is_refused) for _ in range(case.at_once)))


async def beside(case: Case, router: psutil.Process) -> Late:
    """One case."""
    request, clock = case.request, machine.CpuTime(router)
    await ask(case, request)
    before = clock.us()
    await ask(case, request)
    per_s = case.at_once * 1e6 / (clock.us() - before)
    seconds = TIMES * (PAUSE_S + 0.6)
    paced = client.streamed("paced", int(seconds / STEP_MS * 1000))
    streams = [asyncio.create_task(client.stream(_ROUTER, paced)) for _ in range(STREAMS)]
    await asyncio.sleep(1)  # until all streams have started
    begun, spans = time.perf_counter(), []
    for _ in range(TIMES):
        await asyncio.sleep(PAUSE_S)
        start = time.perf_counter()
        await ask(case, request)
        spans.append((start, time.perf_counter()))
    ended = spans[-1][1]
    tokens = [token for tokens in await asyncio.gather(*streams) for token in tokens if begun < token.sent < ended]
    busy = [token.late for token in tokens if any(start <= token.sent <= end for start, end in spans)]
    # A token sent within its usual delay of a large request may wait for that request: it counts for neither.
    quiet = [token.late for token in tokens if not any(start - 0.1 < token.sent < end + 0.1 for start, end in spans)]
    took = client.median(end - start for start, end in spans) * 1000
    return Late(client.p99_ms(quiet), client.p99_ms(busy), took, per_s)


async def measure(router: psutil.Process, names: list[str]) -> tuple[dict[str, Late], float]:
    """The results of all cases, and the memory in MiB that the router kept."""
    await asyncio.gather(*(client.stream(_ROUTER, client.streamed("paced", 200)) for _ in range(STREAMS)))
    before = machine.rss_kib(router)
    found = {}
    for name in names:
        case = CASES[name]
        found[name] = await beside(case, router)
        print(
            f"{name}: {found[name].took:.0f} ms; tokens' p99 {found[name].quiet:.1f} ms in pauses, "
            f"{found[name].busy:.1f} meanwhile: {found[name].delay:.1f} later "
            f"(at most {case.late_ms:g}); {found[name].per_s:.0f} a second and core; "
            f"{(machine.rss_kib(router) - before) / 1024:.1f} MiB",
            flush=True,
        )
    await asyncio.sleep(1)
    return found, (machine.rss_kib(router) - before) / 1024


def main(names: list[str]) -> int:
    """The command line; returns the exit status."""
    with (
        machine.engine(_PACED, STEP_MS),
        machine.engine(_LARGE, 1),
        machine.router(_ROUTER, DOCUMENT) as router,
    ):
        found, kept = uvloop.run(measure(router, names or list(CASES)))
    print(f"Memory afterwards: {kept:.1f} MiB more (at most {KEPT_MIB:g}).")
    for name, outcome in found.items():
        case = CASES[name]
        if outcome.delay > case.late_ms or (case.at_once > 1 and outcome.per_s < PER_S):
            return 1
    return 0 if kept <= KEPT_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
