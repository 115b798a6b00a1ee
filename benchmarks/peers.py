"""Compares Switchyard with the gateways that people would use in its place: one vLLM process, reached through each in
turn.

    vLLM directly           the load generator asks the engine itself
    Switchyard's router     `switchyard router`
    vllm-router             vLLM's own, in Rust
    LiteLLM proxy           in Python
    canned chunks           no gateway and no engine: what the load generator itself takes

A round measures each way at 1, 16 and 64 requests at once; rounds follow one another, each in the other order. The
gateways that are not asked are frozen (SIGSTOP). First streamed chats, then, with another engine, embeddings. All
models have one random layer, so that what is measured is the serving path. The peers live in a virtual environment of
their own, made from requirements/peers.lock.

Then what `make serve` runs, with an engine of its own, beside vllm-router in front of vLLM's own server: prompts of 2
and 220 kB, 1, 20 and 150 at once. There the CPU time of every process counts, engines and HAProxy included.

    make peers              prints the tables, writes benchmarks/results/peers-<date>.json
    make peers QUICK=1      three rounds instead of seven
    make peers ONLY=served  what is served alone; `chat` and `embeddings` likewise

Read the ratios, which are taken round by round: everything shares the machine's cores, with the engine and with the
load generator, so that what a gateway takes is lost to the engine.
"""

import argparse
import asyncio
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import load, programs
from benchmarks.gateways import (
    CHAT,
    EMBEDDINGS,
    ENGINE,
    FLOOR,
    SERVED,
    SERVED_BY_THREE,
    SERVED_CHATS,
    Way,
    Workload,
    canned,
    clusters,
    engine,
    gateways,
)
from benchmarks.serving import ROOT, write_report
from deployments.local import processes

SETTLE_S = 1.0
"""The pause between resuming a gateway and its first request: it notices which connections the engine has closed
meanwhile."""

MOST_WARM = 64
"""The most requests at once before a turn."""


@dataclass
class Turn:
    """The results of one path in one turn. The CPU times are in seconds per 1,000 units."""

    per_s: float
    failed: int
    """The number of requests without an answer, which are not counted elsewhere."""
    first_ms: list[float]
    """Of each answer."""
    between_ms: list[float]
    """Between two events of an answer; none if it is not streamed."""
    gateway_cpu_s: float
    engine_cpu_s: float
    generator_cpu_s: float
    other_cores: float
    """The load from everything else on the machine meanwhile, in cores."""
    major_faults: int
    """Of the gateway and the engine."""
    waiting_threads: float
    """Of both: those that waited for a core, on average."""

    @property
    def cpu_s(self) -> float:
        """Of gateway and engine."""
        return self.gateway_cpu_s + self.engine_cpu_s


Found = Mapping[str, Mapping[int, Sequence[Turn]]]
"""Turns by path and number of requests at once, in the order of the rounds."""


@dataclass
class Row:
    """A summary of a path's turns: the medians, and the percentiles of all answers."""

    per_s: float
    failed: int
    """Of all rounds."""
    first_p50_ms: float
    first_p99_ms: float
    between_p50_ms: float | None
    between_p99_ms: float | None
    gateway_cpu_s: float
    engine_cpu_s: float
    generator_cpu_s: float
    other_cores: float
    longest_pause_ms: float | None
    """Between two events of one answer, in all rounds."""
    major_faults: float
    waiting_threads: float


@dataclass
class Comparison:
    """Switchyard compared with another path: medians of the rounds' ratios and differences."""

    ratio: float
    """The ratio of units per second; above 1 if Switchyard delivers more."""
    later_ms: float
    """By how much its first token, or its answer, comes later; below 0 if it comes earlier."""
    cpu: float
    """The ratio of the CPU time of gateway and engine."""


async def turn(workload: Workload, way: Way, upstream: Way, *, streams: int, requests: int) -> Turn:
    """One way's turn."""
    of_gateway, of_engine = list(way.pids()), list(upstream.pids())
    if way.name == ENGINE:
        of_gateway = []
    everything = [*of_gateway, *of_engine]

    def spent() -> list[float]:
        counted = programs.cpu_seconds(of_gateway), programs.cpu_seconds(of_engine), time.process_time()
        return [*counted, programs.other_cpu_seconds(everything)]

    stalled, before = programs.Stalls.of(everything), spent()
    given = await load.burst(workload.request(), way.port, streams=streams, requests=requests, end=workload.end)
    gateway, of_vllm, generator, other = (after - begun for after, begun in zip(spent(), before, strict=True))
    stalls = programs.Stalls.of(everything).since(stalled)
    for failure in given.failures[:1]:
        print(f"{way.name}, {streams} at once: {len(given.failures)} failed: {failure}", file=sys.stderr)
    if not given.answers:
        raise SystemExit(f"{way.name} answers nothing")
    units = workload.units * len(given.answers)
    return Turn(
        per_s=units / given.elapsed_s,
        failed=len(given.failures),
        first_ms=given.first_ms(),
        between_ms=given.between_ms(),
        gateway_cpu_s=gateway / units * 1000,
        engine_cpu_s=of_vllm / units * 1000,
        generator_cpu_s=generator / units * 1000,
        other_cores=other / given.elapsed_s,
        major_faults=stalls.major_faults,
        waiting_threads=stalls.waited_s / given.elapsed_s,
    )


async def measure(workload: Workload, ways: Sequence[Way], upstream: Way, rounds: int) -> Found:
    """The turns of all paths. `upstream`, the engine, always runs; of the gateways only the one under test."""
    found: dict[str, dict[int, list[Turn]]] = {way.name: {n: [] for n in workload.requests} for way in ways}
    for number in range(-1, rounds):  # the first one only warms up
        for way in ways if number % 2 else ways[::-1]:
            asleep = [other for other in ways if other not in (way, upstream)]
            with programs.frozen([pid for other in asleep for pid in other.pids()]):
                await asyncio.sleep(SETTLE_S)
                # A frozen process's pages may have been reclaimed: the first requests read them.
                most = min(MOST_WARM, max(workload.requests))
                await load.burst(workload.request(), way.port, streams=most, requests=most, end=workload.end)
                if number < 0:
                    continue
                for streams, requests in workload.requests.items():
                    asked = partial(turn, workload, way, upstream, streams=streams, requests=requests)
                    found[way.name][streams].append(await programs.undisturbed(asked))
        print(f"{workload.name}: round {number + 1} of {rounds}", file=sys.stderr)
    return found


def summary(turns: Sequence[Turn]) -> Row:
    """The row of a table."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in turns))

    first = [ms for one in turns for ms in one.first_ms]
    between = [ms for one in turns for ms in one.between_ms]
    return Row(
        per_s=median("per_s"),
        failed=sum(one.failed for one in turns),
        first_p50_ms=statistics.median(first),
        first_p99_ms=load.p99(first),
        between_p50_ms=statistics.median(between) if between else None,
        between_p99_ms=load.p99(between) if between else None,
        gateway_cpu_s=median("gateway_cpu_s"),
        engine_cpu_s=median("engine_cpu_s"),
        generator_cpu_s=median("generator_cpu_s"),
        other_cores=median("other_cores"),
        longest_pause_ms=max(between, default=None),
        major_faults=median("major_faults"),
        waiting_threads=median("waiting_threads"),
    )


def recorded(turns: Sequence[Turn]) -> dict[str, object]:
    """The row, and each turn's units per second, for the file of results."""
    return {**asdict(summary(turns)), "rounds_per_s": [one.per_s for one in turns]}


def comparison(mine: Sequence[Turn], theirs: Sequence[Turn]) -> Comparison:
    """Compares turns of the same rounds."""
    pairs = list(zip(mine, theirs, strict=True))
    return Comparison(
        ratio=statistics.median(m.per_s / t.per_s for m, t in pairs),
        later_ms=statistics.median(statistics.median(m.first_ms) - statistics.median(t.first_ms) for m, t in pairs),
        cpu=statistics.median(m.cpu_s / t.cpu_s for m, t in pairs),
    )


def tables(workload: Workload, found: Found) -> Iterator[str]:
    """The lines of the tables, in Markdown: the results of each path, then Switchyard's router against each peer."""
    first = "first token" if workload.units > 1 else "answer"
    for streams in workload.requests:
        between = " between tokens p50 / p99 / longest |" if workload.units > 1 else ""
        yield (
            f"| {workload.name}, {streams} at once | {workload.unit}/s | of vLLM's | {first} p50 / p99 |{between}"
            f" CPU-s per 1,000: gateway | engine | both | generator |"
        )
        yield "| --- |" + " --- |" * (8 if between else 7)
        for name, by_streams in found.items():
            row, share = summary(by_streams[streams]), comparison(by_streams[streams], found[ENGINE][streams]).ratio
            is_whole = name in (SERVED, SERVED_BY_THREE)
            cells = [
                f"**{name}**" if name == workload.ours else name,
                f"{row.per_s:,.0f}",
                "" if name in (ENGINE, FLOOR) else f"{share:.2f}",
                f"{row.first_p50_ms:.1f} / {row.first_p99_ms:.1f} ms",
                *(
                    [f"{row.between_p50_ms:.1f} / {row.between_p99_ms:.1f} / {row.longest_pause_ms:.0f} ms"]
                    if row.between_p50_ms is not None
                    else []
                ),
                "" if is_whole or name in (ENGINE, FLOOR) else f"{row.gateway_cpu_s:.3f}",
                "" if is_whole or name == FLOOR else f"{row.engine_cpu_s:.3f}",
                "" if name == FLOOR else f"{row.gateway_cpu_s + row.engine_cpu_s:.3f}",
                f"{row.generator_cpu_s:.3f}{f' ({row.failed} failed)' if row.failed else ''}",
            ]
            yield f"| {' | '.join(cells)} |"
        yield ""
    yield f"| {workload.ours} compared with | at once | {workload.unit}/s | {first} | CPU time | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for peer in workload.peers:
        for streams in workload.requests:
            compared = comparison(found[workload.ours][streams], found[peer][streams])
            cells = [peer, str(streams), f"{compared.ratio:.2f}", f"{compared.later_ms:+.1f} ms"]
            yield f"| {' | '.join(cells)} | {compared.cpu:.2f} | {_standing(compared)} |"
    yield ""


def _standing(compared: Comparison) -> str:
    behind = [*(["in throughput"] if compared.ratio < 1 else []), *(["at the first"] if compared.later_ms > 0 else [])]
    return f"behind {' and '.join(behind)}" if behind else "ahead"


def run(workloads: Sequence[Workload], peers: Path, rounds: int) -> Mapping[str, Found]:
    """Starts the engine and the gateways, and measures workloads that have these in common. The results by workload."""
    folder = ROOT / ".run" / "bench-peers"  # keeps the programs' logs
    [first, *_] = workloads
    with ExitStack() as running:
        try:
            running.enter_context(processes.exclusive(folder))
        except processes.AlreadyRunning:
            raise SystemExit(f"another run of this benchmark uses {folder}") from None
        upstream = running.enter_context(engine(first, folder))
        ways = [upstream, *running.enter_context(gateways(first, upstream, peers, folder))]
        if first is CHAT:
            ways.append(running.enter_context(canned(folder)))
        if first.ours == SERVED:
            ways += running.enter_context(clusters(first, folder))
        return {workload.name: uvloop.run(measure(workload, ways, upstream, rounds)) for workload in workloads}


def main() -> int:
    """The command line; returns the exit status."""
    kinds = {"chat": [CHAT], "embeddings": [EMBEDDINGS], "served": SERVED_CHATS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--rounds", type=int, help="default: 7")
    parser.add_argument("--peers", type=Path, default=ROOT / ".peers" / "bin", help="where the peers' programs are")
    parser.add_argument("--only", choices=kinds)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (3 if arguments.quick else 7)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all programs end with this process
    report: dict[str, dict[str, dict[int, dict[str, object]]]] = {}
    for kind, workloads in kinds.items():
        if arguments.only in (None, kind):
            results = run(workloads, arguments.peers, rounds)
            for workload in workloads:
                found = results[workload.name]
                print("\n".join(tables(workload, found)), flush=True)
                turns = {name: {n: recorded(them) for n, them in by.items()} for name, by in found.items()}
                report[workload.name] = turns
    write_report("peers-", workloads=report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
