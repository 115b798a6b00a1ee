"""An engine is killed twenty times under streams of every dialect. `make kills`; not part of `make test`.

It prints how long the streams paused, from the routers' logs: from the last token before a death to the first after.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.local import processes as run_processes
from tests.faults.conftest import ENGINE, Cluster
from tests.faults.test_continuation import TOKENS, asked, differences, kinds, warm_up
from tests.support.processes.load import Lane, Outcome, unexplained
from tests.support.processes.seen import Seen, seen

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("KILLS", "20"))
OF_EACH = 4
BEGUN = 0.3
LONG = "The engine reads this sentence again when it takes over. " * 85
"""About a thousand tokens."""


@dataclass(frozen=True)
class Death:
    """One kill, what became of the streams, and how long (in seconds) they paused."""

    outcomes: list[Outcome]
    pauses_s: list[float]

    def __str__(self) -> str:
        if not self.pauses_s:
            return "no stream was lost"
        middle, longest = np.percentile(self.pauses_s, [50, 100])
        moved = f"{len(self.outcomes)} streams, {len(self.pauses_s)} moved"
        return f"{moved}: paused for {middle:.2f} s (at most {longest:.2f})"


def streams(filling: str) -> list[Lane]:
    """Of every kind; `filling` makes their prompts longer."""
    return [lane for number in range(OF_EACH) for lane in kinds(number, filling=filling)]


def moves(cluster: Cluster, since: float) -> Iterator[Mapping[str, Any]]:
    """The routers' log entries of moved streams after a time (Unix seconds)."""
    run = run_processes.record(cluster.launcher.directory)
    assert run is not None
    for log in (Path(run.directory) / "ray/session_latest/logs").glob("worker-*.err"):
        for line in log.read_text().splitlines():
            if '"stream_moved"' in line:
                entry = json.loads(line[line.index("{") :])
                if datetime.fromisoformat(entry["ts"]).timestamp() > since:
                    yield entry


def killed(cluster: Cluster, lanes: list[Lane]) -> Death:
    """Streams of which some lose their engine in the middle."""
    at: list[float] = []

    def kill() -> None:
        at.append(time.time())
        cluster.kill(ENGINE)

    outcomes = asked(cluster.url, lanes, int(BEGUN * TOKENS * len(lanes) / 4), kill)
    return Death(outcomes, [entry["pause_ms"] / 1000 for entry in moves(cluster, at[0])])


@pytest.mark.parametrize("filling", ["", LONG], ids=["short", "long"])
def test_no_stream_is_lost(cluster: Cluster, filling: str, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = streams(filling)
    warm_up(cluster)
    undisturbed = asked(cluster.url, lanes, 1, lambda: None)
    assert not unexplained(undisturbed)
    expected: Mapping[str, Seen] = {outcome.lane.name: seen(outcome.body) for outcome in undisturbed}
    deaths = []
    for number in range(KILLS):
        deaths.append(killed(cluster, lanes))
        with capsys.disabled():
            sys.stdout.write(f"\n{number + 1}: {deaths[-1]}; load {os.getloadavg()[0]:.1f}")
        cluster.whole_again()
    outcomes = [outcome for death in deaths for outcome in death.outcomes]
    pauses = [value for death in deaths for value in death.pauses_s]
    different = [
        f"{outcome.lane.name}: {path}"
        for outcome in outcomes
        for path, _, _ in differences(seen(outcome.body), expected[outcome.lane.name])
    ]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(outcomes)} streams, {len(pauses)} moved; paused for {np.median(pauses):.2f} s (p99 "
            f"{np.percentile(pauses, 99):.2f}, at most {max(pauses):.2f})"
        )
    assert not unexplained(outcomes)
    assert not different
