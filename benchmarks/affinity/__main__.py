"""Compares policies in the model: `python -m benchmarks.affinity [--runs N] [--isolation]`. A table takes seconds."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.affinity.model import Outcome, simulate
from benchmarks.affinity.policies import POLICIES, Policy
from benchmarks.affinity.workloads import WORKLOADS, Workload

OURS = "2 roots more, first turns half (ours)"


def averaged(workload: Workload, policy: Callable[[], Policy], runs: int) -> tuple[Outcome, float]:
    """The mean of the runs, each with other keys, and the busiest replica of the worst run."""
    found = [simulate(workload, policy(), seed) for seed in range(runs)]
    return Outcome(*(mean(column) for column in zip(*found, strict=True))), max(outcome.busiest for outcome in found)


CALLERS = (1, 4, 16, 64)
SHARING: Sequence[tuple[str, Workload]] = (
    ("256 conversations of 6 turns, 4 replicas", Workload("", 256, 6, 16, 4, shared=2000)),
    ("1,024 single requests, 4 replicas", Workload("", 1024, 1, 16, 4, shared=2000)),
    ("1,024 single requests, 8 replicas", Workload("", 1024, 1, 64, 8, shared=2000)),
)


def isolation(runs: int) -> None:
    """Prints what `isolate_cache: caller` costs where callers send the same system prompt: each brings its own copy."""
    print(f"\nOne system prompt of 2,000 tokens, the share of prompts' tokens found in a cache (mean of {runs} runs)\n")
    print("| | shared by all |" + "".join(f" {callers} callers |" for callers in CALLERS[1:]))
    print("| --- |" + " --- |" * len(CALLERS))
    for name, workload in SHARING:
        found = []
        for callers in CALLERS:
            outcome, _ = averaged(replace(workload, prompts=callers), POLICIES[OURS], runs)
            found.append(f"{outcome.hits * outcome.could:.2f} ({outcome.first_ms:.0f} ms)")
        print(f"| {name} | " + " | ".join(found) + " |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.affinity")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--isolation", action="store_true", help="what isolated caches cost, instead")
    options = parser.parse_args()
    (isolation if options.isolation else policies)(options.runs)


def policies(runs: int) -> None:
    """Prints a table for each workload."""
    for workload in WORKLOADS:
        print(f"\n{workload.name} ({workload.replicas} replicas, mean of {runs} runs)\n")
        print("| policy | hits of what could | busiest, over the mean (worst run) | fullest above the mean | first |")
        print("| --- | --- | --- | --- | --- |")
        for name, policy in POLICIES.items():
            outcome, worst = averaged(workload, policy, runs)
            print(
                f"| {name} | {outcome.hits:.2f} | {outcome.busiest:.2f} ({worst:.2f}) | {outcome.peak:.1f} "
                f"| {outcome.first_ms:.0f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
