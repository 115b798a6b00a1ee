"""A whole replay: sends the requests, and passes their outcomes through a router's ledger to a controller, as live.

So a replay leaves a ledger's directory behind, from which `switchyard experiments` reads as from any other.

- Sends one replayed request to one arm, and records the answer in an exposure, as a router's forwarder does.
- The schedule of a replay: each request's time, and the arm to which it is sent first.
"""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from app.config.schema import Config
from app.engine.output import Usage, find_usage
from app.errors import Broken, SwitchyardError, TimedOut, Unavailable, Unreachable
from app.experiments.contract.journal import JournalEntry
from app.experiments.controller import Controller
from app.experiments.offline import REPLAYED
from app.experiments.replay.traces import ReplayRequest, replayed
from app.experiments.storage.journal import append_entries
from app.experiments.storage.store import open_store
from app.exposures.exposure import Arrival, Exposure
from app.exposures.identity import secret_of
from app.exposures.log import ExposureLog, RequestEnd
from app.exposures.plans import RecordingScope
from app.exposures.uploader import Sender
from app.request_recordings.recorder import RecordedRequest
from app.routing.traffic import DEPLOYMENT_HEADER

_FAILURES: Mapping[int, type[SwitchyardError]] = {503: Unavailable, 504: TimedOut}
_WRONG = (401, 403, 404)
"""The server does not have the key, the endpoint or an arm: it would answer every request with this error."""

_LAST_CHUNKS = 8
"""The usage of a stream is in one of the last."""


class ReplayRefused(Exception):
    """The server rejects the whole replay; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class ReplayClient:
    """`url` is the server's, without /v1."""

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str]

    async def send(self, request: ReplayRequest, arm: str, exposure: Exposure, body: bytes) -> RequestEnd:
        """The request at one arm. Raises ReplayRefused; any other failure is the arm's."""
        began, status, usage, complete = time.perf_counter(), 0, None, False
        headers = {**self.headers, DEPLOYMENT_HEADER: arm, "content-type": "application/json"}
        exposure.sent(request.path, request.body)
        try:
            async with self.session.post(self.url + request.path, data=body, headers=headers) as answer:
                status = answer.status
                exposure.head({name.lower(): value for name, value in answer.headers.items()})
                if status == 200:
                    exposure.served = answer.headers.get(DEPLOYMENT_HEADER, arm)
                    usage = await _read(answer, request, arm, exposure)
                    complete = True
                else:
                    await _refused(answer, arm, exposure)
        except TimeoutError:
            status = status or TimedOut.status
            exposure.failed(arm, TimedOut("The server did not answer in time"))
        except aiohttp.ClientConnectorError as error:
            status = Unreachable.status
            exposure.failed(arm, Unreachable(str(error)))
        except aiohttp.ClientError as error:
            status = status or Broken.status
            exposure.failed(arm, Broken(str(error)))
        limit = request.body.get("max_tokens", request.body.get("max_output_tokens"))
        return RequestEnd(status, time.perf_counter() - began, 1, usage, limit, complete)


async def _read(answer: aiohttp.ClientResponse, request: ReplayRequest, arm: str, exposure: Exposure) -> Usage | None:
    if not request.recorded.stream:
        whole = await answer.read()
        exposure.answer(whole)
        return find_usage(whole)
    last: deque[bytes] = deque(maxlen=_LAST_CHUNKS)
    in_order = False
    try:
        async for chunk in answer.content.iter_any():
            exposure.chunk(time.perf_counter(), chunk)
            last.append(chunk)
        in_order = True
    finally:
        exposure.stream_ended(arm, time.perf_counter(), in_order=in_order)
    return find_usage(b"".join(last))


async def _refused(answer: aiohttp.ClientResponse, arm: str, exposure: Exposure) -> None:
    text = await answer.text(errors="replace")
    if answer.status in _WRONG:
        raise ReplayRefused(answer.status, _message(text))
    if answer.status >= 500:
        exposure.failed(arm, _FAILURES.get(answer.status, Broken)(text[:200]))
    else:
        exposure.served = arm


def _message(text: str) -> str:
    """The message of an error in OpenAI's or Anthropic's form; else the beginning of the text."""
    try:
        error = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return text[:200]
    return str(error)


LATE_S = 1.0
"""The delay from which a request counts as late."""


@dataclass(slots=True)
class Punctuality:
    """The accuracy with which the arrival times were kept."""

    late: int = 0
    most_s: float = 0.0


def offsets(requests: Sequence[RecordedRequest], speed: float) -> list[float]:
    """Seconds after the first request, at `speed` times the recorded pace."""
    return [(request.at - requests[0].at) / speed for request in requests]


def order(arms: Sequence[str], weights: Sequence[int], random: Random) -> list[str]:
    """The arms in the order in which they get a request. The first is drawn by the weights, so that the split of first
    requests is what the test of the split expects."""
    first = random.choices(arms, weights)[0]
    others = [arm for arm in arms if arm != first]
    random.shuffle(others)
    return [first, *others]


async def due(
    requests: Sequence[RecordedRequest],
    speed: float,
    slots: asyncio.Semaphore,
    punctuality: Punctuality,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[int, RecordedRequest]]:
    """Each request with its number, once it is time for it and a slot is free, which the caller gives back."""
    began = clock()
    for number, (offset, request) in enumerate(zip(offsets(requests, speed), requests, strict=True)):
        if (pause := began + offset - clock()) > 0:
            await sleep(pause)
        await slots.acquire()
        if (behind := clock() - began - offset) > LATE_S:
            punctuality.late += 1
            punctuality.most_s = max(punctuality.most_s, behind)
        yield number, request


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
        ledger = ExposureLog(lambda url: _SECRET)
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
        notes = [JournalEntry(time.time(), REPLAYED, self.name, {"notes": self.notes()})]
        append_entries(open_store(self.config.ledger.url, Path.cwd()), f"{REPLAYED}-000001", notes)

    def notes(self) -> list[str]:
        """Notes for the report of this replay."""
        lines = [
            f"A replay of {len(self.requests)} recorded requests at {self.speed:g} times their pace; a unit is one of "
            "them, answered by every arm, and counted with the first. Times are those of the client that replayed"
        ]
        if made_up := sum(request.body is None for request in self.requests):
            lines.append(
                f"{made_up} prompts are made up, as long as the recorded ones, and so are the lengths of answers: "
                "compare times, not answers"
            )
        if self.punctuality.late:
            lines.append(
                f"{self.punctuality.late} requests were sent late, by up to {self.punctuality.most_s:.0f} s: raise "
                "--concurrency or lower --speed"
            )
        refused = {status: count for status, count in sorted(self.statuses.items()) if 400 <= status < 500}
        if refused:
            counts = ", ".join(f"{count} with status {status}" for status, count in refused.items())
            lines.append(f"The server refused requests: {counts}. They count for no metric of time")
        return lines

    async def _send_all(self, ledger: ExposureLog, scope: RecordingScope) -> None:
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
                pair = tasks.create_task(
                    self._pair(client, ledger, scope, number=number, request=replayed(recorded), arms=arms)
                )
                pair.add_done_callback(lambda _: slots.release())

    async def _pair(
        self,
        client: ReplayClient,
        ledger: ExposureLog,
        scope: RecordingScope,
        *,
        number: int,
        request: ReplayRequest,
        arms: Sequence[str],
    ) -> None:
        """One recorded request at every arm, at the same time."""
        body = msgspec.json.encode(request.body)
        async with asyncio.TaskGroup() as tasks:
            for arm in arms:
                tasks.create_task(self._one(client, ledger, scope, number=number, request=request, arm=arm, body=body))

    async def _one(
        self,
        client: ReplayClient,
        ledger: ExposureLog,
        scope: RecordingScope,
        *,
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
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
