"""The contents of a router's ledger, and what goes into its batches."""

import time
from typing import Any

import msgspec
import pytest

from app.config.schema import Config, parse
from app.exposures.exposure import Arrival, ArrivalRecord, Exposure
from app.exposures.log import AT_ONCE, MOST_ENTRIES, ExposureLog, OpenBatch, RequestEnd
from app.exposures.plans import RecordingScope
from app.exposures.wire import (
    VERSION,
    Acknowledgement,
    Batch,
    FeedbackItem,
    Flag,
    OverdueRequest,
    Plan,
    Row,
    Start,
    decode_batch,
    encode_sealed,
)
from tests.support.experiments.exposures import pair

PROMPTLY = {"guardrails": [{"event": "slow", "ttft_above_s": 1}, {"event": "unfinished", "unfinished_above_s": 2}]}
SAID = b'{"id":"c","choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}'


def config(*, buffer_bytes: int = 2**26, blue: int = 50, **experiment: Any) -> Config:
    fields: dict[str, Any] = {"endpoint": "chat", "control": "blue", "treatments": ["green"]}
    fields |= {"primary": [{"metric": "ttft", "minimal_effect": 0.05}], **experiment}
    return parse(
        {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": blue, "green": 100 - blue}}},
            "deployments": {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")},
            "experiments": {"first": fields},
            "ledger": {"buffer_bytes": buffer_bytes},
        }
    )


class Recorder:
    """A ledger with one recorded endpoint."""

    def __init__(self, **fields: Any) -> None:
        self.ledger = ExposureLog(lambda url: b"s" * 32)
        self.scope: RecordingScope = self.ledger.configure(config(**fields))["chat"]

    def start(self, assigned: str = "blue", *, turn: int = 0, age: float = 0.0, **fields: Any) -> Exposure:
        given: dict[str, Any] = {"key": "ann", "reason": "sticky", "stream": True, **fields}
        said = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}] * turn
        started = time.perf_counter() - age
        arrival = Arrival(
            "req",
            given["key"],
            "caller",
            assigned,
            given["reason"],
            "openai",
            "chat",
            given["stream"],
            10,
            {"messages": said},
            started,
        )
        return self.ledger.start(self.scope, arrival)

    def identity(self, exposure: Exposure) -> ArrivalRecord:
        self.ledger.catch_up()
        assert exposure.identity is not None
        return exposure.identity

    def record(self, count: int = 1, **fields: Any) -> None:
        for _ in range(count):
            self.ledger.finish(self.start(**fields), RequestEnd(200, 1.0))

    def batches(self) -> list[Batch]:
        """All recorded batches, acknowledged as durable."""
        self.ledger.seal()
        decoded: list[Batch] = []
        while (batch := self.ledger.backlog.next()) is not None:
            decoded.append(decode_batch(self.ledger.encoded(batch)))
            self.ledger.backlog.acknowledge(Acknowledgement(batch.number, batch.number))
        return decoded


def test_a_sealed_batch_decodes_to_the_recorded_rows() -> None:
    plan = Plan("chat", "0-1", {"blue": 100})
    row = Row(1, 2.5, 3, 0, 2**64 - 1, 6, 0, 1, -1, 0, 2, 3, True, 200, 0, 1, 10, None, 5, None, 0.5, 1.0, None, None,
              1, 0, 0, False, 8)  # fmt: skip
    parts: Any = (["a", "b"], [plan], [Start(1, 2.5, 3, 0, 1, 0, 0)], [row],
                  [OverdueRequest(0, 1.0, 1, 2.5, 3, 0, 1, 0, 7)], [FeedbackItem(1.0, 2, 3, "thumbs", 1.0)], [pair(1,
                  cosine=0.5)])  # fmt: skip
    names, plans, starts, rows, late, feedback, pairs = parts
    whole = Batch(VERSION, "r", 7, 5, 1.5, names, plans, starts, rows, late, feedback, [], pairs)
    batch = OpenBatch()
    assert [batch.names[name] for name in ("a", "b", "a")] == [0, 1, 0]
    assert [batch.plan(plan), batch.plan(plan)] == [0, 0]
    for entries, group in zip(
        (batch.starts, batch.rows, batch.late, batch.feedback, batch.pairs), parts[2:], strict=True
    ):
        for entry in group:
            entries.add(entry)
    sealed = encode_sealed(batch.sealed(7), router="r", oldest=5, sent_at=1.5, lost=[])
    assert decode_batch(sealed) == whole
    with pytest.raises(msgspec.DecodeError):
        decode_batch(b"\x80")


def test_nothing_is_recorded_without_a_controller() -> None:
    calls: list[str] = []
    ledger = ExposureLog(lambda url: calls.append(url) or b"s", enabled=False)  # type: ignore[func-returns-value]
    assert ledger.configure(config()) == {}
    assert (calls, ledger.hashes) == ([], None)


def test_the_secret_is_read_once_and_only_if_something_is_recorded() -> None:
    calls: list[str] = []

    def secret(url: str) -> bytes:
        calls.append(url)
        return b"s" * 32

    ledger = ExposureLog(secret)
    ledger.configure(config(state="draft"))
    assert calls == []
    ledger.configure(config())
    ledger.configure(config(blue=60))
    assert calls == [".run/ledger"]


def test_a_request_has_one_row_however_often_its_end_is_recorded() -> None:
    recorder = Recorder()
    exposure = recorder.start()
    recorder.ledger.finish(exposure, RequestEnd(200, 1.0))
    recorder.ledger.finish(exposure, RequestEnd(500, 2.0))
    (batch,) = recorder.batches()
    assert [row.seq for row in batch.rows] == [start.seq for start in batch.starts] == [1]


def test_a_row_names_its_plan_and_names_in_its_own_batch() -> None:
    recorder = Recorder()
    first = recorder.start("green")
    recorder.ledger.seal()
    recorder.start("blue")
    first.served = "blue"
    recorder.ledger.finish(first, RequestEnd(200, 1.0))
    one, two = recorder.batches()
    assert one.names[one.starts[0].assigned] == two.names[two.rows[0].assigned] == "green"
    assert two.names[two.rows[0].served] == "blue"
    assert one.plans == two.plans == [recorder.scope.plan]
    assert (one.number, two.number, one.oldest, two.oldest) == (1, 2, 1, 2)


def test_requests_in_flight_are_counted_until_they_end() -> None:
    recorder = Recorder()
    open_requests = [recorder.start() for _ in range(3)]
    recorder.ledger.finish(open_requests[0], RequestEnd(200, 1.0))
    other, last = recorder.start("green"), recorder.start()
    (batch,) = recorder.batches()
    assert [open_request.in_flight for open_request in open_requests] == [0, 1, 2]
    assert (other.in_flight, last.in_flight) == (0, 2), "each deployment's own"
    assert len(batch.starts) == 5


@pytest.mark.parametrize(("turn", "blue", "flags"), [(0, 60, 0), (1, 60, Flag.CARRIED), (1, 50, 0)])
def test_a_conversation_is_carried_after_a_change_of_plan(turn: int, blue: int, flags: int) -> None:
    recorder = Recorder()
    recorder.scope = recorder.ledger.configure(config(blue=blue))["chat"]
    assert recorder.identity(recorder.start(turn=turn)).flags == flags


def test_a_request_that_names_its_deployment_is_forced() -> None:
    recorder = Recorder()
    reasons = ("header", "model", "traffic")
    flags = [recorder.identity(recorder.start(reason=reason)).flags for reason in reasons]
    assert flags == [Flag.FORCED, Flag.FORCED, 0]


def test_numbers_fit_their_columns() -> None:
    recorder = Recorder()
    recorder.ledger.finish(recorder.start(turn=70_000), RequestEnd(200, 1.0, attempts=1000, max_tokens=10**30))
    recorder.ledger.finish(recorder.start(), RequestEnd(200, 1.0, max_tokens="many"))
    (batch,) = recorder.batches()
    assert [(row.turn, row.attempts, row.max_tokens) for row in batch.rows] == [(65535, 255, 2**32 - 1), (0, 1, None)]


def test_late_requests_are_reported_once() -> None:
    recorder = Recorder(**PROMPTLY)
    exposure = recorder.start(age=3.0)
    recorder.start()
    for _ in range(2):
        recorder.ledger.record_overdue(time.perf_counter())
    (batch,) = recorder.batches()
    assert [(late.kind, late.above_s, late.seq) for late in batch.late] == [(0, 1.0, 1), (1, 2.0, 1)]
    assert {late.caller for late in batch.late} == {recorder.identity(exposure).caller}


@pytest.mark.parametrize(
    ("answer", "ending", "flags"),
    [
        (SAID % b"hi", RequestEnd(200, 1.0), 0),
        (SAID % b"", RequestEnd(200, 1.0), Flag.EMPTY),
        (SAID % b"", RequestEnd(502, 1.0, complete=False), 0),
        (SAID % b"hi", RequestEnd(499, 1.0, complete=False, gone=True), Flag.CLIENT_GONE),
    ],
)
def test_flags_of_answers(answer: bytes, ending: RequestEnd, flags: int) -> None:
    recorder = Recorder()
    exposure = recorder.start(stream=False)
    exposure.sent("/v1/chat/completions", {})
    exposure.answer(answer)
    recorder.ledger.finish(exposure, ending)
    assert recorder.batches()[0].rows[0].flags & ~Flag.LONG == flags


def test_a_promised_form_is_checked_before_the_row_is_recorded() -> None:
    recorder = Recorder()
    for text in (b"{}", b"{"):
        exposure = recorder.start(stream=False)
        exposure.sent("/v1/chat/completions", {"response_format": {"type": "json_object"}})
        exposure.answer(SAID % text)
        recorder.ledger.finish(exposure, RequestEnd(200, 1.0))
    assert [len(batch.rows) for batch in recorder.batches()] == [0]
    assert len(recorder.ledger.unchecked) == 2
    recorder.ledger.checked(recorder.ledger.check(2))
    (batch,) = recorder.batches()
    assert [row.flags & ~Flag.LONG for row in batch.rows] == [0, Flag.INVALID_OUTPUT]
    assert recorder.ledger.unchecked == []


def test_a_batch_is_sealed_when_it_is_full() -> None:
    recorder = Recorder()
    recorder.record(MOST_ENTRIES)
    *full, last = recorder.batches()
    sizes = [len(batch.starts) + len(batch.rows) for batch in full]
    assert sizes
    assert all(MOST_ENTRIES <= size < MOST_ENTRIES + 3 * AT_ONCE for size in sizes)
    assert sum(sizes) + len(last.starts) + len(last.rows) == 2 * MOST_ENTRIES
    assert [row.seq for batch in (*full, last) for row in batch.rows] == list(range(1, MOST_ENTRIES + 1))


def test_feedback_travels_with_the_batch() -> None:
    recorder = Recorder()
    recorder.ledger.feedback([FeedbackItem(1.0, 2, 3, "thumbs", 1.0)])
    (batch,) = recorder.batches()
    assert batch.feedback == [FeedbackItem(1.0, 2, 3, "thumbs", 1.0)]


def test_beyond_the_bound_the_oldest_batches_are_dropped_and_their_rows_counted() -> None:
    recorder = Recorder(buffer_bytes=2**16)
    backlog = recorder.ledger.backlog
    for count in range(3000):
        recorder.record(assigned="green" if count % 3 else "blue")
        assert backlog.size <= 2**16
    recorder.ledger.seal()
    batches = recorder.batches()
    kept = [row for batch in batches for row in batch.rows]
    lost = {lost.deployment: lost.rows for lost in batches[-1].lost}
    assert len(kept) + sum(lost.values()) == 3000
    assert lost["green"] > lost["blue"] > 0
    assert [row.seq for row in kept] == list(range(3001 - len(kept), 3001))
    assert batches[0].oldest == batches[0].number > 1


def test_a_batch_under_way_is_not_dropped() -> None:
    recorder = Recorder(buffer_bytes=2**16)
    recorder.record(50)
    recorder.ledger.seal()
    backlog = recorder.ledger.backlog
    backlog.in_flight = 1
    recorder.record(3000)
    assert (backlog.oldest, backlog.size <= 2**16) == (1, True)
    backlog.in_flight = None
    recorder.record(100)
    assert backlog.oldest > 1


def test_a_controller_that_restarts_is_sent_again_what_it_did_not_make_durable() -> None:
    recorder = Recorder()
    backlog = recorder.ledger.backlog
    for number in range(1, 5):
        recorder.record()
        recorder.ledger.seal()
        assert (batch := backlog.next()) is not None
        assert batch.number == number
        backlog.acknowledge(Acknowledgement(number, 1))
    assert (backlog.next(), len(backlog), backlog.oldest) == (None, 3, 2)
    backlog.acknowledge(Acknowledgement(1, 1))
    assert (batch := backlog.next()) is not None
    assert batch.number == 2
    backlog.acknowledge(Acknowledgement(4, 4))
    assert (backlog.next(), backlog.unconfirmed(), backlog.size, backlog.oldest) == (None, None, 0, 0)
