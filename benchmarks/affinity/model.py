"""A model of engines with prefix caches, behind a policy, with a simulated clock."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, median
from typing import NamedTuple

from benchmarks.affinity.policies import Policy
from benchmarks.affinity.workloads import Conversations, Request, Workload

STEP_S = 0.015
"""An engine's step: each running request gets a token."""

PREFILL_PER_S = 8000
"""Tokens of prompts, in chunks of at most `CHUNK` a step."""

CHUNK = 2048
CACHE_TOKENS = 200_000
"""The capacity of a replica's cache; all workloads but the largest fit."""


class Outcome(NamedTuple):
    """`hits`: share of the possible hits. `busiest`: the busiest replica's requests, divided by the mean. `peak`: by
    how much the fullest replica exceeds the mean, averaged over requests. `first_ms`: median time to the first
    token."""

    hits: float
    could: float
    busiest: float
    peak: float
    first_ms: float


class Cache:
    """Segments; the least recently used ones are evicted first. A prefix hits as far as it is cached without a gap."""

    def __init__(self, capacity: int) -> None:
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._capacity, self._tokens = capacity, 0

    def hit(self, request: Request) -> int:
        """The number of the prompt's tokens that are cached."""
        found = 0
        for name, tokens in request.chain:
            if name not in self._kept:
                break
            self._kept.move_to_end(name)
            found += tokens
        return found

    def add(self, *segments: tuple[str, int]) -> None:
        """Keeps the segments."""
        for name, tokens in segments:
            if name not in self._kept:
                self._kept[name] = tokens
                self._tokens += tokens
            self._kept.move_to_end(name)
        while self._tokens > self._capacity:
            self._tokens -= self._kept.popitem(last=False)[1]


@dataclass(eq=False)
class _Running:
    request: Request
    router: int
    arrived: float
    prefill: int = 0
    answer: int = 0


@dataclass(eq=False)
class _Replica:
    """Steps while it has requests; a step computes a chunk of prompts in order of arrival, and a token for the rest."""

    cache: Cache
    queue: list[_Running] = field(default_factory=list)
    served: int = 0
    hits: int = 0
    stepping: bool = False

    def step(self, now: float, first: Callable[[float], None]) -> tuple[float, list[_Running]]:
        """The end of the step, and the requests that are complete then."""
        budget, computed, complete = CHUNK, 0, []
        decoding = [job for job in self.queue if job.prefill == 0]
        for job in self.queue:
            if job.prefill:
                part = min(budget - computed, job.prefill)
                job.prefill -= part
                computed += part
        ends = now + STEP_S + computed / PREFILL_PER_S
        for job in self.queue:
            if job.prefill == 0 and job.answer == job.request.adds[1]:
                self.cache.add(*job.request.chain)
                first(ends - job.arrived)
        for job in decoding:
            job.answer -= 1
            if job.answer <= 0:
                complete.append(job)
        for job in self.queue:
            if job not in decoding and job.prefill == 0:
                job.answer -= 1
        for job in complete:
            self.queue.remove(job)
            self.cache.add(*job.request.chain, job.request.adds)
        return ends, complete


def simulate(workload: Workload, policy: Policy, seed: int) -> Outcome:
    """One run of the workload."""
    conversations = Conversations(workload, seed)
    replicas = [_Replica(Cache(CACHE_TOKENS)) for _ in range(workload.replicas)]
    everything = Cache(10**12)  # possible hits: one replica that evicts nothing
    could = calls = 0
    firsts: list[float] = []
    peaks: list[float] = []
    events: list[tuple[float, int, int]] = []
    under_way = 0
    arrivals = random.Random(seed)

    def admit(now: float) -> None:
        nonlocal could, calls, under_way
        while under_way < workload.at_once and (request := conversations.next()) is not None:
            router = arrivals.randrange(workload.routers)
            known = [sum(workload.knows_all or one.router == router for one in replica.queue) for replica in replicas]
            # Another seed gives the keys other home replicas.
            number = policy(conversations.key(request, seed * 100_003, router), known)
            replica = replicas[number]
            cached = replica.cache.hit(request)
            could += everything.hit(request)
            everything.add(*request.chain)
            calls += request.tokens
            replica.hits += cached
            replica.served += 1
            replica.queue.append(_Running(request, router, now, max(1, request.tokens - cached), request.adds[1]))
            under_way += 1
            loads = [len(replica.queue) for replica in replicas]
            peaks.append(max(loads) - mean(loads))
            if not replica.stepping:
                replica.stepping = True
                heapq.heappush(events, (now, number, 0))

    admit(0.0)
    while events:
        now, number, _ = heapq.heappop(events)
        replica = replicas[number]
        ends, complete = replica.step(now, firsts.append)
        for job in complete:
            under_way -= 1
            everything.add(*job.request.chain, job.request.adds)
            conversations.done(job.request)
        replica.stepping = bool(replica.queue)
        if replica.queue:
            heapq.heappush(events, (ends, number, 0))
        admit(ends)
    served = [replica.served for replica in replicas]
    hits = sum(replica.hits for replica in replicas)
    return Outcome(hits / could, could / calls, max(served) / mean(served), mean(peaks), median(firsts) * 1000)
