"""The processes with metrics besides this router: the replicas of all applications, and the proxies before them.

A replica is asked through the control plane and not at the port that serves clients: that one refuses a scrape while
the replica's queue is full, and does not listen any more while the replica finishes its last requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from app.answer_cache import AnswerCache
from app.errors import NotFound, TimedOut, UpstreamError

EVERY_S = 5.0
"""Seconds for which a list is reused: the control plane serves the whole cluster."""

PATIENCE_S = 1.0
"""Seconds to wait for a new list before an older one is used."""

FRESH_S = 1.0
"""Seconds for which an answer is reused, so that readers of metrics do not keep an engine busy."""

REPLICA_TIMEOUT_S = 5.0
"""Seconds, below the 10 s that Prometheus waits by default."""


class Replica(NamedTuple):
    """One replica of an application with metrics. `node` is its node's IP address."""

    id: str
    application: str
    node: str
    is_draining: bool = False
    """Whether it is being stopped and finishes its requests."""


class Fleet(NamedTuple):
    """The running processes. `states`: replicas of each application by state, in the control plane's words. `proxies`:
    the IP addresses of nodes on which a proxy takes clients' requests."""

    replicas: Sequence[Replica] = ()
    states: Mapping[str, Mapping[str, int]] = {}
    proxies: Sequence[str] = ()


class FleetSource(Protocol):
    """The seam to the control plane. Its calls raise UpstreamError if there is no answer."""

    async def fleet(self) -> Fleet: ...

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """The replica's metrics in Prometheus' text format. `endpoints`: for a router, only the samples of these.
        Raises NotFound if there is no such replica.
        """
        ...

    async def proxy_metrics(self, node: str) -> bytes:
        """The proxy's metrics in Prometheus' text format."""
        ...


class KnownFleet:
    """The fleet as the control plane listed it last, also while that does not answer. `clock`: monotonic seconds.

    `is_source_up`: whether the control plane answered the last call that has ended.
    """

    def __init__(self, source: FleetSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._clock = source, clock
        self.is_source_up = False
        self._lists: AnswerCache[Fleet] = AnswerCache(EVERY_S, clock)
        self._answers: AnswerCache[bytes] = AnswerCache(FRESH_S, clock)
        self._last: Fleet | None = None

    async def now(self) -> Fleet:
        """The fleet, at most some seconds old if the control plane answers. Raises UpstreamError if it never has."""
        try:
            async with asyncio.timeout(PATIENCE_S if self._last is not None else REPLICA_TIMEOUT_S):
                self._last = await self._lists.get("", self._listed)
        except (UpstreamError, TimeoutError) as error:
            if self._last is None:
                raise _in_words(error) from error
        return self._last

    async def _listed(self) -> Fleet:
        try:
            fleet = await self._source.fleet()
        except UpstreamError:
            self.is_source_up = False
            raise
        self.is_source_up = True
        return fleet

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """See `FleetSource`."""
        key = (replica, None if endpoints is None else frozenset(endpoints))
        return await self._asked(key, lambda: self._source.replica_metrics(replica, endpoints))

    async def proxy_metrics(self, node: str) -> bytes:
        """See `FleetSource`."""
        return await self._asked(("proxy", node), lambda: self._source.proxy_metrics(node))

    async def _asked(self, key: Hashable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            async with asyncio.timeout(REPLICA_TIMEOUT_S):
                return await self._answers.get(key, ask)
        except TimeoutError as error:
            raise TimedOut(f"The metrics did not arrive within {REPLICA_TIMEOUT_S:g} s") from error


def _in_words(error: UpstreamError | TimeoutError) -> UpstreamError:
    return error if isinstance(error, UpstreamError) else TimedOut("The control plane did not respond in time")


def not_running(what: str) -> NotFound:
    """The error for a process that does not run, or that the reader may not see."""
    return NotFound(f"No such {what} is running; /metrics/targets lists those that are")
