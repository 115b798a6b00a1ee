"""Mixed traffic for a long time: nothing fails, and nothing grows. `make soak MINUTES=30`; not part of `make test`.

Every few seconds everything that could grow is measured: each process's memory and file descriptors, the routers' tasks
and event-loop lag. The rise of a straight line through all but the first quarter must stay below a bound.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest

from tests.faults.conftest import ENGINE, PROXY, REPLICA, ROUTER, Cluster
from tests.support.processes.load import Traffic, lanes, sent, unexplained

pytestmark = [pytest.mark.real, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("MINUTES", "30"))
LOOK_EVERY_S = 5.0

MAY_GAIN: Mapping[str, float] = {"rss_mb": 40, "fds": 40, "tasks": 40, "lag_s": 0.2}
"""Over the whole of the run."""


@dataclass
class Signs:
    """The measurements of each process, by its title and pid: kind of sign to (seconds, value)."""

    seen: dict[str, dict[str, list[tuple[float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def look(self, cluster: Cluster, elapsed_s: float) -> None:
        """Reads the values of all processes."""
        for title in (ROUTER, REPLICA, ENGINE, PROXY):
            for process in cluster.processes(title):
                name = f"{title} {process.pid}"
                self.note(name, "rss_mb", elapsed_s, process.memory_info().rss / 2**20)
                self.note(name, "fds", elapsed_s, process.num_fds())
        values = cluster.metrics()
        self.note("a router", "tasks", elapsed_s, values["switchyard_asyncio_tasks"])
        self.note("a router", "lag_s", elapsed_s, values["switchyard_event_loop_lag_seconds"])

    def note(self, name: str, sign: str, elapsed_s: float, value: float) -> None:
        """Records one value."""
        self.seen[name][sign].append((elapsed_s, value))

    def grown(self) -> list[str]:
        """The values that grow beyond their bounds."""
        gains = ((name, sign, gain(values)) for name, signs in self.seen.items() for sign, values in signs.items())
        return [f"{name}: {sign} gains {gained:.1f}" for name, sign, gained in gains if gained > MAY_GAIN[sign]]


def gain(values: Sequence[tuple[float, float]]) -> float:
    """The rise of the straight line through all but the first quarter, from its start to its end."""
    times, level = np.array(values[len(values) // 4 :]).T
    if len(times) < 3:
        return 0.0
    slope, _ = np.polyfit(times, level, 1)
    return float(slope * (times[-1] - times[0]))


def leave_in_the_middle(url: str, stop: threading.Event) -> None:
    """Clients that request long answers and disconnect at once."""
    while not stop.is_set():
        for lane in lanes(tokens=500):
            sent(url, lane).close()
            stop.wait(0.5)


def test_nothing_fails_and_nothing_grows(cluster: Cluster) -> None:
    signs, stop = Signs(), threading.Event()
    leaver = threading.Thread(target=leave_in_the_middle, args=(cluster.url, stop))
    pids = {process.pid for title in (ROUTER, REPLICA, ENGINE) for process in cluster.processes(title)}
    with Traffic(cluster.url, lanes()).running() as traffic:
        leaver.start()
        try:
            begun = time.monotonic()
            while (elapsed := time.monotonic() - begun) < MINUTES * 60:
                signs.look(cluster, elapsed)
                time.sleep(LOOK_EVERY_S)
        finally:
            stop.set()
            leaver.join()
    outcomes = traffic.since(begun)
    assert len(outcomes) > 60 * MINUTES
    assert unexplained(outcomes) == []
    assert signs.grown() == []
    assert all(psutil.pid_exists(pid) for pid in pids)
