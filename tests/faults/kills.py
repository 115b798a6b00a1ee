"""An engine is killed twenty times under streams of every dialect, and under one stream. `make kills`; not part of
`make test`.

It prints when the routers noticed and how long the streams paused, from their logs: both from a stream's last token.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.local import processes as run_processes
from tests.faults.conftest import ENGINE, Cluster
from tests.faults.test_continuation import TOKENS, asked, by_work, differences, kinds, warm_up
from tests.support.processes.load import Lane, Outcome, unexplained
from tests.support.processes.seen import Seen, seen

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("KILLS", "20"))
OF_EACH = 4
BEGUN = 0.3
TIMES = "noticed_ms", "pause_ms"
LONG = "The engine reads this sentence again when it takes over. " * 85
"""About a thousand tokens."""


@dataclass(frozen=True)
class Death:
    """One kill, what became of the streams, and the log's entries of those that moved."""

    outcomes: list[Outcome]
    moves: list[Mapping[str, Any]]

    def __str__(self) -> str:
        return f"{len(self.outcomes)} streams, {told(self.moves)}"


def told(moves: Sequence[Mapping[str, Any]]) -> str:
    """How long they took, in seconds."""
    if not moves:
        return "none moved"
    noticed, paused = (np.percentile([move[name] for move in moves], [50, 99, 100]) / 1000 for name in TIMES)
    return f"{len(moves)} moved: noticed after {spread(noticed)}, went on after {spread(paused)}"


def spread(values: Any) -> str:
    middle, p99, longest = values
    return f"{middle:.2f} s (p99 {p99:.2f}, at most {longest:.2f})"


LATE_TOKENS = 1000
"""Of the one stream, when its engine dies."""


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
    return Death(outcomes, list(moves(cluster, at[0])))


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
    moved = [move for death in deaths for move in death.moves]
    different = [
        f"{outcome.lane.name}: {path}"
        for outcome in outcomes
        for path, _, _ in differences(seen(outcome.body), expected[outcome.lane.name])
    ]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(outcomes)} streams, {told(moved)}\n")
    assert not unexplained(outcomes)
    assert not different


def test_a_stream_alone_goes_on_after_a_thousand_tokens(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Without other streams the pause is what the successor needs for the prompt and these tokens."""
    lane, *_ = kinds(0, tokens=LATE_TOKENS + 900)
    warm_up(cluster)
    (undisturbed,) = asked(cluster.url, [lane], 1, lambda: None)
    pauses = []
    for number in range(KILLS):
        began = time.time()
        (outcome,) = asked(cluster.url, [lane], LATE_TOKENS, lambda: by_work(cluster.processes(ENGINE))[0].kill())
        assert not unexplained([outcome])
        assert not list(differences(seen(outcome.body), seen(undisturbed.body)))
        (move,) = moves(cluster, began)
        pauses.append((move["pause_ms"] - move["noticed_ms"]) / 1000)
        with capsys.disabled():
            sys.stdout.write(f"\n{number + 1}: {told([move])}; load {os.getloadavg()[0]:.1f}")
        cluster.whole_again()
    with capsys.disabled():
        sys.stdout.write(f"\nThen it went on after {spread(np.percentile(pauses, [50, 99, 100]))}\n")
