"""Batches carry pins in both directions, and stops from the controller.

Rows reach the controller or are counted as lost, also while the controller fails.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.exposures.log import RequestEnd
from app.exposures.uploader import ControllerSync, Sender
from app.exposures.wire import (
    Acknowledgement,
    Batch,
    Flag,
    Pins,
    Replaced,
    Row,
    TrafficBlock,
    decode_batch,
    encode_acknowledgement,
)
from app.routing.conversations import BEHIND_S, PinnedConversations
from tests.support.waiting import wait_until_async
from tests.unit.app.exposures.test_log import Recorder


class Rig:
    def __init__(self) -> None:
        self.now, self.watched = 1000.0, False
        self.stops: list[list[TrafficBlock]] = []
        self.replaced: list[list[Replaced]] = []
        self.sizes: list[dict[str, int]] = []
        self.windows: list[float] = []
        self.pins = PinnedConversations(lambda endpoint, cause: None, lambda: self.now)
        self.sync = ControllerSync(
            self.pins,
            lambda: self.watched,
            lambda stops: self.stops.append(list(stops)),
            lambda replaced: self.replaced.append(list(replaced)),
            lambda: self.windows.append(self.now),
            self.sizes.append,
        )

    def outgoing(self) -> tuple[list[Pins], int]:
        pins, seen = self.sync.outgoing()
        return [pin for pin in pins if pin.conversations], seen

    def acknowledge(self, controller: str = "c1", end: int = 0, *pins: Pins) -> None:
        self.sync.apply(Acknowledgement(0, 0, controller=controller, pins=list(pins), pins_end=end))


def test_empty_batches_are_sent_while_stops_may_come_or_conversations_are_pinned() -> None:
    rig = Rig()
    wanted = [rig.sync.is_wanted]
    rig.watched = True
    wanted.append(rig.sync.is_wanted)
    rig.watched = False
    rig.pins.configure({"chat": 1500.0})
    wanted.append(rig.sync.is_wanted)
    rig.now = 1500.0
    wanted.append(rig.sync.is_wanted)
    assert wanted == [False, True, True, False]


def test_pins_are_sent_until_acknowledged_and_the_controllers_are_read_once() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 2000.0})
    rig.pins.pin("chat", 1, "blue")
    mine = [Pins("chat", "blue", 2000.0, [1])]
    assert rig.outgoing() == rig.outgoing() == (mine, 0)
    rig.acknowledge("c1", 7, Pins("chat", "green", 2000.0, [2]))
    assert rig.pins.deployment("chat", 2) == "green"
    assert rig.outgoing() == ([], 7)
    rig.sync.tidy()
    assert rig.sizes == [{"chat": 2}]
    rig.now = 2000.0
    rig.sync.tidy()
    assert rig.sizes[-1] == {}


def test_a_new_controller_gets_all_pins_and_its_own_are_read_from_the_beginning() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 2000.0})
    rig.pins.pin("chat", 1, "blue")
    rig.outgoing()
    rig.acknowledge("c1", 7)
    rig.pins.pin("chat", 2, "blue")
    rig.outgoing()
    rig.acknowledge("c2", 3)
    assert rig.outgoing() == ([Pins("chat", "blue", 2000.0, [1])], 0), "2 has just been sent"
    rig.acknowledge("c2", 5)
    assert rig.outgoing() == ([], 5)


def test_every_acknowledgement_replaces_all_stops() -> None:
    rig, stop = Rig(), TrafficBlock("1", "chat", "green", "blue")
    rig.outgoing()
    rig.sync.apply(Acknowledgement(0, 0, stops=[stop]))
    rig.sync.apply(Acknowledgement(0, 0))
    assert rig.stops == [[stop], []]


def test_replaced_weights_are_applied_if_there_are_any() -> None:
    rig, replaced = Rig(), Replaced("chat", "0-12345678", {"blue": 100}, 2000.0)
    rig.outgoing()
    rig.sync.apply(Acknowledgement(0, 0, replaced=[replaced]))
    rig.sync.apply(Acknowledgement(0, 0))
    assert rig.replaced == [[replaced]]


def test_a_change_on_another_router_is_heard_once_and_until_it_comes_here() -> None:
    rig = Rig()
    rig.pins.configure({"chat": 1500.0})
    told = [{"chat": 1500.9}, {"chat": 1520.0}, {"chat": 1520.0}, {}]
    for windows in told:
        rig.sync.apply(Acknowledgement(0, 0, windows=windows, routers=3))
    assert rig.windows == [1000.0], "those of one change differ by less than a second"
    assert (rig.pins.is_behind("chat"), rig.pins.has_others) == (True, True)
    rig.pins.configure({"chat": 1523.0})
    assert not rig.pins.is_behind("chat")
    rig.sync.apply(Acknowledgement(0, 0, windows={"chat": 1600.0}, routers=1))
    rig.now += BEHIND_S
    assert (rig.pins.is_behind("chat"), rig.pins.has_others) == (False, False)


EVERY_S = 0.001
BOUND = 2**16


@dataclass
class Counts:
    """Records the sender's reports."""

    recorded: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    buffered: int = 0
    batches: int = 0

    def rows_recorded(self, endpoint: str, deployment: str, rows: int) -> None:
        self.recorded[deployment] += rows

    def rows_lost(self, endpoint: str, deployment: str, rows: int) -> None:
        self.lost[deployment] += rows

    def ledger_buffered(self, size: int) -> None:
        self.buffered = size

    def batch_sent(self, seconds: float) -> None:
        self.batches += 1


class Controller:
    """Stores batches as the real one does: `received` are in memory, `durable` on disk. A restart loses the former."""

    def __init__(self) -> None:
        self.received: dict[int, Batch] = {}
        self.durable: dict[int, Batch] = {}
        self.calls = self.restarts = 0

    def flush(self) -> None:
        self.durable |= self.received
        self.received = {}

    def restart(self) -> None:
        self.received = {}
        self.restarts += 1

    def take(self, data: bytes) -> bytes:
        self.calls += 1
        batch = decode_batch(data)
        if batch.number not in self.durable:
            self.received[batch.number] = batch
        received, durable = self._up_to(batch, self.kept), self._up_to(batch, self.durable)
        return encode_acknowledgement(Acknowledgement(received, durable, controller=f"process {self.restarts}"))

    def _up_to(self, batch: Batch, kept: Any) -> int:
        """The last number before the first gap that the router can still fill."""
        number = batch.oldest - 1
        while number + 1 in kept:
            number += 1
        return number

    @property
    def kept(self) -> dict[int, Batch]:
        return {**self.durable, **self.received}

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.kept.values() for row in batch.rows]


def sender(recorder: Recorder, send: Callable[[bytes], Awaitable[bytes]], counts: Counts, **times: Any) -> Sender:
    return Sender(recorder.ledger, send, counts, every_s=EVERY_S, **{"timeout_s": 0.02, **times})


def test_batches_arrive_while_requests_run_and_the_last_ones_at_the_end() -> None:
    recorder, controller, counts = Recorder(), Controller(), Counts()

    async def send(data: bytes) -> bytes:
        return controller.take(data)

    async def run() -> None:
        async with sender(recorder, send, counts).running():
            recorder.record(10)
            await wait_until_async(lambda: bool(controller.rows))
            controller.flush()
            recorder.record(5)

    asyncio.run(run())
    assert len(controller.rows) == 15
    assert counts.recorded == {"blue": 15}
    assert (counts.lost, counts.batches >= 2) == (Counter(), True)


def test_batches_that_a_controller_lost_are_sent_again_at_the_end() -> None:
    recorder, controller, counts = Recorder(), Controller(), Counts()

    async def send(data: bytes) -> bytes:
        return controller.take(data)

    async def run() -> None:
        async with sender(recorder, send, counts).running():
            recorder.record(10)
            await wait_until_async(lambda: len(controller.rows) == 10)
            controller.restart()

    asyncio.run(run())
    assert len(controller.rows) == 10


def test_a_promised_form_is_checked_before_sending() -> None:
    recorder, controller = Recorder(), Controller()
    exposure = recorder.start(stream=False)
    exposure.sent("/v1/chat/completions", {"response_format": {"type": "json_object"}})
    exposure.answer(b'{"id":"c","choices":[{"message":{"content":"{"},"finish_reason":"stop"}]}')
    recorder.ledger.finish(exposure, RequestEnd(200, 1.0))

    async def send(data: bytes) -> bytes:
        return controller.take(data)

    async def run() -> None:
        async with sender(recorder, send, Counts()).running():
            pass

    asyncio.run(run())
    assert [row.flags & ~Flag.LONG for row in controller.rows] == [Flag.INVALID_OUTPUT]


@pytest.mark.parametrize("answer", [b"", b"nonsense", encode_acknowledgement(Acknowledgement(0, 0))])
def test_a_controller_that_acknowledges_nothing_is_not_called_in_a_loop(answer: bytes) -> None:
    recorder, calls = Recorder(), 0

    async def send(data: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return answer

    async def run() -> None:
        async with sender(recorder, send, Counts()).running():
            recorder.record()
            await asyncio.sleep(0.1)

    asyncio.run(run())
    assert 1 <= calls <= 4


def test_a_batch_that_no_one_confirmed_is_sent_again_when_there_is_nothing_else() -> None:
    recorder, controller = Recorder(), Controller()

    async def send(data: bytes) -> bytes:
        return controller.take(data)

    async def run() -> None:
        async with sender(recorder, send, Counts(), confirm_s=0.01).running():
            recorder.record()
            await wait_until_async(lambda: bool(controller.rows))
            controller.restart()
            await wait_until_async(lambda: bool(controller.rows))
            controller.flush()
            await wait_until_async(lambda: len(recorder.ledger.backlog) == 0)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert len(controller.rows) == 1


STOP = TrafficBlock("stop-1", "chat", "green", "blue")


class StoppingController:
    """A controller that sends a stop with each acknowledgement, and records the batches' numbers."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.is_absent = False

    async def send(self, data: bytes) -> bytes:
        batch = decode_batch(data)
        self.numbers.append(batch.number)
        if self.is_absent:
            raise ConnectionRefusedError
        received = max(self.numbers)
        return encode_acknowledgement(Acknowledgement(received, received, stops=[STOP]))


def rounds(
    recorder: Recorder, controller: StoppingController, wanted: Callable[[], bool], steps: Sequence[int]
) -> list[float]:
    """Runs a round of a sender for each number of ended requests in `steps`.

    Returns the times at which stops arrived, in rounds; a round takes a second.
    """
    now = 0.0
    arrived: list[float] = []

    async def run() -> None:
        nonlocal now
        pins = PinnedConversations(lambda endpoint, cause: None)
        sync = ControllerSync(
            pins, wanted, lambda stops: arrived.append(now) if list(stops) == [STOP] else None, print, print, print
        )
        one = sender(recorder, controller.send, Counts(), sync=sync, clock=lambda: now)
        for rows in steps:
            recorder.record(rows)
            await one.round()
            now += 1.0

    asyncio.run(run())
    return arrived


def test_a_router_with_nothing_to_report_sends_empty_batches_if_stops_may_come() -> None:
    controller = StoppingController()
    assert rounds(Recorder(), controller, lambda: True, [0, 0, 1, 0]) == [0.0, 1.0, 2.0, 3.0]
    assert controller.numbers == [0, 0, 1, 0]
    controller = StoppingController()
    assert rounds(Recorder(), controller, lambda: False, [0, 0, 1, 0]) == [2.0], "received with a batch of requests"
    assert controller.numbers == [1]


def test_an_absent_controller_is_called_rarely_until_it_is_back() -> None:
    controller = StoppingController()
    controller.is_absent = True
    assert rounds(Recorder(), controller, lambda: True, [0] * 8) == []
    assert controller.numbers == [0] * 4, "after 1, 2 and 4 seconds"
    assert Recorder().ledger.idle().number == 0


def test_an_empty_batch_has_the_oldest_number_that_the_router_keeps() -> None:
    recorder = Recorder()
    recorder.record()
    recorder.ledger.seal()
    recorder.record()
    recorder.ledger.seal()
    backlog = recorder.ledger.backlog
    backlog.acknowledge(Acknowledgement(2, 1))
    idle = decode_batch(recorder.ledger.encoded(recorder.ledger.idle()))
    assert (idle.number, idle.oldest, idle.starts, idle.rows) == (0, 2, [], [])
    backlog.acknowledge(Acknowledgement(2, 2))
    assert decode_batch(recorder.ledger.encoded(recorder.ledger.idle())).oldest == 3


class UnreliableController(Controller):
    """A controller that answers, or does not."""

    mood = "answers"

    def suffer(self, step: str) -> None:
        """Applies one of `MOODS`."""
        if step == "is flushed":
            self.flush()
        elif step == "restarts":
            self.restart()
        else:
            self.mood = step

    async def send(self, data: bytes) -> bytes:
        if self.mood == "hangs":
            await asyncio.sleep(3600)
        if self.mood in ("is absent", "fails"):
            raise ConnectionRefusedError if self.mood == "is absent" else RuntimeError
        answer = self.take(data)
        if self.mood == "forgets to answer":
            raise ConnectionResetError
        return answer


MOODS = ["answers", "fails", "hangs", "forgets to answer", "is flushed", "restarts", "is absent"]


@given(st.lists(st.tuples(st.sampled_from(MOODS), st.integers(0, 120)), max_size=12), st.booleans())
def test_rows_kept_and_rows_lost_are_the_rows_recorded(steps: Sequence[tuple[str, int]], ends_well: bool) -> None:
    """The controller fails, stalls, repeats or is absent in any order; memory stays within its bound."""
    recorder, controller, counts = Recorder(buffer_bytes=BOUND), UnreliableController(), Counts()
    ledger = recorder.ledger
    now = 0.0

    async def run() -> None:
        nonlocal now
        one = sender(recorder, controller.send, counts, timeout_s=0.002, clock=lambda: now)
        for step, rows in steps:
            controller.suffer(step)
            recorder.record(rows)
            assert ledger.backlog.size <= BOUND
            now += 100.0
            await one.round()
        controller.suffer("answers")
        for _ in range(3 if ends_well else 0):
            now += 100.0
            await one.round()
            controller.flush()

    asyncio.run(run())
    recorded = sum(rows for _, rows in steps)
    lost = sum(ledger.backlog.lost.values())
    waiting = {row.seq for batch in ledger.backlog for row in decode_batch(ledger.encoded(batch)).rows}
    durable = {row.seq for batch in controller.durable.values() for row in batch.rows}
    kept = {row.seq for batch in controller.kept.values() for row in batch.rows}
    assert counts.recorded == ({"blue": recorded} if recorded else {})
    assert sum(counts.lost.values()) == lost
    # Rows that are neither waiting nor lost are durable.
    assert len(waiting | durable) >= recorded - lost
    assert kept <= set(range(1, recorded + 1))
    if ends_well:
        assert len(durable) >= recorded - lost
        assert len(ledger.backlog) == 0 or waiting <= durable


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.booleans()), min_size=1, max_size=15))
def test_with_a_small_buffer_only_rows_that_the_controller_does_not_keep_are_lost(
    rounds: Sequence[tuple[int, bool, bool]],
) -> None:
    """Received batches that are dropped before they are durable are lost only if the controller restarts first."""
    recorder, controller = Recorder(buffer_bytes=BOUND), Controller()
    recorder.ledger.backlog.limit_bytes = 2**11
    ledger = recorder.ledger

    async def send(data: bytes) -> bytes:
        return controller.take(data)

    async def run() -> None:
        one = sender(recorder, send, Counts(), clock=lambda: 0.0)
        for rows, flushes, restarts in rounds:
            recorder.record(rows)
            await one.round()
            if flushes:
                controller.flush()
            if restarts:
                controller.restart()
        recorder.record(1)
        await one.round()

    asyncio.run(run())
    kept = {row.seq for row in controller.rows}
    waiting = {row.seq for batch in ledger.backlog for row in decode_batch(ledger.encoded(batch)).rows}
    recorded = sum(rows for rows, _, _ in rounds) + 1
    lost = sum(ledger.backlog.lost.values())
    assert lost >= recorded - len(kept | waiting), "no loss is hidden"
    if not any(restarts for _, _, restarts in rounds):
        assert lost == recorded - len(kept | waiting), "none is invented"
