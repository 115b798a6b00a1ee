"""Runs a controller in a separate thread, so that an event loop can serve while it judges.

One thread owns the controller; a second one writes to the ledger's directory, which may be slow; a third one searches
it for single requests, a fourth one exports it, and a fifth one keeps what routers report of their requests. The host
is a `ControllerClient`: a router in the same process uses it as it is, others reach it over HTTP
(`app.server.experiments_host`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from app.activity.report import ReplicaStart
from app.config.experiments import LedgerSettings
from app.config.schema import Config
from app.control_plane import RUNNING, ControlPlane, Delivery
from app.errors import ClientError, NotFound, Unavailable, UpstreamError
from app.experiments.api import ACTIVITY, ISSUED_KEYS, ControllerApi
from app.experiments.audit import unreadable
from app.experiments.automation.actions import carry_out
from app.experiments.contract.query import is_dry_run
from app.experiments.controller import Controller
from app.experiments.storage.directory import make_private
from app.experiments.storage.keeper import Submit
from app.experiments.storage.store import StoreError, local_directory
from app.experiments.storage.write_ahead import PATIENCE_S, WriteAhead
from app.exposures.controller_client import Answer, Export, ExportStream
from app.telemetry.logs import event, where

TICK_S = 1.0
CONFIGURATION_S = 5.0
"""The interval at which the configuration is read, unless a batch names a new plan, and replicas are counted."""

FRESH_S = 0.5
"""The longest wait of a question for the configuration, where the answer depends on the latest delivery."""

SETTLE_S = 3.0
"""The longest wait of a question about an experiment for a disk that hangs."""

ReadConfiguration = Callable[[], Awaitable[Config | None]]
"""Returns the configuration in force; None if there is no valid one. Raises UpstreamError."""

NewStarts = Callable[[Collection[str]], Awaitable[tuple[Sequence[ReplicaStart], Collection[str]]]]
"""Returns the starts of replicas but for these, which are known, and those that are told to stop. Raises
UpstreamError."""

NewController = Callable[[LedgerSettings, Submit], Controller]

_log = logging.getLogger("switchyard")
T = TypeVar("T")


class ControllerHost:
    """An async context manager: the controller works while the block runs, and writes waiting records at its end.

    The controller exists from the first configuration on. A configuration that names another directory gets a new
    controller, which knows only what that directory holds.
    """

    def __init__(
        self,
        read_configuration: ReadConfiguration,
        new_controller: NewController,
        control: ControlPlane | None = None,
        clock: Callable[[], float] = time.time,
        new_starts: NewStarts | None = None,
        *,
        tick_s: float = TICK_S,
        configuration_s: float = CONFIGURATION_S,
    ) -> None:
        """`control`: the control plane through which experiments move traffic; without one they cannot. `clock`: Unix
        seconds. `new_starts`: None where nobody starts replicas. `configuration_s`: the seconds after which the
        configuration is read again.
        """
        self._tick_s, self._configuration_s = tick_s, configuration_s
        self._read_configuration, self._new_controller = read_configuration, new_controller
        self._control, self._clock, self._new_starts = control, clock, new_starts
        self._started: set[str] = set()
        self.controller: Controller | None = None
        self._answers: ControllerApi | None = None
        self._url = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._refreshing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._worker = ThreadPoolExecutor(1, "experiments")
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._searcher = ThreadPoolExecutor(1, "search")
        self._exporter = ThreadPoolExecutor(1, "export")
        self._board = ThreadPoolExecutor(1, "activity")
        await self._refresh()
        self._tasks = [asyncio.create_task(self._tick()), asyncio.create_task(self._follow())]
        if self._control is not None:
            self._tasks.append(asyncio.create_task(self._move(self._control)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.controller is not None:
            await self._in_thread(self.controller.close)
            await self._log_failures(self._on_board(self.controller.activity.save))
        self._worker.shutdown()
        self._board.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False)
        self._searcher.shutdown(wait=False, cancel_futures=True)
        self._exporter.shutdown(wait=False, cancel_futures=True)

    async def send(self, batch: bytes) -> bytes:
        """Takes an encoded batch; returns the encoded acknowledgement. Raises InvalidBatch, and Unavailable before the
        first configuration."""
        controller = self._present()
        acknowledgement = await self._in_thread(partial(controller.ingest, batch))
        if controller.write_ahead is not None and not controller.write_ahead.is_copy:
            await controller.write_ahead.written()
        return acknowledgement

    async def record(self, recording: bytes) -> None:
        """Takes an encoded `RecordingFile`, which is written when this returns.

        Raises InvalidRecording, StoreError, and Unavailable before the first configuration.
        """
        work = partial(self._present().recordings.keep, recording)
        await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        """The controller's answer; a refusal is one, too. Raises Unavailable before the first configuration."""
        self._present()
        if path.endswith("/plans"):
            # This question precedes every change of a plan: so none is missed, however fast they follow one another.
            await self._refresh_soon()
        answer = await self._answer(method, path, query, body)
        if answer.status == NotFound.status and path.startswith("/experiments/"):
            # Routers get a configuration before it is read here, and its author may ask at once.
            await self._refresh_soon()
            answer = await self._answer(method, path, query, body)
        if path.startswith("/experiments"):
            await self._settle(controller := self._present())
            is_made = path.endswith("/decision") and answer.status == 200 and not is_dry_run(query)
            if is_made and controller.health().failing_since is not None:
                answer = await self._answer("GET", path.removesuffix("/decision"), {}, b"")
        return answer

    async def _settle(self, controller: Controller) -> None:
        """Returns once what was said is on disk with all that it rests on, so that nobody has read what a killed
        controller leaves no trace of. A directory that fails is not waited for."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_S
        while (writing := await self._in_thread(controller.flush)) is not None and (left := until - loop.time()) > 0:
            await asyncio.wait([asyncio.wrap_future(writing)], timeout=left)
        if controller.write_ahead is not None:  # with the word that it lived after this
            await controller.write_ahead.written(max(until - loop.time(), PATIENCE_S))

    @asynccontextmanager
    async def export(self, query: Mapping[str, str]) -> AsyncIterator[ExportStream | Answer]:
        """The export by `app.experiments.export`; one at a time, in a separate thread. Its pieces raise StoreError."""
        controller, loop = self._present(), asyncio.get_running_loop()

        def first_piece() -> tuple[Export, bytes | None]:
            exported = controller.export(query)
            return exported, next(exported.pieces, None)  # a refusal comes before the first piece

        try:
            exported, first = await loop.run_in_executor(self._exporter, first_piece)
        except ClientError as error:
            yield Answer(error.status, msgspec.json.encode({"message": error.message, "param": error.param}))
            return
        except StoreError as error:
            yield unreadable(error)
            return
        try:
            yield ExportStream(exported.media_type, self._pieces(first, exported.pieces))
        finally:
            # After the piece that may be under way: a generator cannot be closed while it runs.
            self._exporter.submit(getattr(exported.pieces, "close", lambda: None))

    async def _pieces(self, first: bytes | None, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
        loop, piece = asyncio.get_running_loop(), first
        while piece is not None:
            yield piece
            piece = await loop.run_in_executor(self._exporter, next, rest, None)

    async def _answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        assert self._answers is not None
        # A search may read everything on disk, and of the controller only immutable state.
        thread = self._worker
        if path == "/audit":
            thread = self._writer if method == "POST" else self._searcher
        elif path.startswith(("/requests/", "/recordings/")):
            thread = self._searcher
        elif path.startswith((ACTIVITY, ISSUED_KEYS)):
            thread = self._board
        work = partial(self._answers.answer, method, path, query, body)
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except StoreError as error:
            return unreadable(error)

    async def _refresh_soon(self) -> None:
        """Reads the configuration, if that does not take long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._log_failures(self._refresh()), FRESH_S)

    def _present(self) -> Controller:
        if self.controller is None:
            raise Unavailable("The controller of experiments has no configuration yet", retry_after=1)
        return self.controller

    async def _tick(self) -> None:
        """Runs the controller's ticks. Failures are logged; the loop continues."""
        while True:
            await asyncio.sleep(self._tick_s)
            if self.controller is not None:
                await self._log_failures(self._in_thread(self.controller.tick))
                await self._log_failures(self._on_board(self.controller.activity.save_if_due))

    async def _follow(self) -> None:
        """Follows the configuration, apart from the ticks, since a control plane may take long to answer."""
        loop = asyncio.get_running_loop()
        read_at = counted_at = loop.time()
        while True:
            await asyncio.sleep(self._tick_s)
            wanted = self.controller is None or self.controller.wants_configuration
            if wanted or loop.time() - read_at >= self._configuration_s:
                read_at = loop.time()
                await self._log_failures(self._refresh())
            if loop.time() - counted_at >= self._configuration_s:
                counted_at = loop.time()
                await self._log_failures(self._count_replicas())
                await self._log_failures(self._watch_starts())

    async def _count_replicas(self) -> None:
        if self._control is None or self.controller is None:
            return
        try:
            applications = (await self._control.replicas()).applications
            running = {name: states.get(RUNNING, 0) for name, states in applications.items()}
        except UpstreamError:
            running = None  # reports state that replicas are not known
        await self._in_thread(partial(self.controller.observe_replicas, running))

    async def _watch_starts(self) -> None:
        if self._new_starts is None or self.controller is None:
            return
        with suppress(UpstreamError):  # the next look finds what is there then
            starts, stopped = await self._new_starts(self._started)
            await self._on_board(partial(self.controller.activity.started, starts, stopped))
            self._started |= {start.replica for start in starts}

    async def _move(self, control: ControlPlane) -> None:
        """Makes the changes of traffic that experiments want, apart from the ticks, as `_follow`."""
        while True:
            await asyncio.sleep(self._tick_s)
            if self.controller is not None:
                await self._log_failures(self._make_changes(self.controller, control))

    async def _make_changes(self, controller: Controller, control: ControlPlane) -> None:
        for change in await self._in_thread(controller.changes):
            async with self._refreshing:  # the configuration applied before must not be taken for the one applied after
                refusal = await carry_out(control, change, self._clock())
            await self._in_thread(partial(controller.changed, change, refusal))
            await self._refresh()

    async def _log_failures(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  a bug in one round must not end the following ones
            _log.error(
                "Experiment controller iteration failed", extra=event("experiments_failed", traceback=where(error))
            )

    async def _refresh(self) -> None:
        async with self._refreshing:  # configurations must be applied in the order in which they were read
            transitions = self.controller.transitions if self.controller is not None else 0
            try:
                config, rollout_complete = await self._read()
            except UpstreamError as error:
                unread = event("configuration_not_read", error=str(error))
                _log.warning(
                    "Experiments: the configuration could not be read, keeping the previous configuration", extra=unread
                )
                return
            if config is not None:
                await self._in_thread(partial(self._configure, config, rollout_complete, transitions))

    async def _read(self) -> tuple[Config | None, bool]:
        """The configuration in force, and whether every router has it. Raises UpstreamError."""
        config = await self._read_configuration()
        if self._control is None:
            return config, True
        applied = await self._control.applied()
        return applied.parsed(), applied.delivery is Delivery.SETTLED

    def _configure(self, config: Config, rollout_complete: bool, transitions: int) -> None:
        """Configures the controller, in its thread."""
        if self.controller is None or config.ledger.url != self._url:
            if self.controller is not None:
                self.controller.close()
            controller = self._new_controller(config.ledger, self._writer.submit)
            self._url, self._answers = config.ledger.url, ControllerApi(controller)
            self._started = set()
            controller.configure(config, rollout_complete=rollout_complete)
            controller.tick()  # writes the start to the journal before the first request
            self.controller = controller
            return
        self.controller.configure(config, rollout_complete=rollout_complete, transitions=transitions)

    async def _on_board(self, work: Callable[[], None]) -> None:
        with suppress(StoreError):  # the ledger's own writes report it; the next save has the same counts, and more
            await asyncio.get_running_loop().run_in_executor(self._board, work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


def host_controller(
    read_configuration: ReadConfiguration,
    base: Path,
    control: ControlPlane | None = None,
    new_starts: NewStarts | None = None,
    *,
    is_alone: bool = False,
) -> ControllerHost:
    """A host of the real controller. `base`: the directory that a relative `ledger.url` is relative to. `control`: the
    control plane through which experiments move traffic; None: they cannot. `is_alone`: the only router is in the same
    process, so that what is not on disk dies with it.
    """

    def new(ledger: LedgerSettings, submit: Submit) -> Controller:
        directory = local_directory(ledger.url, base)
        if directory is not None:
            make_private(directory)
        ahead = WriteAhead(directory, is_copy=not is_alone) if directory is not None else None
        return Controller(ledger, base=base, has_control_plane=control is not None, submit=submit, write_ahead=ahead)

    return ControllerHost(read_configuration, new, control, new_starts=new_starts)
