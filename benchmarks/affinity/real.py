"""Compares balancing policies in front of the same real vLLM, in one run.

Four replicas with a small random model; 64 conversations of 6 turns, 16 at once, without and with a system prompt of
about 2,000 tokens. The policies take turns in each round, with the same conversations and empty caches. Hits are vLLM's
own counts; the possible hits are those with all conversations on one replica.

The replicas are parts of one engine's prefix cache (`fronts`), which counts hits as four engines do and needs the
memory of one; `--engines` starts four.

    python -m benchmarks.affinity.real [--rounds N] [--engines] [--vllm-router PATH] [--only WAY …]     prints tables
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from app.exchange.affinity import prompt_prefix
from benchmarks.affinity import processes

CONVERSATIONS, TURNS, AT_ONCE, REPLICAS = 64, 6, 16, 4
SYSTEM_WORDS = {"no system prompt": 0, "a system prompt for all": 1300}
WORDS = [
    f"{a}{b}" for a in ("ba", "de", "fi", "go", "lu", "ma", "ne", "po", "ri", "su") for b in ("ck", "nd", "rt", "sh")
]
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
_REQUESTS = "vllm:request_success_total"

Address = Callable[[Mapping[str, Any]], tuple[str, Mapping[str, str], Callable[[], None]]]
"""Request body -> (base URL, headers, callback for the end of the request)."""


class Outcome(NamedTuple):
    """The result of one policy in one round. `busiest`: the busiest engine's requests divided by the mean. `firsts`:
    seconds."""

    hits: float
    busiest: float
    firsts: Sequence[float]
    seconds: float


def words(rng: random.Random, number: int) -> str:
    """So many words."""
    return " ".join(rng.choices(WORDS, k=number))


class RaysRule:
    """Ray's PrefixCacheAffinityRouter with its own prefix tree and its default settings, without Serve."""

    def __init__(self, urls: Sequence[str]) -> None:
        from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

        self._tree, self._urls = PrefixTree(), urls
        self._under_way = dict.fromkeys(urls, 0)
        self._tree.add_tenants(list(urls), time.time())

    def __call__(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, str], Callable[[], None]]:
        text = "".join(message["content"] for message in body["messages"])
        matched, chosen = self._tree.prefix_match(text, list(self._urls))
        if len(matched) / len(text) < 0.1:
            chosen = self._tree.get_smallest_tenants()
        url = min(chosen or self._urls, key=self._under_way.__getitem__)
        self._tree.insert(text, url, time.time())
        self._under_way[url] += 1

        def over() -> None:
            self._under_way[url] -= 1

        return url, {}, over


def _nothing() -> None:
    pass


def through(base: str, *, keyed: bool = False) -> Address:
    """Sends everything to one address; `keyed`: with the key for HAProxy's own hashing."""

    def address(body: Mapping[str, Any]) -> tuple[str, Mapping[str, str], Callable[[], None]]:
        headers = {"x-key": format(hash(prompt_prefix("chat", body)), "x")} if keyed else {}
        return base, headers, _nothing

    return address


async def _converse(
    session: aiohttp.ClientSession, address: Address, model: str, system_words: int, seed: int
) -> Sequence[float]:
    """The seconds until the first token of each request."""
    shared = words(random.Random(seed), system_words)
    ready: list[tuple[int, list[dict[str, str]], random.Random]] = []
    # In a fixed order, round-robin would bring each conversation back to its replica by chance.
    drawn = random.Random(seed)
    for number in range(CONVERSATIONS):
        rng = random.Random(seed * 1000 + number)
        messages = [{"role": "system", "content": shared}] if shared else []
        ready.append((0, messages, rng))
    firsts: list[float] = []

    async def work() -> None:
        while ready:
            turn, messages, rng = ready.pop(drawn.randrange(len(ready)))
            asks = {"role": "user", "content": words(rng, 120 if turn == 0 else rng.randint(30, 90))}
            messages = [*messages, asks]
            first, answer = await _ask(session, address, {"model": model, "messages": messages})
            firsts.append(first)
            if turn + 1 < TURNS:
                ready.append((turn + 1, [*messages, {"role": "assistant", "content": answer}], rng))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return firsts


async def _ask(session: aiohttp.ClientSession, address: Address, body: dict[str, Any]) -> tuple[float, str]:
    """The seconds until the first token, and the answer."""
    body |= {"stream": True, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    base, headers, over = address(body)
    began, first, parts = time.perf_counter(), 0.0, []
    try:
        async with session.post(f"{base}/v1/chat/completions", json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                delta = json.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    first = first or time.perf_counter() - began
                    parts.append(delta["content"])
    finally:
        over()
    return first or time.perf_counter() - began, "".join(parts)


async def _counters(session: aiohttp.ClientSession, url: str) -> Mapping[str, float]:
    """Of one engine."""
    found = dict.fromkeys((_QUERIES, _HITS, _REQUESTS), 0.0)
    async with session.get(f"{url}/metrics") as response:
        for line in (await response.text()).splitlines():
            name = line.partition("{")[0]
            if name in found:
                found[name] += float(line.rpartition(" ")[2])
    return found


async def measure(urls: Sequence[str], address: Address, model: str, system_words: int, seed: int) -> Outcome:
    """Measures one policy in one round."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        for url in urls:
            async with session.post(f"{url}/reset_prefix_cache") as response:
                response.raise_for_status()
        before = [await _counters(session, url) for url in urls]
        began = time.perf_counter()
        firsts = await _converse(session, address, model, system_words, seed)
        seconds = time.perf_counter() - began
        after = [await _counters(session, url) for url in urls]
    grown = [{name: new[name] - old[name] for name in new} for old, new in zip(before, after, strict=True)]
    requests = [counts[_REQUESTS] for counts in grown]
    hits = sum(counts[_HITS] for counts in grown) / sum(counts[_QUERIES] for counts in grown)
    return Outcome(hits, max(requests) / statistics.mean(requests), firsts, seconds)


def ways(urls: Sequence[str], started: ExitStack, directory: Path, peer: Path | None) -> dict[str, Any]:
    """The policies, each with a factory of its address and the model's name there."""
    haproxy = started.enter_context(processes.ingress(urls, directory))
    router = started.enter_context(processes.router(haproxy, directory, urls))
    found: dict[str, Any] = {
        "least connections, through the router": (lambda: through(router), "to-least"),
        "**ours**, through the router": (lambda: through(router), "to-ours"),
        "Ray's `PrefixCacheAffinityRouter`, its rule alone": (lambda: RaysRule(urls), processes.MODEL),
    }
    for name, percent in processes.NATIVE.items():
        base = f"{haproxy}/deployments/{name}"
        found[f"HAProxy's own bound {percent / 100:g}"] = (lambda base=base: through(base, keyed=True), processes.MODEL)
    if peer is not None:
        other = started.enter_context(processes.vllm_router(peer, urls, directory))
        found["vllm-router, `cache_aware`"] = (lambda: through(other), processes.MODEL)
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.affinity.real")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", action="store_true", help="an engine for each replica: four times the memory")
    parser.add_argument("--vllm-router", type=Path, help="the peer's binary; left out, it is not measured")
    parser.add_argument("--only", nargs="+", metavar="WAY", help="parts of the names of the ways to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sy-", dir="/tmp") as folder, ExitStack() as started:
        directory = Path(folder)
        replicas = processes.engines if arguments.engines else processes.replicas_of_one
        urls = started.enter_context(replicas(REPLICAS, directory))
        compared = {
            name: way
            for name, way in ways(urls, started, directory, arguments.vllm_router).items()
            if arguments.only is None or any(part in name for part in arguments.only)
        }
        outcomes: dict[str, dict[str, list[Outcome]]] = {
            title: {name: [] for name in compared} for title in SYSTEM_WORDS
        }
        could: dict[str, list[float]] = {title: [] for title in SYSTEM_WORDS}
        for number in range(arguments.rounds):
            for title, system_words in SYSTEM_WORDS.items():
                one = asyncio.run(measure(urls, through(urls[0]), processes.MODEL, system_words, number))
                could[title].append(one.hits)
                for name, (address, model) in compared.items():
                    outcomes[title][name].append(asyncio.run(measure(urls, address(), model, system_words, number)))
                _print(f"{title}, after {number + 1} rounds", outcomes[title], could[title])


def _print(title: str, outcomes: Mapping[str, Sequence[Outcome]], could: Sequence[float]) -> None:
    print(f"\n{title}; {statistics.mean(could):.2f} of the tokens could hit\n")
    print("| | hits | of what could | busiest, over the mean (worst round) | first token p50 / p99 | s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, runs in outcomes.items():
        hits = statistics.mean(run.hits for run in runs)
        share = statistics.mean(run.hits / best for run, best in zip(runs, could, strict=True))
        busiest = [run.busiest for run in runs]
        firsts = sorted(first for outcome in runs for first in outcome.firsts)
        p50, p99 = (firsts[int(len(firsts) * q)] * 1000 for q in (0.5, 0.99))
        seconds = statistics.mean(first.seconds for first in runs)
        print(
            f"| {name} | {hits:.2f} | {share:.2f} | {statistics.mean(busiest):.2f} ({max(busiest):.2f}) "
            f"| {p50:.0f} / {p99:.0f} ms | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
