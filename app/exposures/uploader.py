"""Sends a router's recorded exposures to the controller, in the background.

- The pause after each failure of the controller: 1, 2, 4 … 30 seconds.
- State exchanged with the controller alongside each batch: pinned conversations, stops, and replaced weights.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from app.exposures.log import Arm, ExposureLog
from app.exposures.wire import Acknowledgement, Pins, Replaced, SealedBatch, TrafficBlock, decode_acknowledgement
from app.routing.conversations import Pinned, PinnedConversations
from app.telemetry.logs import event, where

_FIRST_S, _LONGEST_S = 1.0, 30.0


class Backoff:
    """`now`: seconds of any clock that does not go backwards."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._not_before = float("-inf")

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._pause_s > 0.0

    def allows(self, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """Records a failed attempt."""
        self._pause_s = min(self._pause_s * 2 or _FIRST_S, _LONGEST_S)
        self._not_before = now + self._pause_s

    def succeeded(self) -> None:
        """Records a successful attempt."""
        self._pause_s = 0.0


class ControllerSync:
    """The exchange of one sender. `is_watched`: whether the controller may have stops or replaced weights for us.

    `on_stops` is called with all stops that are in force, `on_replaced` with weights that running conversations follow
    although the plan does not list them, `on_windows` when endpoints have changed on other routers, `on_pins` with the
    number of pinned conversations by endpoint.
    """

    def __init__(
        self,
        pins: PinnedConversations,
        is_watched: Callable[[], bool],
        on_stops: Callable[[Sequence[TrafficBlock]], None],
        on_replaced: Callable[[Sequence[Replaced]], None],
        on_windows: Callable[[], None],
        on_pins: Callable[[dict[str, int]], None],
    ) -> None:
        self._pins, self._is_watched, self._on_pins = pins, is_watched, on_pins
        self._on_stops, self._on_replaced, self._on_windows = on_stops, on_replaced, on_windows
        self._controller = ""
        self._seen = 0
        self._outgoing: list[Pinned] = []

    @property
    def is_wanted(self) -> bool:
        """Whether a router with nothing to report sends an empty batch."""
        return self._is_watched() or self._pins.is_open

    def outgoing(self) -> tuple[list[Pins], int]:
        """Content for the next batch: new pins, and the position up to which the controller's pins have been read."""
        self._outgoing = self._pins.unsent()
        return [Pins(*pins) for pins in self._outgoing], self._seen

    def apply(self, acknowledgement: Acknowledgement) -> None:
        """Takes the controller's answer to the batch that followed `outgoing`."""
        is_new = acknowledgement.controller != self._controller
        if is_new and self._controller:
            self._pins.send_again()
        self._pins.sent(self._outgoing)
        # Another controller numbers its pins from the start: they are read from the beginning.
        self._seen = 0 if is_new and self._seen else acknowledgement.pins_end
        self._controller = acknowledgement.controller
        # First: conversations pinned since a stop was lifted must not be moved with the stopped ones.
        self._on_stops(acknowledgement.stops)
        if acknowledgement.replaced:
            self._on_replaced(acknowledgement.replaced)
        for pin in acknowledgement.pins:
            self._pins.heard(Pinned(pin.endpoint, pin.deployment, pin.until, pin.conversations))
        self._pins.has_others = acknowledgement.routers > 1
        if self._pins.heard_windows(acknowledgement.windows):
            self._on_windows()

    def tidy(self) -> None:
        """Forgets pins that have ended; called about every second."""
        self._pins.expire()
        self._on_pins(self._pins.sizes())


EVERY_S = 1.0
TIMEOUT_S = 2.0
"""The timeout for one batch."""

CONFIRM_S = 15.0
"""The time after the last batch until the oldest that is not known to be durable is sent again: the controller may have
restarted and lost it.
"""

SOON_S = 0.02
"""The pause after an exchange that was asked for."""

PATIENCE_S = 0.25
"""The longest wait of a request for the pins of other routers."""

FLUSH_S = 5.0
"""The longest wait for the last batches when the process ends."""

_log = logging.getLogger("switchyard")

Send = Callable[[bytes], Awaitable[bytes]]
"""Sends an encoded `Batch`; returns the encoded `Acknowledgement`. May raise any error."""


class LedgerObserver(Protocol):
    """The counters of the sender: `telemetry.metrics.Telemetry`."""

    def rows_recorded(self, endpoint: str, deployment: str, rows: int) -> None: ...
    def rows_lost(self, endpoint: str, deployment: str, rows: int) -> None: ...
    def ledger_buffered(self, size: int) -> None: ...
    def batch_sent(self, seconds: float) -> None: ...


class Sender:
    """One batch is under way at a time. After a failure or a timeout the controller is not called for 1, 2, 4 … 30
    seconds; exposures recorded meanwhile wait in the ledger's backlog, and the controller's stops and pins wait there.

    `sync`: exchanges stops and pins. If it wants to, a round without anything to report sends an empty batch.
    """

    def __init__(
        self,
        ledger: ExposureLog,
        send: Send,
        observer: LedgerObserver,
        *,
        every_s: float = EVERY_S,
        timeout_s: float = TIMEOUT_S,
        confirm_s: float = CONFIRM_S,
        sync: ControllerSync | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._send, self._observer = ledger, send, observer
        self._every_s, self._timeout_s, self._confirm_s = every_s, timeout_s, confirm_s
        self._sync, self._clock = sync, clock
        self._backoff = Backoff()
        self._sent_at = clock()
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._reported: tuple[Counter[Arm], Counter[Arm]] = (Counter(), Counter())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sends while the block runs, and the rest at its end."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._flush()

    def wake(self) -> None:
        """Has pins exchanged soon, rather than with the next batch."""
        self._wanted.set()

    async def exchange(self) -> None:
        """Returns once pins have been exchanged with the controller, or at once while that does not answer. It waits
        `PATIENCE_S` at most: no request depends on the controller.
        """
        if self._sync is None or self._backoff.is_failing:
            return
        exchanged = asyncio.get_running_loop().create_future()
        self._waiting.append(exchanged)
        self.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await exchanged

    async def _run(self) -> None:
        next_round = time.monotonic() + self._every_s
        while True:
            is_due = not await self._is_wanted_before(next_round)
            if is_due:
                next_round = time.monotonic() + self._every_s
            try:
                await (self.round() if is_due else self._exchange_soon())
            except Exception as error:  # noqa: BLE001  a bug in one round must not end the recording
                _log.error("Exposures could not be sent", extra=event("ledger_failed", traceback=where(error)))
            if not is_due:
                await asyncio.sleep(SOON_S)

    async def _is_wanted_before(self, at: float) -> bool:
        """Waits until pins are to be exchanged, until the monotonic time `at`."""
        if (left := at - time.monotonic()) <= 0:
            return False
        try:
            async with asyncio.timeout(left):
                return await self._wanted.wait()
        except TimeoutError:
            return False

    async def _exchange_soon(self) -> None:
        self._wanted.clear()
        waiting, self._waiting = self._waiting, []
        try:
            if self._backoff.allows(self._clock()):
                await self._poll()
        finally:
            for exchanged in waiting:
                if not exchanged.done():
                    exchanged.set_result(None)

    async def round(self) -> None:
        """Seals batches, and sends them unless the controller is not to be called yet."""
        await self._prepare()
        if self._backoff.allows(self._clock()) and not await self._send_all():
            await self._poll()
        if self._sync is not None:
            self._sync.tidy()
        self._report()

    async def _prepare(self) -> None:
        """Seals everything that has happened into batches."""
        ledger = self._ledger
        ledger.record_overdue(time.perf_counter())
        if count := len(ledger.unchecked):
            ledger.checked(await asyncio.to_thread(ledger.check, count))
        ledger.seal()

    async def _send_all(self) -> bool:
        """Whether there was anything to send."""
        backlog, before = self._ledger.backlog, 0
        while (batch := backlog.next()) is not None:
            # A controller that acknowledges, but never this batch, must not be sent it in a loop.
            if batch.number == before or not await self._deliver(batch):
                self._backoff.failed(self._clock())
                return True
            before = batch.number
        if self._clock() - self._sent_at > self._confirm_s and (batch := backlog.unconfirmed()) is not None:
            await self._deliver(batch)
            return True
        return before > 0

    async def _poll(self) -> None:
        """Sends an empty batch, to get stops and pins."""
        if self._sync is not None and self._sync.is_wanted and not await self._deliver(self._ledger.idle()):
            self._backoff.failed(self._clock())

    async def _deliver(self, batch: SealedBatch) -> bool:
        """Sends one batch; returns whether the controller has answered."""
        backlog, began = self._ledger.backlog, self._clock()
        if batch.number:
            self._sent_at, backlog.in_flight = began, batch.number
        try:
            async with asyncio.timeout(self._timeout_s):
                pins, seen = self._sync.outgoing() if self._sync is not None else ((), 0)
                answer = await self._send(self._ledger.encoded(batch, pins, seen))
            acknowledgement = decode_acknowledgement(answer)
            backlog.acknowledge(acknowledgement)
            if self._sync is not None:
                self._sync.apply(acknowledgement)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  no failure of the controller may end the sender
            if not self._backoff.is_failing:
                unsent = event("ledger_not_sent", error=type(error).__name__)
                _log.warning("The controller of experiments does not answer; exposures wait here", extra=unsent)
            return False
        finally:
            backlog.in_flight = None
        self._observer.batch_sent(self._clock() - began)
        self._backoff.succeeded()
        return True

    async def _flush(self) -> None:
        """The last batches; if the controller does not answer, they are lost with the process."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._prepare()
                await self._send_all()
                # A controller that has restarted since lacks batches that it had received; only its answer shows this.
                if (batch := self._ledger.backlog.unconfirmed()) is not None and await self._deliver(batch):
                    await self._send_all()
        except TimeoutError:
            pass
        self._report()

    def _report(self) -> None:
        recorded, lost = self._ledger.rows, self._ledger.backlog.lost
        reported, reported_lost = self._reported
        for (endpoint, deployment), rows in (recorded - reported).items():
            self._observer.rows_recorded(endpoint, deployment, rows)
        for (endpoint, deployment), rows in (lost - reported_lost).items():
            self._observer.rows_lost(endpoint, deployment, rows)
        self._reported = (recorded.copy(), lost.copy())
        self._observer.ledger_buffered(self._ledger.backlog.size)
