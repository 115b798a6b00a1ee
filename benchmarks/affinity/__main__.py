"""Compares the policies in the model: `python -m benchmarks.affinity [--runs N]`. Each table takes seconds."""

import argparse
from collections.abc import Callable
from statistics import mean

from benchmarks.affinity.model import Outcome, simulate
from benchmarks.affinity.policies import POLICIES, Policy
from benchmarks.affinity.workloads import WORKLOADS, Workload


def averaged(workload: Workload, policy: Callable[[], Policy], runs: int) -> tuple[Outcome, float]:
    """The mean of the runs, each with other keys, and the busiest replica of the worst run."""
    found = [simulate(workload, policy(), seed) for seed in range(runs)]
    return Outcome(*(mean(it) for it in zip(*found, strict=True))), max(it.busiest for it in found)


def main() -> None:
    """Prints a table for each workload."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.affinity")
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    for workload in WORKLOADS:
        print(f"\n{workload.name} ({workload.replicas} replicas, mean of {runs} runs)\n")
        print("| policy | hits of what could | busiest, over the mean (worst run) | fullest above the mean | first |")
        print("| --- | --- | --- | --- | --- |")
        for name, policy in POLICIES.items():
            it, worst = averaged(workload, policy, runs)
            print(
                f"| {name} | {it.hits:.2f} | {it.busiest:.2f} ({worst:.2f}) | {it.peak:.1f} | {it.first_ms:.0f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
