"""Conversations that begin while a change of weights reaches one router after the other: an agent's tool loop comes to
any of three routers, which exchange their pins as they do in production. Times are simulated.
"""

import heapq
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from app.config.schema import Endpoint, Sticky
from app.experiments.controller import PinExchange
from app.exposures.uploader import EVERY_S, SOON_S
from app.routing.rules import ConversationTurn
from tests.simulation.pool import generator, spread
from tests.support.processes.one_router import SETTLE_S, OneRouter

ROUTERS = 3
CONVERSATIONS = 150
LASTS_S = 3.0
"""How long a conversation goes on."""

BEFORE, AFTER = {"a": 100, "b": 0}, {"a": 50, "b": 50}
BEGIN = 1_800_000_000.0
CHANGE = BEGIN + 70.0  # later than the time for which a router is new
FIRST, LAST = CHANGE - 2.0, CHANGE + 12.0
"""Between these times conversations begin."""


@dataclass(frozen=True)
class Loop:
    """Turns that follow each other at once. `late_s`: the time that the change takes to the last router, and at most to
    the others."""

    name: str
    gap_s: float
    late_s: tuple[float, float] = (2.0, 2.0)


LOOPS = (
    Loop("a turn each 0.05 s", 0.05),
    Loop("a turn each 0.2 s", 0.2),
    Loop("a turn each second", 1.0),
    Loop("a turn each 0.2 s, one router gets the change 5 s later", 0.2, (5.0, 0.1)),
)


class Flaps(NamedTuple):
    """Of one run: the conversations' later turns, those on another deployment than the turn before, and the share of
    `b` among conversations that began when every router followed the change."""

    turns: int
    moved: int
    followed: float


class _Run:
    def __init__(self, loop: Loop, seed: int) -> None:
        self.loop, self.seed, self.now = loop, seed, BEGIN
        self.rng = generator(f"flaps {loop.name}", seed)
        self.controller = PinExchange()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = numbers()
        self.routers = [OneRouter(f"router-{number}", lambda: self.now) for number in range(ROUTERS)]
        self.answered: list[list[str]] = [[] for _ in range(CONVERSATIONS)]

    def flaps(self) -> Flaps:
        began = np.sort(self.rng.uniform(FIRST, LAST, CONVERSATIONS))
        last, others = self.loop.late_s
        delivered = [CHANGE + moment for moment in (*self.rng.uniform(0.0, others, ROUTERS - 1).tolist(), last)]
        for router, at in zip(self.routers, delivered, strict=True):
            router.configure(_endpoint(BEFORE))
            router.pins.on_pin = partial(self._soon, router)
            self._at(BEGIN + float(self.rng.uniform(0.0, EVERY_S)), partial(self._round, router))
            self._at(at, partial(router.configure, _endpoint(AFTER)))
        for number, at in enumerate(began.tolist()):
            self._at(at, partial(self._turn, number, at + LASTS_S))
        while self._queue:
            self.now, _, happens = heapq.heappop(self._queue)
            happens()
        settled = np.flatnonzero(began > max(delivered) + SETTLE_S)
        return Flaps(
            turns=sum(len(assignments) - 1 for assignments in self.answered),
            moved=sum(before != after for assignments in self.answered for before, after in pairwise(assignments)),
            followed=float(np.mean([self.answered[number][0] == "b" for number in settled])),
        )

    def _at(self, at: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at, next(self._order), happens))

    def _exchange(self, router: OneRouter) -> None:
        router.exchange(self.controller, routers=ROUTERS)

    def _round(self, router: OneRouter) -> None:
        self._exchange(router)
        if self.now < LAST + LASTS_S:
            self._at(self.now + EVERY_S, partial(self._round, router))

    def _soon(self, router: OneRouter) -> None:
        self._at(self.now + SOON_S, partial(self._exchange, router))

    def _turn(self, number: int, until: float) -> None:
        router = self.routers[int(self.rng.integers(ROUTERS))]
        answered = self.answered[number]
        decide = partial(router.decides, f"conversation {self.seed} {number}")
        decision = decide(ConversationTurn(bool(answered), number, may_ask=True))
        if decision.unknown:
            self._exchange(router)
            decision = decide(ConversationTurn(bool(answered), number))
        answered.append(decision.deployment)
        if self.now + self.loop.gap_s < until:
            self._at(self.now + self.loop.gap_s, partial(self._turn, number, until))


def _endpoint(weights: dict[str, int]) -> Endpoint:
    return Endpoint(tasks=("chat",), traffic=weights, sticky=Sticky(by="conversation"), pin_s=100.0)


def run(loop: Loop, seed: int) -> Flaps:
    """One run."""
    return _Run(loop, seed).flaps()


def _part(loop: Loop, seeds: range) -> list[Flaps]:
    return [run(loop, seed) for seed in seeds]


def flaps(executor: Executor, loop: Loop, count: int) -> tuple[float, float]:
    """Of `count` runs: the share of turns on another deployment than the turn before, and of later conversations that
    follow the change."""
    results = [result for part in spread(executor, partial(_part, loop), count) for result in part]
    return sum(result.moved for result in results) / sum(result.turns for result in results), float(
        np.mean([result.followed for result in results])
    )
