"""The real controller of experiments for a test's router, in this process and on a directory of the test."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from app.config.experiments import Experiment
from app.config.schema import Config
from app.control_plane import ControlPlane, Delivery
from app.errors import Unavailable, UpstreamError
from app.experiments.activity import ActivityKeeper
from app.experiments.analysis.analysis import Analysis, same_run
from app.experiments.api import ControllerApi
from app.experiments.automation.actions import TrafficChange, carry_out
from app.experiments.contract.journal import JournalEntry
from app.experiments.controller import Controller
from app.experiments.storage.columns import Tables
from app.experiments.storage.keeper import OpenStore
from app.experiments.storage.store import open_store
from app.exposures.controller_client import Answer
from tests.support.experiments.failing_store import Death
from tests.support.experiments.world import Unpaced


def _analysis(name: str, experiment: Experiment, config: Config, tables: Tables, started_at: float) -> Analysis:
    """An analysis that looks whenever there is new data: tests do not wait for the next look."""
    return Analysis(name, experiment, config, tables, started_at, pace=Unpaced())


class LiveController:
    """A `ControllerClient` that hosts a `Controller` on `base`/<the configuration's ledger.url>.

    `absent`: it cannot be reached. `late_s`: how long it takes to answer a question. `ahead_s`: how far its clock is
    ahead of the routers', for what takes minutes.
    `control`: the control plane where experiments move traffic, and that says what is applied; None: they cannot. What
    the host does every second, it does with every batch: routers send one each second, empty ones among them.

    When anything below it raises `Death`, it is killed there, and another one takes over on the same directory.
    """

    def __init__(self, base: Path, control: ControlPlane | None = None) -> None:
        self.base, self.control = base, control
        self.open_store: OpenStore = open_store
        """How the next one to take over opens the directory."""
        self.absent = False
        self.late_s = 0.0
        self.ahead_s = 0.0
        self._lock, self._moving = threading.RLock(), threading.Lock()
        self._config: Config | None = None
        self._settled = True
        self._controller: Controller | None = None

    @property
    def directory(self) -> Path:
        """The store of exposures."""
        assert self._config is not None
        return self.base / self._config.ledger.url

    @property
    def journal(self) -> list[JournalEntry]:
        """The controller's view of the journal."""
        with self._lock:
            return list(self._running.entries())

    def configure(self, config: Config, *, rollout_complete: bool = True) -> None:
        """Starts the controller with the first configuration; later delivers new ones."""
        with self._mortal():
            self._config, self._settled = config, rollout_complete
            if self._controller is None:
                self._start()
            self._running.configure(config, rollout_complete=rollout_complete)

    async def send(self, batch: bytes) -> bytes:
        try:
            answer = await asyncio.to_thread(self._ingest, batch)
            await self.move()
        except Death:
            raise Unavailable("The controller of experiments has died") from None
        return answer

    async def ask(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        await asyncio.sleep(self.late_s)
        try:
            return await asyncio.to_thread(self._answer, method, path, query, body)
        except Death:
            raise Unavailable("The controller of experiments has died") from None

    async def move(self) -> None:
        """Makes the traffic changes that experiments request, then reads what is applied. Only one caller at a time."""
        if self.control is None or not self._moving.acquire(blocking=False):
            return
        try:
            await self._move(self.control)
        finally:
            self._moving.release()

    async def _move(self, control: ControlPlane) -> None:
        for change in await asyncio.to_thread(self._changes):
            try:
                refusal = await carry_out(control, change, self._now())
            except Death:
                self.replaced(killed=True)
                raise
            await asyncio.to_thread(self._changed, change, refusal)
        with suppress(UpstreamError):
            applied = await control.applied()
            if (config := applied.parsed()) is not None:
                await asyncio.to_thread(self.configure, config, rollout_complete=applied.delivery is Delivery.SETTLED)

    async def record(self, recording: bytes) -> None:
        """A `RecordingClient`, too."""
        await asyncio.to_thread(self._record, recording)

    def advance(self, seconds: float) -> None:
        """Advances only the controller's clock: everything that was due in that time happens now."""
        with self._lock:
            self.ahead_s += seconds
        with suppress(Death), self._mortal():
            self._running.tick()

    def replaced(self, *, killed: bool = False) -> None:
        """Another controller takes over on the same directory; the former one may have been `killed` before."""
        with self._lock:
            if not killed:
                self._running.close()
            while True:
                with suppress(Death):
                    self._start()
                    assert self._config is not None
                    self._running.configure(self._config, rollout_complete=self._settled)
                    return

    @property
    def activity(self) -> ActivityKeeper:
        """What routers have reported of their requests."""
        with self._lock:
            return self._running.activity

    def close(self) -> None:
        """Writes all pending data."""
        with self._lock:
            self._running.close()

    @property
    def _running(self) -> Controller:
        assert self._controller is not None, "it has no configuration yet"
        return self._controller

    def _start(self) -> None:
        assert self._config is not None
        self._controller = Controller(
            self._config.ledger,
            base=self.base,
            analysis_factory=_analysis,
            same_run=same_run,
            has_control_plane=self.control is not None,
            clock=self._now,
            open_store=self.open_store,
        )
        self._answers = ControllerApi(self._controller)

    @contextmanager
    def _mortal(self) -> Iterator[None]:
        """Works alone. If it dies, another one has taken over."""
        with self._lock:
            try:
                yield
            except Death:
                self.replaced(killed=True)
                raise

    def _now(self) -> float:
        return time.time() + self.ahead_s

    def _ingest(self, batch: bytes) -> bytes:
        if self.absent:
            raise Unavailable("The controller of experiments cannot be reached")
        with self._mortal():
            answer = self._running.ingest(batch)
            self._running.tick()
            return answer

    def _changes(self) -> list[TrafficChange]:
        with self._mortal():
            self._running.tick()
            return self._running.changes()

    def _changed(self, change: TrafficChange, refusal: str | None) -> None:
        with self._mortal():
            self._running.changed(change, refusal)

    def _record(self, recording: bytes) -> None:
        if self.absent:
            raise Unavailable("The controller of experiments cannot be reached")
        with self._mortal():
            self._running.recordings.keep(recording)

    def _answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Answer:
        if self.absent:
            raise Unavailable("The controller of experiments cannot be reached")
        with self._mortal():
            self._running.tick()
            return self._answers.answer(method, path, query, body)
