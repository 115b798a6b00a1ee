"""The CPU time that the router's own balancing saves: without it, requests go through HAProxy a second time.

Four canned upstreams, as four replicas, and the router, which calls them itself, or through HAProxy. The ways take
turns, and short and long answers separate the cost of a request from that of a token.

    python -m benchmarks.affinity.second_pass [--rounds N]        prints a table
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psutil
import uvloop

from benchmarks.affinity import processes
from benchmarks.load import HOST, burst
from benchmarks.programs import cpu_seconds, family, free_ports
from benchmarks.relay import ANSWERS, running, separated
from benchmarks.serving import Way, request

WAYS = {"to-ours": "directly, with a key", "to-least": "directly, without", "to-ingress": "through HAProxy"}
REPLICAS, STREAMS = 4, 16


def _pids(name: str) -> list[int]:
    """This benchmark's processes with `name` in their command line."""
    return [pid for pid in family(os.getpid())[1:] if name in " ".join(psutil.Process(pid).cmdline())]


def _cost_us(way: str, tokens: int, port: int, processes_of: dict[str, list[int]]) -> dict[str, float]:
    """The CPU time for an answer in each part, in microseconds."""
    sent = request(Way("router", "ours", "", way), "", tokens=tokens)
    before = {part: cpu_seconds(pids) for part, pids in processes_of.items()}
    if failures := uvloop.run(burst(sent, port, streams=STREAMS, requests=ANSWERS[tokens])).failures:
        raise SystemExit(f"no answer through {way}: {failures[0]}")
    return {part: (cpu_seconds(pids) - before[part]) / ANSWERS[tokens] * 1e6 for part, pids in processes_of.items()}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.affinity.second_pass")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="sy-", dir="/tmp") as folder, ExitStack() as started:
        ports = free_ports(REPLICAS)
        for port in ports:
            started.enter_context(running(port, "benchmarks.relay", "--upstream", "--port", str(port)))
        urls = [f"http://{HOST}:{port}" for port in ports]
        haproxy = started.enter_context(processes.ingress(urls, Path(folder)))
        router = started.enter_context(processes.router(haproxy, Path(folder), urls))
        parts = {"router": _pids("benchmarks.affinity.router"), "HAProxy": _pids("haproxy.cfg")}
        order = Random(0)
        for _ in range(rounds):
            for way in order.sample([*WAYS], len(WAYS)):
                for tokens in ANSWERS:
                    cost = _cost_us(way, tokens, int(router.rpartition(":")[2]), parts)
                    found.setdefault((way, tokens), []).append(cost)
    print("| CPU | router, per request | HAProxy | router, per token | HAProxy |")
    print("| --- | --- | --- | --- | --- |")
    for way, title in WAYS.items():
        short, long = (
            {part: statistics.median(cost[part] for cost in found[way, tokens]) for part in parts} for tokens in ANSWERS
        )
        per_request, per_token = zip(*(separated(short[part], long[part]) for part in parts), strict=True)
        cells = [f"{cost:.0f} us" for cost in per_request] + [f"{cost:.1f} us" for cost in per_token]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
