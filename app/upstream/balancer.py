"""The replicas of applications, and the choice of one for a request.

The control plane tells which replicas there are (`Watch`). The router knows what it has sent each of them, in tokens,
and which have failed; several routers share nothing. Each key orders the replicas (rendezvous hashing), at every router
in the same way: a replica added or gone moves only the keys that it gets or had.

A replica that fails is paused until it passes a check. One that says nothing is checked, too, an idle one as well. With
every replica paused, or none known, there is no choice: Serve's ingress then takes the request, and has it wait.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from app.aio import run_in_background
from app.telemetry.logs import Lack, event

_log = logging.getLogger("switchyard")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""From a failure to the first check, and, doubled each time, from one that fails to the next."""

SILENCE_S = 5.0
"""Seconds without an answer after which a replica with requests is checked."""

IDLE_S, IDLE_CHECKS_PER_S = 2.0, 20
"""The same for a replica without requests, and how many of these are checked in a second at most."""

CHECK_EVERY_S = 0.1

MOST_GONE = 1000
"""Replicas that are not listed any more, the last ones."""

LEAST_ROOM = 2
"""A replica has room for so many requests of the present mean size, however few there are elsewhere."""

_USUAL_ANSWER = 200
_OLD = 31 / 32
"""The expected answer's tokens: the first guess, and how much of it remains after each answer."""

_64 = 2**64 - 1


class Address(NamedTuple):
    """A replica: its unique name, its server (`http://host:port`), and the prefix of its application's paths."""

    name: str
    origin: str
    prefix: str


Watch = Callable[[], AsyncIterator[Mapping[str, Sequence[Address]]]]
"""Yields the replicas of every application, again after each change."""

Check = Callable[[str], Awaitable[bool]]
"""Whether the replica with this origin says that it is healthy. Raises nothing."""


@dataclass(slots=True)
class Placement:
    """What decides on the replica of a request.

    `key`: of its conversation, if it has one. `bound`: how far above the mean the replica's work may lie for it, in
    square roots of the mean. `prompt`: the tokens to compute; `uncached`: those at the key's replica, which has the
    conversation's beginning. `most`: the limit of the answer's tokens, None without one. `waits`: for a replica, if
    there is none; `lacks` is told of that wait. `avoided`: names of replicas that have failed it. `chosen`: the name of
    its last replica.
    """

    key: int | None = None
    bound: float = 0.0
    prompt: int = 1
    uncached: int = 1
    most: int | None = 0
    waits: bool = True
    lacks: Callable[[Lack], None] = lambda lack: None
    avoided: Collection[str] = ()
    chosen: str = ""


@dataclass(slots=True, eq=False)
class Replica:
    """A replica, and what this router knows of it. `tokens`: the work of its `requests` that are under way.
    `pause_s`: the length of its pause; 0: it is in use. `heard_at`: its last answer, or its last failure."""

    address: Address
    url: str
    seed: int
    heard_at: float
    tokens: int = 0
    requests: int = 0
    pause_s: float = 0.0
    is_checked: bool = False

    @property
    def id(self) -> str:
        """Serve's own id of it, which its engine is called by: its unique name ends with it."""
        return self.address.name.rpartition("#")[2]


@dataclass(slots=True)
class _Application:
    replicas: Sequence[Replica]
    answer: float = _USUAL_ANSWER
    """The tokens of an answer, on average."""


class Visit:
    """One request at a replica, from its choice to `end`."""

    __slots__ = ("_balancer", "_replica", "_tokens")

    def __init__(self, balancer: "Balancer", replica: Replica, tokens: int) -> None:
        self._balancer, self._replica, self._tokens = balancer, replica, tokens
        replica.tokens += tokens
        replica.requests += 1

    @property
    def url(self) -> str:
        """The replica's base URL, without /v1."""
        return self._replica.url

    def end(self, has_failed: bool) -> None:
        """The response is over, or will not come. `has_failed`: the replica has ended the connection too early."""
        self._replica.tokens -= self._tokens
        self._replica.requests -= 1
        if has_failed:
            self._balancer.failed(self._replica)
        else:
            self.heard()

    def heard(self) -> None:
        """The replica has answered."""
        if not self._replica.pause_s:
            self._replica.heard_at = self._balancer.clock()


class Balancer:
    """All applications' replicas. One per process. `watch`: None where nobody tells of replicas."""

    def __init__(
        self,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self.clock = clock
        self.is_known = False
        """Whether anybody has told which replicas there are."""
        self._watch, self._random = watch, random or Random()
        self._applications: dict[str, _Application] = {}
        self._lacks: defaultdict[str, list[Lack]] = defaultdict(list)
        self.gone: OrderedDict[str, None] = OrderedDict()
        """The ids of replicas that were listed, and are not any more."""
        self.changed: Callable[[], None] = lambda: None
        """Is called when replicas begin to serve, or do not any more."""

    def visit(self, application: str, placement: Placement) -> Visit | None:
        """Sends a request to a replica; None if none is to be had."""
        known = self._applications.get(application)
        usable = [replica for replica in known.replicas if not replica.pause_s] if known is not None else []
        if placement.avoided:
            usable = [each for each in usable if each.address.name not in placement.avoided] or usable
        if known is None or not usable:
            return None
        answer = int(known.answer if placement.most is None else min(known.answer, placement.most))
        home = None
        if placement.key is None or len(usable) == 1:
            chosen = usable[0] if len(usable) == 1 else self._least(usable)
        else:
            home = max(usable, key=_rank(placement.key))
            chosen = self._with_room(usable, home, placement, placement.uncached + answer) or self._least(usable)
        placement.chosen = chosen.address.name
        return Visit(self, chosen, answer + (placement.uncached if chosen is home else placement.prompt))

    def answered(self, application: str, tokens: int) -> None:
        """Learns how long the application's answers are."""
        if (known := self._applications.get(application)) is not None:
            known.answer = _OLD * known.answer + (1 - _OLD) * tokens

    def failed(self, replica: Replica) -> None:
        """Pauses the replica. Many requests fail with it: only the first one counts."""
        if not replica.pause_s:
            self._pause(replica, FIRST_PAUSE_S)
            paused = event("replica_paused", replica=replica.address.name)
            _log.warning("A replica has failed and gets no requests until it passes a check", extra=paused)

    def update(self, listed: Mapping[str, Sequence[Address]]) -> None:
        """Takes the control plane's list. Replicas that stay keep what is known of them."""
        self.is_known = True
        before, self._applications = self._applications, {}
        for application, addresses in listed.items():
            known = before.get(application) or _Application(())
            kept = {replica.address: replica for replica in known.replicas}
            replicas = [kept.get(address) or self._new(address) for address in addresses]
            self._applications[application] = _Application(replicas, known.answer)
        ids_before, ids = _ids(before), _ids(self._applications)
        self.gone.update(dict.fromkeys(ids_before - ids))
        for id in ids:
            self.gone.pop(id, None)
        while len(self.gone) > MOST_GONE:
            self.gone.popitem(last=False)
        if ids != ids_before:
            self._changed()

    def _changed(self) -> None:
        """Ends the waits for replicas of applications that have one now."""
        for application, lacks in self._lacks.items():
            if lacks and self._serves(application):
                for lack in lacks:
                    lack.until = lack.until or time.perf_counter()
        self.changed()

    def _serves(self, application: str) -> bool:
        known = self._applications.get(application)
        return known is not None and any(not replica.pause_s for replica in known.replicas)

    def listed(self) -> Mapping[str, Collection[str]]:
        """The ids of each application's replicas: those that the control plane has called ready."""
        return {name: [replica.id for replica in known.replicas] for name, known in self._applications.items()}

    @contextmanager
    def lacking(self, application: str, placement: Placement) -> Iterator[None]:
        """Notes that a request waits for a replica while the block runs, if none serves. At a good end one does."""
        if not self.is_known or self._serves(application):
            yield
            return
        lack, lacks = Lack(time.perf_counter()), self._lacks[application]
        lacks.append(lack)
        placement.lacks(lack)
        if len(lacks) == 1:
            self.changed()
        try:
            yield
            if lack.until is None:  # it was answered before anybody told of a replica
                self.changed()
        finally:
            lacks.remove(lack)
            lack.until = lack.until or time.perf_counter()

    def waits(self) -> Mapping[str, Sequence[float]]:
        """For how many seconds requests have waited for a replica of each application, of which none serves."""
        now = time.perf_counter()
        waits = {name: [now - one.since for one in lacks if one.until is None] for name, lacks in self._lacks.items()}
        return {name: seconds for name, seconds in waits.items() if seconds}

    def due(self) -> Iterator[Replica]:
        """The replicas to be checked now."""
        now = self.clock()
        count = sum(len(application.replicas) for application in self._applications.values())
        idle_s = max(IDLE_S, count / IDLE_CHECKS_PER_S)
        for application in self._applications.values():
            for replica in application.replicas:
                silence_s = replica.pause_s or (SILENCE_S if replica.requests else idle_s)
                if not replica.is_checked and now - replica.heard_at >= silence_s:
                    yield replica

    def silent(self) -> Collection[str]:
        """The ids of the replicas that have failed a check, and none has passed since: they do not serve."""
        return {
            replica.id
            for application in self._applications.values()
            for replica in application.replicas
            if replica.pause_s > FIRST_PAUSE_S
        }

    async def check(self, replica: Replica, check: Check) -> None:
        """Checks a replica: ends its pause, or prolongs it."""
        replica.is_checked = True
        try:
            is_healthy = await check(replica.address.origin)
        finally:
            replica.is_checked = False
        if not is_healthy and replica.pause_s:
            is_new = replica.pause_s <= FIRST_PAUSE_S
            self._pause(replica, min(2 * replica.pause_s, LONGEST_PAUSE_S))
            if is_new:  # it is silent from now on
                self._changed()
        elif not is_healthy:
            self.failed(replica)
        else:
            replica.heard_at = self.clock()
            if replica.pause_s:
                replica.pause_s = 0.0
                _log.warning(
                    "A replica passes its check again", extra=event("replica_resumed", replica=replica.address.name)
                )
                self._changed()

    @asynccontextmanager
    async def running(self, check: Check) -> AsyncIterator[None]:
        """Follows the control plane's list, and checks replicas, while the block runs."""
        if self._watch is None:
            yield
            return
        async with run_in_background(self._follow(self._watch)), run_in_background(self._keep_checking(check)):
            yield

    async def _follow(self, watch: Watch) -> None:
        async for listed in watch():
            self.update(listed)

    async def _keep_checking(self, check: Check) -> None:
        async with asyncio.TaskGroup() as checks:
            while True:
                for replica in self.due():
                    checks.create_task(self.check(replica, check))
                await asyncio.sleep(CHECK_EVERY_S)

    def _pause(self, replica: Replica, pause_s: float) -> None:
        replica.pause_s, replica.heard_at = pause_s, self.clock()

    def _new(self, address: Address) -> Replica:
        return Replica(address, address.origin + address.prefix, _seed(address.name), self.clock())

    def _least(self, usable: Sequence[Replica]) -> Replica:
        """The replica with the least work, a random one of several."""
        least = min(replica.tokens for replica in usable)
        return self._random.choice([replica for replica in usable if replica.tokens == least])

    @staticmethod
    def _with_room(usable: Sequence[Replica], home: Replica, placement: Placement, tokens: int) -> Replica | None:
        """The first replica with room in the key's order, which `home` begins.

        The sizes of requests differ, so the square root is that of a number of requests of the mean size. This request
        counts as one of them: its own size would drive the longest conversations from their replicas.
        """
        if not home.tokens:
            return home
        work = tokens + sum(replica.tokens for replica in usable)
        size = work / (1 + sum(replica.requests for replica in usable))
        mean = work / len(usable)
        room = max(LEAST_ROOM * size, mean + placement.bound * math.sqrt(mean * size)) - size
        if home.tokens <= room:
            return home
        assert placement.key is not None
        order = sorted(usable, key=_rank(placement.key), reverse=True)
        return next((replica for replica in order if replica.tokens <= room), None)


def _ids(applications: Mapping[str, _Application]) -> set[str]:
    return {replica.id for application in applications.values() for replica in application.replicas}


def _rank(key: int) -> Callable[[Replica], int]:
    """A replica's rank for the key. The middle of a square depends on all of its bits, and costs a tenth of a hash."""
    return lambda replica: (key ^ replica.seed) ** 2 >> 32 & _64


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
