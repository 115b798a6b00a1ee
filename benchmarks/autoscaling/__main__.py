"""Compares policies on a trace: `python -m benchmarks.autoscaling [TRACE.csv]`; each line takes some seconds. The trace
is 50 minutes of chats with bursts of 60 to 350 at once, a ramp, and phases of long prompts. It is synthetic, and stored
(`bursts.csv`), so that every policy gets the same one. The replicas are a model (`engine.py`); the autoscaling is Ray
Serve's own code with the same delays for all.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.autoscaling.simulation import START_S, TRACE, Outcome, read_trace, simulate

TARGETS = (16, 32, 48)
OUR_TARGETS = (32, 48, 64)
SOONER_S = 10.0
DELAYS: Mapping[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 8,
    "upscale_delay_s": 5,
    "downscale_delay_s": 300,
    "look_back_period_s": 10,
    "metrics_interval_s": 2,
}
POLICY = {"policy_function": "deployments.autoscaling:replicas_needed"}


class Row(NamedTuple):
    """One line of the table."""

    policy: str
    start_s: float
    target: int
    outcome: Outcome


def rows(path: Path = TRACE) -> Iterator[Row]:
    """Serve's policy, the same policy with the router's report of refused requests, and ours; then ours with replicas
    that start sooner, and with waiting requests that move to them."""
    trace = read_trace(path)
    for target in TARGETS:
        settings = {**DELAYS, "target_ongoing_requests": target}
        yield Row("Serve's", START_S, target, simulate(trace, settings, reports_queue=False))
    for target in TARGETS:
        settings = {**DELAYS, "target_ongoing_requests": target}
        yield Row("Serve's, with the router's queue", START_S, target, simulate(trace, settings, reports_queue=True))
    for target in OUR_TARGETS:
        settings = {**DELAYS, "target_ongoing_requests": target, "policy": POLICY}
        for start_s in (START_S, SOONER_S):
            outcome = simulate(trace, settings, reports_queue=True, start_s=start_s)
            yield Row("`replicas_needed`", start_s, target, outcome)
            outcome = simulate(trace, settings, reports_queue=True, start_s=start_s, moves=True)
            yield Row("`replicas_needed`, with moves", start_s, target, outcome)


def main(path: Path = TRACE) -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")  # Ray's warning: `metrics_interval_s` is deprecated, but works
    print("| policy | start | target | GPU-seconds | late first tokens | refusals | most replicas |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows(path):
        outcome = row.outcome
        late = f"{outcome.late:,} ({outcome.late / outcome.requests:.0%})"
        print(
            f"| {row.policy} | {row.start_s:.0f} s | {row.target} | {outcome.gpu_s:,.0f} | {late} "
            f"| {outcome.refused:,} | {outcome.most} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
