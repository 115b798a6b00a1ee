"""Runs a trace against a policy, and counts its GPU-seconds and late first tokens."""

import csv
import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.routing.admission import UnmetDemand
from benchmarks.autoscaling.controller import EPOCH, Autoscaler, Clock, simulated_time
from benchmarks.autoscaling.engine import STEP_S, Replica, Request, least_loaded

LATE_S = 5.0
"""A first token is late if it comes later than this after the client's first attempt, or never."""

RETRIES_AFTER_S = (1.0, 2.0)
"""Clients retry a 503 twice, as the SDKs do."""

DECIDE_EVERY_S = 0.5
START_S = 60.0
"""From the decision to a replica's first request, with a running node, a present image and weights on its disk."""

TRACE = Path(__file__).with_name("bursts.csv")


class Outcome(NamedTuple):
    """`late` and `requests` are counts; `most` is the largest number of replicas at a time."""

    gpu_s: float
    late: int
    requests: int
    refused: int
    most: int


def read_trace(path: Path = TRACE) -> list[tuple[float, int, int]]:
    """Arrival (s), tokens of the prompt, tokens of the answer."""
    with path.open(newline="") as file:
        return [(float(row["at_s"]), int(row["prompt"]), int(row["output"])) for row in csv.DictReader(file)]


def simulate(
    trace: Sequence[tuple[float, int, int]],
    settings: Mapping[str, Any],
    *,
    reports_queue: bool,
    start_s: float = START_S,
    moves: bool = False,
) -> Outcome:
    """`settings`: the deployment's `autoscaling_config`. `reports_queue`: the router reports refused requests.
    `start_s`: a replica's start. `moves`: requests that wait at other replicas move to a new one."""
    with simulated_time() as clock:
        autoscaler, replicas = Autoscaler(settings, clock), int(settings["min_replicas"])
        run = _Run(
            trace, autoscaler, clock, replicas=replicas, reports_queue=reports_queue, start_s=start_s, moves=moves
        )
        return run.run()


class _Run:
    def __init__(
        self,
        trace: Sequence[tuple[float, int, int]],
        autoscaler: Autoscaler,
        clock: Clock,
        *,
        replicas: int,
        reports_queue: bool,
        start_s: float,
        moves: bool,
    ) -> None:
        self._requests = [Request(*row) for row in trace]
        self._arrivals = [(request.at, number, request) for number, request in enumerate(self._requests)]
        heapq.heapify(self._arrivals)
        self._autoscaler, self._clock, self._reports_queue = autoscaler, clock, reports_queue
        self._unserved = UnmetDemand(lambda: clock.now)
        self._start_s, self._moves = start_s, moves
        self._replicas = [Replica(f"r{number}", -1e9, -1e9) for number in range(replicas)]
        self._started = self._target = replicas
        self._refused = self._steps = 0
        self._seen: dict[str, tuple[float, int, float, int, float]] = {}

    def run(self) -> Outcome:
        gpu_s, most, end_s = 0.0, 0, self._requests[-1].at + 300.0
        while (now := self._steps * STEP_S) < end_s:
            self._clock.now = EPOCH + now
            self._move(now)
            self._arrive(now)
            for replica in self._replicas:
                if replica.is_ready(now):
                    replica.step(now)
            self._replicas = [replica for replica in self._replicas if not (replica.draining and replica.is_empty)]
            if self._every(self._autoscaler.every_s):
                self._report(now)
            if self._every(DECIDE_EVERY_S):
                self._scale(now)
            gpu_s += len(self._replicas) * STEP_S
            most = max(most, len(self._replicas))
            self._steps += 1
        late = sum(
            request.first_token_at is None or request.first_token_at - request.at > LATE_S for request in self._requests
        )
        return Outcome(gpu_s, late, len(self._requests), self._refused, most)

    def _every(self, seconds: float) -> bool:
        return self._steps % round(seconds / STEP_S) == 0

    def _move(self, now: float) -> None:
        ready = [replica for replica in self._replicas if replica.is_ready(now) and not replica.draining]
        new = [replica for replica in ready if self._moves and replica.ready_at > now - STEP_S]
        while new:
            least = min(new, key=lambda replica: replica.connections)
            crowded = [replica for replica in ready if replica.waiting or replica.held]
            most = max(crowded, key=lambda replica: replica.connections, default=None)
            if most is None or most.connections <= least.connections + 1:
                return
            least.offer(most.give_up(), now)

    def _arrive(self, now: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= now:
            _, number, request = heapq.heappop(self._arrivals)
            replica = least_loaded(
                replica for replica in self._replicas if replica.is_ready(now) and not replica.draining
            )
            if replica is not None and replica.offer(request, now):
                continue
            self._refused += 1
            self._unserved.refused("model")
            if request.attempts < len(RETRIES_AFTER_S):
                heapq.heappush(self._arrivals, (now + RETRIES_AFTER_S[request.attempts], number, request))
                request.attempts += 1

    def _report(self, now: float) -> None:
        for replica in self._replicas:
            if replica.draining or not replica.is_ready(now):
                continue
            waited, begun, served, finished, service_s = self._seen.get(replica.name, (0.0, 0, 0.0, 0, 0.0))
            lately, ended = replica.begun - begun, replica.finished - finished
            service_s = (replica.served - served) / ended if ended else service_s
            self._seen[replica.name] = (replica.waited, replica.begun, replica.served, replica.finished, service_s)
            stats = {
                "running": len(replica.running),
                "waiting": len(replica.waiting),
                "held": len(replica.held),
                "kv": replica.cache_use,
                "queue_s": (replica.waited - waited) / lately if lately else 0.0,
                "service_s": service_s,
                "age_s": now - replica.started_at,
            }
            self._autoscaler.report(replica.name, replica.ongoing, stats)
        if self._reports_queue:
            self._autoscaler.report_queue(self._unserved.demand().get("model", 0))

    def _scale(self, now: float) -> None:
        active = [replica for replica in self._replicas if not replica.draining]
        running = [replica.name for replica in active if replica.is_ready(now)]
        self._target = self._autoscaler.decide(running, self._target)
        for _ in range(self._target - len(active)):
            self._replicas.append(Replica(f"r{self._started}", now, now + self._start_s))
            self._started += 1
        # Serve stops those that are not running yet first, then the newest.
        surplus = sorted(active, key=lambda replica: (replica.is_ready(now), -replica.started_at))[
            : max(0, len(active) - self._target)
        ]
        for replica in surplus:
            replica.draining = True
