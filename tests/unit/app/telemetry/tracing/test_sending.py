"""The queue of spans and its thread."""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from app.telemetry.logs import Record
from app.telemetry.request_trace import RequestSpan, Trace
from app.telemetry.tracing import DROPPED, EXPORTED, FAILED, SpanSender


class Counts(Counter[str]):
    def traces_sent(self, outcome: str, requests: int) -> None:
        self[outcome] += requests


class Exporter:
    """Takes batches while `problem` is None, once it `may`; `closed` ends its waiting."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.problem: str | None = None
        self.may, self.calls = threading.Event(), threading.Event()
        self.may.set()

    def export(self, requests: Sequence[RequestSpan]) -> str | None:
        self.calls.set()
        assert self.may.wait(20)
        self.batches.append(len(requests))
        return self.problem

    def close(self) -> None:
        self.problem = "closed"
        self.may.set()


def span() -> RequestSpan:
    return RequestSpan(Trace(1, 1, 1, ""), Record("openai", "chat", "id"), None)


def sender(exporter: Exporter, counts: Counts, *, queue: int = 10, batch: int = 3) -> SpanSender:
    return SpanSender(lambda: exporter, counts, queue=queue, batch=batch, every_s=1000.0)


def ended(it: SpanSender) -> None:
    it.stop()
    it.join(20)


def test_a_full_batch_is_sent_at_once_and_the_rest_at_the_end() -> None:
    exporter, counts = Exporter(), Counts()
    it = sender(exporter, counts)
    it.start()
    for _ in range(3):
        it.put(span())
    assert exporter.calls.wait(20)
    it.put(span())
    ended(it)
    assert (exporter.batches, counts) == ([3, 1], {EXPORTED: 4})


def test_spans_that_do_not_fit_are_dropped_and_counted() -> None:
    exporter, counts = Exporter(), Counts()
    it = sender(exporter, counts, queue=2)
    for _ in range(5):
        it.put(span())
    assert counts == {DROPPED: 3}
    it.start()
    ended(it)
    assert counts == {DROPPED: 3, EXPORTED: 2}
    it.put(span())
    assert counts[DROPPED] == 4, "it is not sent any more"


def test_at_the_end_a_failing_collector_is_called_once() -> None:
    exporter, counts = Exporter(), Counts()
    exporter.problem = "refused"
    it = sender(exporter, counts, batch=2)
    for _ in range(5):
        it.put(span())
    it.stop()
    it.start()
    it.join(20)
    assert counts == {FAILED: 2, DROPPED: 3}


def test_a_collector_that_hangs_delays_the_end_only_so_long() -> None:
    exporter, counts = Exporter(), Counts()
    exporter.may.clear()
    it = sender(exporter, counts)
    it.start()
    it.put(span())
    it.stop()
    assert exporter.calls.wait(20)
    it.join(0.01)
    it.join(20)
    assert counts == {FAILED: 1}


class DefectiveExporter(Exporter):
    def export(self, requests: Sequence[RequestSpan]) -> str | None:
        super().export(requests)
        raise ValueError(" ".join(["my", "words"]))


def test_a_defect_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    exporter, counts = DefectiveExporter(), Counts()
    it = sender(exporter, counts, batch=1)
    it.start()
    it.put(span())
    assert exporter.calls.wait(20)
    it.put(span())
    ended(it)
    assert counts == {FAILED: 2}
    assert {"tracing_failed", "spans_not_sent"} <= {getattr(record, "event", "") for record in caplog.records}
    assert not any("my words" in str(record.__dict__) for record in caplog.records)


def test_an_exporter_that_cannot_be_made_is_logged_and_its_spans_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def none() -> Exporter:
        raise ValueError("no such certificate")

    counts = Counts()
    it = SpanSender(none, counts, queue=5, batch=5, every_s=1000.0)
    it.start()
    it.put(span())
    ended(it)
    assert counts == {FAILED: 1}
    assert [getattr(record, "event", "") for record in caplog.records] == ["tracing_failed"]
