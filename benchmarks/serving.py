"""What the router costs: the same engine reached four ways, in one run, interleaved.

(a) straight at the model application, (b) through the router, (c) through Ray Serve LLM's own multi-model ingress as
Ray ships it, (d) the same with what our applications run with: Serve's throughput settings, no engine metrics through
Ray's agent. (c) and (d) gather tokens for 50 ms before they send them, (a) and (b) send each as it comes. The model has
one random layer, so that what is measured is the serving path. Machines are noisy: read the ratios.

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
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop
import yaml

from deployments.internal_key import HEADER, VARIABLE
from deployments.weights import default_cache, prepare_tiny

ROOT = Path(__file__).resolve().parents[1]
MODEL = "tiny-llama"
TOKENS = 64
HOST = "127.0.0.1"
PORT = 8765

BAR = {"tokens_per_s of (a)": 0.85, "tokens_per_s of (c)": 1.5, "tokens_per_s of (d)": 0.0, "ttft_ms over (a)": 5.0}


@dataclass(frozen=True)
class Path_:
    """One way to the engine: its name, the URL's path below the ingress, and the model to ask for."""

    name: str
    prefix: str
    model: str


PATHS = (
    Path_("(a) model application", "/deployments/tiny", MODEL),
    Path_("(b) router", "", "chat"),
    Path_("(c) Ray OpenAiIngress", "/ingress", MODEL),
    Path_("(d) the same, tuned", "/tuned", MODEL),
)


@dataclass
class Round:
    """What one burst of streams gave. Times are in milliseconds."""

    tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float
    cpu_s_per_1000_tokens: float


NOT_TUNED = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"}
"""Undoes, for one deployment's replicas, what the run's environment says."""


def as_shipped(llm_config: Mapping[str, Any]) -> dict[str, Any]:
    """The same engine with Ray's own defaults around it."""
    kept = {name: value for name, value in llm_config.items() if name != "log_engine_metrics"}
    variables = {**llm_config["runtime_env"]["env_vars"], **NOT_TUNED}
    return {**kept, "runtime_env": {"env_vars": variables}}


def configuration(weights: Path) -> dict[str, Any]:
    """The application under test: one engine for (a) and (b), one like it for (c), and the router."""
    llm_config = {
        "model_loading_config": {"model_id": MODEL, "model_source": str(weights)},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": 32,
            "enforce_eager": True,
        },
        # One thread: a layer 64 wide has no work for more, and idle OpenMP threads spin on the cores under test.
        "runtime_env": {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}},
        "log_engine_metrics": False,
        "deployment_config": {
            "ray_actor_options": {"num_cpus": 0.5},
            "autoscaling_config": {"min_replicas": 1, "max_replicas": 1},
        },
    }
    user_config = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"tiny": 100}}},
        "deployments": {"tiny": {"app": "tiny", "model": MODEL}},
    }
    return {
        "applications": [
            {
                "name": "router",
                "route_prefix": "/",
                "import_path": "deployments.router:build",
                "deployments": [{"name": "Router", "user_config": user_config}],
            },
            {
                "name": "tiny",
                "route_prefix": "/deployments/tiny",
                "import_path": "deployments.llm:build",
                "args": {"llm_config": llm_config},
            },
            {
                "name": "ingress",
                "route_prefix": "/ingress",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {
                    "llm_configs": [as_shipped(llm_config)],
                    "ingress_deployment_config": {"ray_actor_options": {"runtime_env": {"env_vars": NOT_TUNED}}},
                },
            },
            {
                "name": "tuned",
                "route_prefix": "/tuned",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {"llm_configs": [llm_config]},
            },
        ]
    }


@contextmanager
def application(key: str) -> Iterator[int]:
    """Starts it as `make serve` would; yields the launcher's pid."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(yaml.safe_dump(configuration(prepare_tiny(default_cache()).absolute())))
        command = [sys.executable, "-m", "deployments", "serve", "--config", str(config), "--port", str(PORT)]
        environment = {**os.environ, VARIABLE: key, "SWITCHYARD_RUN_DIR": folder}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if "ready" not in process.stdout.readline():
                raise SystemExit("the application did not start")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def cpu_seconds(run_of: int) -> float:
    """CPU time of every process of the application so far: those that carry the launcher's run id."""
    run_id = _run_id(psutil.Process(run_of))
    total = 0.0
    for process in psutil.process_iter():
        try:
            if process.pid == run_of or _run_id(process) == run_id:
                times = process.cpu_times()
                total += times.user + times.system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _run_id(process: psutil.Process) -> str | None:
    children = [process, *process.children()] if process.pid != os.getpid() else [process]
    return next((found for one in children if (found := one.environ().get("SWITCHYARD_RUN_ID"))), None)


class Stream(asyncio.Protocol):
    """One streamed answer, read as cheaply as Python can: the cores that it runs on are those under test."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._begun = 0.0
        self.done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        """When each event arrived, in seconds from the request on. Of several in one packet, each counts, all now."""

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport by type
        self._transport = transport
        self._begun = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.times and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(SystemExit(data.decode()))
            return
        self.times += [time.perf_counter() - self._begun] * data.count(b"data: {")
        self._tail = (self._tail + data)[-24:]
        if b"[DONE]" in self._tail and not self.done.done():
            self.done.set_result(self.times)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(SystemExit("a stream did not end"))


def request(path: Path_, key: str) -> bytes:
    """The HTTP request for one streamed answer of TOKENS tokens."""
    body = json.dumps(
        {
            "model": path.model,
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": TOKENS,
            "temperature": 0,  # drawing from 49,152 tokens would cost more than the model
            "ignore_eos": True,
            "stream": True,
        }
    )
    return (
        f"POST {path.prefix}/v1/chat/completions HTTP/1.1\r\nhost: {HOST}\r\n{HEADER}: {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def burst(path: Path_, key: str, *, streams: int, requests: int, launcher: int) -> Round:
    """`requests` answers, `streams` at a time."""
    left = iter(range(requests))
    answers: list[list[float]] = []
    sent = request(path, key)
    before, begun = cpu_seconds(launcher), time.perf_counter()

    async def worker() -> None:
        for _ in left:
            _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(sent), HOST, PORT)
            answers.append(await stream.done)

    await asyncio.gather(*(worker() for _ in range(streams)))
    elapsed, cpu = time.perf_counter() - begun, cpu_seconds(launcher) - before
    tokens = requests * TOKENS
    first = [times[0] * 1000 for times in answers]
    between = [(b - a) * 1000 for times in answers for a, b in itertools.pairwise(times)]
    return Round(
        tokens_per_s=tokens / elapsed,
        ttft_p50=statistics.median(first),
        ttft_p99=_p99(first),
        inter_token_p50=statistics.median(between),
        inter_token_p99=_p99(between),
        cpu_s_per_1000_tokens=cpu / tokens * 1000,
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


async def measure(key: str, launcher: int, rounds: int) -> dict[str, dict[str, list[Round]]]:
    """Rounds per path, at 16 streams and at one, the paths taking turns."""
    found: dict[str, dict[str, list[Round]]] = {path.name: {"16": [], "1": []} for path in PATHS}
    for number in range(-1, rounds):
        order = PATHS if number % 2 else PATHS[::-1]
        for streams, requests in ((16, 64), (1, 12)):
            for path in order:
                result = await burst(path, key, streams=streams, requests=requests, launcher=launcher)
                if number >= 0:  # the first one warms up
                    found[path.name][str(streams)].append(result)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def summary(found: Mapping[str, Mapping[str, Sequence[Round]]]) -> dict[str, dict[str, dict[str, float]]]:
    """The median over the rounds, per path, streams and measure."""
    return {
        path: {
            streams: {
                name: statistics.median(getattr(result, name) for result in results) for name in asdict(results[0])
            }
            for streams, results in by_streams.items()
        }
        for path, by_streams in found.items()
    }


def verdict(found: Mapping[str, Mapping[str, Sequence[Round]]]) -> dict[str, float]:
    """The ratios of the bar: medians of what each round says, since paths took turns within it."""
    a, b, c, d = (found[path.name] for path in PATHS)

    def ratio(mine: Sequence[Round], theirs: Sequence[Round]) -> float:
        return statistics.median(m.tokens_per_s / t.tokens_per_s for m, t in zip(mine, theirs, strict=True))

    over = statistics.median(m.ttft_p50 - t.ttft_p50 for m, t in zip(b["1"], a["1"], strict=True))
    return {
        "tokens_per_s of (a)": ratio(b["16"], a["16"]),
        "tokens_per_s of (c)": ratio(b["16"], c["16"]),
        "tokens_per_s of (d)": ratio(b["16"], d["16"]),
        "ttft_ms over (a)": over,
    }


def show(medians: Mapping[str, Mapping[str, Mapping[str, float]]], ratios: Mapping[str, float]) -> bool:
    """Prints the table and the verdict; whether the bar is met."""
    names = list(next(iter(medians.values()))["16"])
    for streams in ("16", "1"):
        print(f"\n{streams} stream(s){'':13}" + "".join(f"{name:>23}" for name in names))
        for path, values in medians.items():
            print(f"{path:24}" + "".join(f"{values[streams][name]:>23.1f}" for name in names))
    print()
    met = True
    for name, value in ratios.items():
        good = value <= BAR[name] if name.startswith("ttft") else value >= BAR[name]
        met &= good
        bar = f" (bar {BAR[name]}) {'met' if good else 'MISSED'}" if BAR[name] else ""
        print(f"(b) {name}: {value:.2f}{bar}")
    return met


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    key = secrets.token_urlsafe(16)
    with application(key) as launcher:
        found = uvloop.run(measure(key, launcher, arguments.rounds))
    medians, ratios = summary(found), verdict(found)
    met = show(medians, ratios)
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    rounds = {path: {n: [asdict(r) for r in rs] for n, rs in by.items()} for path, by in found.items()}
    report = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "medians": medians,
        "ratios": ratios,
        "rounds": rounds,
    }
    (results / f"{time.strftime('%Y%m%d-%H%M%S')}.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
