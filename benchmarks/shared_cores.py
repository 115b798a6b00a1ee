"""Engines that share cores: the cost of waiting threads that spin (OpenMP's default) or sleep, and of one thread per
core where that leaves none to other processes.

At the end of every step a thread waits for the others. If it spins and there is more than one engine, it keeps a core
from the threads that it waits for. The variants take turns.

    python -m benchmarks.shared_cores [--engines N] [--rounds N]    prints seconds of the slowest engine
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from deployments.weights.cache import default_cache, prepare

MODEL = "SmolLM2-135M-Instruct"
TOKENS = 24
ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE"}
WAYS: Mapping[str, Mapping[str, str]] = {
    "spinning": {},
    "sleeping": SLEEPING,
    "sleeping, a thread fewer": {**SLEEPING, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) - 1))},
}
"""The first is what the others are compared with."""


def measure(engines: int, weights: Path, variables: Mapping[str, str]) -> float:
    """The seconds that the slowest of the engines takes for one answer, and then for four at once."""
    command = [sys.executable, "-m", "benchmarks.shared_cores", "--engine", str(weights)]
    environment = {**os.environ, **ENVIRONMENT, **variables}
    started = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(engines)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit("an engine did not start")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(float(process.stdout.readline()) for process in started if process.stdout is not None)
    finally:
        for process in started:
            process.communicate()  # the end of its input ends it and the processes that it has started


def engine(weights: str) -> None:
    """One engine: reports that it is ready, waits for a line, and prints its seconds."""
    from vllm import LLM, SamplingParams

    llm = LLM(weights, dtype="bfloat16", max_model_len=512, max_num_seqs=8, enforce_eager=True, disable_log_stats=True)
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    llm.generate(["Hello"], params, use_tqdm=False)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for width in (1, 4):
        llm.generate([f"Tell me about {number}" for number in range(width)], params, use_tqdm=False)
    print(time.perf_counter() - began, flush=True)
    sys.stdin.read()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_cores")
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine is not None:
        engine(arguments.engine)
        return
    weights = prepare(MODEL, default_cache())
    heads = [f"{name} (s) | of spinning" for name in WAYS]
    print(f"| engines | {' | '.join(heads)} |\n| --- |{' --- | --- |' * len(heads)}")
    for number in (1, arguments.engines):
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(arguments.rounds):
            for name, variables in WAYS.items():
                seconds[name].append(measure(number, weights, variables))
        means = {name: statistics.mean(them) for name, them in seconds.items()}
        cells = [f"{mean:.1f} | {mean / means['spinning']:.2f}" for mean in means.values()]
        print(f"| {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
