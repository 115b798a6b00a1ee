"""The cost of the router: the same engine reached on four paths, in one interleaved run. Two Ray clusters run side by
side; each path has its own engine, and all engines are alike. In ours, started as `make serve` starts it (HAProxy in
front, Serve's throughput settings, no engine metrics through Ray's agent):

(a) the model application directly;
(b) through the router;
(d) through Ray Serve LLM's own multi-model ingress, `build_openai_app`, with everything that we tuned around it.

In the other one, with Ray's own defaults (`benchmarks/shipped.py`: `ray start --head`, `serve run`, no RAY_SERVE_*
variable), so that Serve's Python proxy is in front and the throughput settings are off:

(c) `build_openai_app` as Ray ships it.

(c) and (d) gather tokens for 50 ms before they send them, (a) and (b) send each as it comes. One way is measured at a
time, and the cluster that is not asked is frozen (SIGSTOP): an idle one takes a tenth to a third of a core. What it may
still change shows in the row of (a) alone, measured before the other cluster starts; what else ran on the machine
shows in `other_cores`. The model has one random layer, so that what is measured is the serving path. Machines are
noisy: read the ratios.

    make bench        prints a table, writes benchmarks/results/<date>.json; exit status 1 below the bar

The bar, at 16 streams: (b) gives at least 0.85 of (a)'s tokens/s and 1.5 times (c)'s; at one stream: its first token
comes at most 5 ms after (a)'s.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import uvloop
import yaml

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE
from app.internal_keys import Purpose, derived
from benchmarks import load, programs, shipped
from deployments.local import processes
from deployments.weights.cache import default_cache, prepare_tiny

ROOT = Path(__file__).resolve().parents[1]
MODEL = "tiny-llama"
TOKENS = 64
PORT = 8765

BAR = {"tokens_per_s of (a)": 0.85, "tokens_per_s of (c)": 1.5, "tokens_per_s of (d)": 0.0, "ttft_ms over (a)": 5.0}


@dataclass(frozen=True)
class Way:
    """One path to an engine: its name, its cluster, the URL path below that cluster's ingress, the model to request."""

    name: str
    cluster: Literal["ours", "shipped"]
    prefix: str
    model: str


WAYS = (
    Way("(a) model application", "ours", "/deployments/tiny", MODEL),
    Way("(b) router", "ours", "", "chat"),
    Way("(d) OpenAiIngress, tuned", "ours", "/tuned", MODEL),
    Way("(c) OpenAiIngress, shipped", "shipped", "", MODEL),
)
"""The paths in the order of their turns; those of one cluster are adjacent."""

SETTLE_S = 2.0
"""The pause between resuming a cluster and its first request: timers that came due meanwhile run first."""


@dataclass
class Round:
    """The results of one burst of streams. Times are in milliseconds."""

    tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float
    cpu_s_per_1000_tokens: float
    """Of the cluster that is asked."""
    other_cores: float
    """The load from everything else on the machine meanwhile, in cores, without the load generator and the cluster."""
    longest_pause: float
    """Between two events of one answer."""
    major_faults: int
    """Of the cluster that is asked."""
    waiting_threads: float
    """Of that cluster: those that waited for a core, on average."""


def engine(weights: Path, max_num_seqs: int = 32) -> dict[str, Any]:
    """The LLMConfig of every path's engine."""
    return {
        "model_loading_config": {"model_id": MODEL, "model_source": str(weights)},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": max_num_seqs,
            "enforce_eager": True,
        },
        # One thread: a layer 64 wide has no work for more, and idle OpenMP threads spin on the cores under test. Ours
        # compiles nothing, so Ray's do not either.
        "runtime_env": {
            "env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
        },
        "deployment_config": {
            "ray_actor_options": {"num_cpus": 0.5},
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 1},
        },
    }


def ingress(prefix: str, llm_config: Mapping[str, Any]) -> dict[str, Any]:
    """Ray Serve LLM's own application for `llm_config`."""
    return {
        "name": "ingress",
        "route_prefix": prefix,
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [dict(llm_config)]},
    }


def one_endpoint(llm_config: Mapping[str, Any], endpoint: str, routers: int = 1) -> list[dict[str, Any]]:
    """The applications of an endpoint of one engine."""
    user_config = {
        "endpoints": {endpoint: {"tasks": ["chat", "completions"], "traffic": {"tiny": 100}}},
        "deployments": {"tiny": {"app": "tiny", "model": MODEL}},
    }
    return [
        {
            "name": "router",
            "route_prefix": "/",
            "import_path": "deployments.router:build",
            "deployments": [{"name": "Router", "num_replicas": routers, "user_config": user_config}],
        },
        {
            "name": "tiny",
            "route_prefix": "/deployments/tiny",
            "import_path": "deployments.llm:build",
            "args": {"llm_config": dict(llm_config)},
        },
    ]


def configuration(llm_config: Mapping[str, Any]) -> dict[str, Any]:
    """The applications of our cluster: one engine for (a) and (b) with the router, and one for (d)."""
    return {
        "applications": [
            *one_endpoint(llm_config, "chat"),
            ingress("/tuned", {**llm_config, "log_engine_metrics": False}),
        ]
    }


@contextmanager
def ours(served: Mapping[str, Any], key: str, directory: Path, port: int = PORT) -> Iterator[processes.Run]:
    """Starts a cluster that serves `served` as `make serve` would; yields its run once it is ready."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "bench.yaml"
    config.write_text(yaml.safe_dump(dict(served)))
    command = [sys.executable, "-m", "deployments", "serve", str(config), "--port", str(port)]
    environment = {**os.environ, INTERNAL_KEY_VARIABLE: key, processes.RUN_DIRECTORY: str(directory)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if "ready" not in process.stdout.readline():
            raise SystemExit("the application did not start")
        run = processes.record(directory)
        assert run is not None, "written before the launcher says that it is ready"
        yield run
    finally:
        process.terminate()
        process.wait()
        processes.stop(directory)


def asking(model: str, tokens: int, prompt: str = "Tell me a story.") -> dict[str, Any]:
    """The body of a request for one streamed answer of `tokens` tokens."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,  # sampling from 49,152 tokens would cost more than the model
        "ignore_eos": True,
        "stream": True,
    }


def request(way: Way, key: str, *, tokens: int = TOKENS) -> bytes:
    """The HTTP request for one streamed answer of `tokens` tokens."""
    path, body = f"{way.prefix}/v1/chat/completions", asking(way.model, tokens)
    return load.post(path, body, f"{INTERNAL_KEY_HEADER}: {derived(key, Purpose.ENGINE)}")


async def burst(sent: bytes, run: processes.Run, *, streams: int, requests: int, end: bytes = b"[DONE]") -> Round:
    """`requests` answers to the request `sent`, `streams` at a time, undisturbed and after as many as run at once: an
    idle process's pages may have been reclaimed. Raises AnswerFailed if one fails."""
    await load.burst(sent, run.port, streams=streams, requests=streams, end=end)
    return await programs.undisturbed(lambda: _burst(sent, run, streams=streams, requests=requests, end=end))


async def _burst(sent: bytes, run: processes.Run, *, streams: int, requests: int, end: bytes) -> Round:
    pids = processes.processes_of(run.run_id)
    stalled = programs.Stalls.of(pids)
    before, others = programs.cpu_seconds(pids), programs.other_cpu_seconds(pids)
    given = await load.burst(sent, run.port, streams=streams, requests=requests, end=end)
    for failure in given.failures:
        raise failure
    others, cpu = programs.other_cpu_seconds(pids) - others, programs.cpu_seconds(pids) - before
    stalls = programs.Stalls.of(pids).since(stalled)
    tokens = requests * TOKENS
    first, between = given.first_ms(), given.between_ms()
    return Round(
        tokens_per_s=tokens / given.elapsed_s,
        ttft_p50=statistics.median(first),
        ttft_p99=load.p99(first),
        inter_token_p50=statistics.median(between),
        inter_token_p99=load.p99(between),
        cpu_s_per_1000_tokens=cpu / tokens * 1000,
        other_cores=others / given.elapsed_s,
        longest_pause=max(between),
        major_faults=stalls.major_faults,
        waiting_threads=stalls.waited_s / given.elapsed_s,
    )


Found = dict[str, dict[str, list[Round]]]
"""Rounds by path and number of streams."""


async def measure(ways: Sequence[Way], clusters: Mapping[str, processes.Run], key: str, rounds: int) -> Found:
    """Runs rounds with 16 streams and with one, in which the paths take turns."""
    found: Found = {way.name: {"16": [], "1": []} for way in ways}
    for number in range(-1, rounds):  # the first one warms up
        order = ways if number % 2 else ways[::-1]
        for streams, requests in ((16, 64), (1, 12)):
            for cluster, turns in itertools.groupby(order, key=lambda way: way.cluster):
                asleep = [run for name, run in clusters.items() if name != cluster]
                with programs.frozen(pid for run in asleep for pid in processes.processes_of(run.run_id)):
                    await asyncio.sleep(SETTLE_S)
                    for way in turns:
                        result = await burst(request(way, key), clusters[cluster], streams=streams, requests=requests)
                        if number >= 0:
                            found[way.name][str(streams)].append(result)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def summary(found: Mapping[str, Mapping[str, Sequence[Round]]]) -> dict[str, dict[str, dict[str, float]]]:
    """The median over the rounds, by path, number of streams and measure; of pauses the longest."""
    return {
        way: {streams: medians(results) for streams, results in by_streams.items()}
        for way, by_streams in sorted(found.items())
    }


def medians(results: Sequence[Round]) -> dict[str, float]:
    """By measure."""
    return {
        name: (max if name == "longest_pause" else statistics.median)(getattr(result, name) for result in results)
        for name in asdict(results[0])
    }


def verdict(found: Mapping[str, Mapping[str, Sequence[Round]]]) -> dict[str, float]:
    """The target's ratios: medians of each round's ratio, since the paths take turns within a round."""
    a, b, d, c = (found[way.name] for way in WAYS)

    def ratio(mine: Sequence[Round], theirs: Sequence[Round]) -> float:
        return statistics.median(m.tokens_per_s / t.tokens_per_s for m, t in zip(mine, theirs, strict=True))

    over = statistics.median(m.ttft_p50 - t.ttft_p50 for m, t in zip(b["1"], a["1"], strict=True))
    return {
        "tokens_per_s of (a)": ratio(b["16"], a["16"]),
        "tokens_per_s of (c)": ratio(b["16"], c["16"]),
        "tokens_per_s of (d)": ratio(b["16"], d["16"]),
        "ttft_ms over (a)": over,
    }


def show(rows: Mapping[str, Mapping[str, Mapping[str, float]]], ratios: Mapping[str, float]) -> bool:
    """Prints the table and the verdict; returns whether the target is met."""
    names = list(next(iter(rows.values()))["16"])
    for streams in ("16", "1"):
        print(f"\n{streams + ' stream(s)':28}" + "".join(f"{name:>23}" for name in names))
        for way, values in rows.items():
            print(f"{way:28}" + "".join(f"{values[streams][name]:>23.2f}" for name in names))
    print()
    met = True
    for name, value in ratios.items():
        good = value <= BAR[name] if name.startswith("ttft") else value >= BAR[name]
        met &= good
        bar = f" (bar {BAR[name]}) {'met' if good else 'MISSED'}" if BAR[name] else ""
        print(f"(b) {name}: {value:.2f}{bar}")
    return met


def write_report(kind: str, **found: Any) -> None:
    """Writes a benchmark's results to benchmarks/results/, in a file named after `kind` and the time."""
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    when = time.gmtime()
    report = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", when),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **found,
    }
    (results / f"{kind}{time.strftime('%Y%m%d-%H%M%S', when)}.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    key, directory = secrets.token_urlsafe(16), ROOT / ".run" / "bench"
    llm_config = engine(prepare_tiny(default_cache()).absolute())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both clusters end with this process
    with ours(configuration(llm_config), key, directory / "ours") as run:
        alone = uvloop.run(measure(WAYS[:1], {"ours": run}, key, 3))
        with shipped.cluster(ingress("/", llm_config), MODEL, directory / "shipped") as other:
            found = uvloop.run(measure(WAYS, {"ours": run, "shipped": other}, key, arguments.rounds))
    found = {**found, **{f"{name}, alone": rounds for name, rounds in alone.items()}}
    rows, ratios = summary(found), verdict(found)
    met = show(rows, ratios)
    write_report(
        "",
        medians=rows,
        ratios=ratios,
        rounds={way: {n: [asdict(r) for r in rs] for n, rs in by.items()} for way, by in found.items()},
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
