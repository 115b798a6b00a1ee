"""A whole replay: sends the requests, and passes their outcomes through a router's ledger to a controller, as live.

So a replay leaves a ledger's directory behind, from which `switchyard experiments` reads as from any other.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from app.config.schema import Config
from app.experiments.controller import Controller
from app.experiments.recorded import REPLAYED
from app.experiments.replay.client import ReplayClient, ReplayRefused
from app.experiments.replay.requests import ReplayRequest, replayed
from app.experiments.replay.schedule import Punctuality, due, order
from app.experiments.storage import journal
from app.experiments.storage.entry import Entry
from app.experiments.storage.store import open_store
from app.exposures.exposure import Arrival
from app.exposures.identity import secret_of
from app.exposures.log import Ledger, RequestEnd
from app.exposures.plans import Scope
from app.exposures.uploader import Sender
from app.request_recordings.recorder import RecordedRequest

CLIENT_CLOSED = 499
"""The status of requests that an interrupted replay gave up."""

_SECRET = secret_of("replay")
"""The secret for the hashes of pairs, which are numbers: there is nothing to hide."""


class _Nobody:
    """A `LedgerObserver`."""

    def rows_recorded(self, endpoint: str, deployment: str, rows: int) -> None:
        return

    def rows_lost(self, endpoint: str, deployment: str, rows: int) -> None:
        return

    def ledger_buffered(self, size: int) -> None:
        return

    def batch_sent(self, seconds: float) -> None:
        return


@dataclass(slots=True)
class Replay:
    """`config` is `section.config_of`'s, with one experiment, `name`. `concurrency`: pairs at once, at most."""

    name: str
    config: Config
    requests: Sequence[RecordedRequest]
    url: str
    key: str | None
    speed: float
    concurrency: int
    seed: int = 0
    punctuality: Punctuality = field(default_factory=Punctuality)
    statuses: Counter[int] = field(default_factory=Counter)
    """Answers by HTTP status, 0: none."""

    async def run(self) -> None:
        """Sends everything, and leaves the ledger's directory complete. Raises ReplayRefused and StoreError."""
        controller = Controller(self.config.ledger, base=Path.cwd())
        controller.configure(self.config)
        ledger = Ledger(lambda url: _SECRET)
        scopes = ledger.configure(self.config)

        def take(batch: bytes) -> bytes:
            acknowledgement = controller.ingest(batch)
            controller.tick()
            return acknowledgement

        # One thread: a batch that is sent again while the controller still reads it would count twice.
        thread = ThreadPoolExecutor(1, "controller")

        async def send(batch: bytes) -> bytes:
            return await asyncio.get_running_loop().run_in_executor(thread, take, batch)

        try:
            async with Sender(ledger, send, _Nobody()).running():
                await self._send_all(ledger, scopes[self._endpoint])
        except BaseExceptionGroup as group:
            if (refused := group.subgroup(ReplayRefused)) is None:
                raise
            raise _first(refused) from None
        finally:  # also of an interrupted replay: what has been answered so far can be reported
            thread.shutdown()
            controller.close()
            self._note()

    @property
    def _endpoint(self) -> str:
        return self.requests[0].endpoint

    def _note(self) -> None:
        notes = [Entry(time.time(), REPLAYED, self.name, {"notes": self.notes()})]
        journal.append(open_store(self.config.ledger.url, Path.cwd()), f"{REPLAYED}-000001", notes)

    def notes(self) -> list[str]:
        """Notes for the report of this replay."""
        found = [
            f"A replay of {len(self.requests)} recorded requests at {self.speed:g} times their pace; a unit is one of "
            "them, answered by every arm. Times are those of the client that replayed"
        ]
        if made_up := sum(it.body is None for it in self.requests):
            found.append(
                f"{made_up} prompts are made up, as long as the recorded ones, and so are the lengths of answers: "
                "compare times, not answers"
            )
        if self.punctuality.late:
            found.append(
                f"{self.punctuality.late} requests were sent late, by up to {self.punctuality.most_s:.0f} s: raise "
                "--concurrency or lower --speed"
            )
        refused = {status: count for status, count in sorted(self.statuses.items()) if 400 <= status < 500}
        if refused:
            counts = ", ".join(f"{count} with status {status}" for status, count in refused.items())
            found.append(f"The server refused requests: {counts}. They count for no metric of time")
        return found

    async def _send_all(self, ledger: Ledger, scope: Scope) -> None:
        random, slots = Random(self.seed), asyncio.Semaphore(self.concurrency)
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.config.timeouts.total_s),
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            client = ReplayClient(session, self.url, headers)
            async for number, recorded in due(
                self.requests, self.speed, slots, self.punctuality, clock=time.perf_counter
            ):
                arms = order(list(scope.plan.weights), list(scope.plan.weights.values()), random)
                pair = tasks.create_task(self._pair(client, ledger, scope, number, replayed(recorded), arms))
                pair.add_done_callback(lambda _: slots.release())

    async def _pair(
        self,
        client: ReplayClient,
        ledger: Ledger,
        scope: Scope,
        number: int,
        request: ReplayRequest,
        arms: Sequence[str],
    ) -> None:
        """One recorded request at every arm, at the same time."""
        body = msgspec.json.encode(request.body)
        async with asyncio.TaskGroup() as tasks:
            for arm in arms:
                tasks.create_task(self._one(client, ledger, scope, number, request, arm, body))

    async def _one(
        self,
        client: ReplayClient,
        ledger: Ledger,
        scope: Scope,
        number: int,
        request: ReplayRequest,
        arm: str,
        body: bytes,
    ) -> None:
        recorded, started = request.recorded, time.perf_counter()
        arrival = Arrival(
            request_id=f"replay-{number}-{arm}",
            key=f"pair-{number}",
            caller="replay",
            assigned=arm,
            reason="sticky",
            dialect=recorded.dialect,
            task=recorded.task,
            stream=recorded.stream,
            prompt_bytes=len(body),
            body=request.body,
            started=started,
        )
        exposure = ledger.start(scope, arrival)
        ending = RequestEnd(CLIENT_CLOSED, 0.0, complete=False, gone=True)
        try:
            ending = await client.send(request, arm, exposure, body)
            self.statuses[ending.status] += 1
        finally:
            ledger.finish(exposure, msgspec.structs.replace(ending, duration_s=time.perf_counter() - started))


def _first(group: BaseExceptionGroup[ReplayRefused]) -> ReplayRefused:
    """The first error of nested groups."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
