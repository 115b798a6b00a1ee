"""Sampling: which requests are traced.

The queue of spans and its thread.

The section `tracing` combined with OpenTelemetry's variables.
"""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from app.config.base import ConfigError
from app.config.endpoints import Tracing
from app.config.schema import Config, parse
from app.telemetry.logs import Record
from app.telemetry.request_trace import SAMPLED, Remote, RequestSpan, Trace
from app.telemetry.tracing import DROPPED, EXPORTED, FAILED, Sampler, SpanSender, TokenBucket, TracingSettings, settings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def sampler(share: float, per_s: float = 0.0, *, number: int = 2**64 - 1) -> Sampler:
    return Sampler(share, TokenBucket(per_s, Clock()), lambda: number)


def caller(flags: int) -> Remote:
    return Remote(1, 1, flags, "")


@given(st.integers(1, 2**128 - 1), st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_a_new_trace_is_drawn_as_opentelemetry_does(trace_id: int, share: float) -> None:
    theirs = TraceIdRatioBased(share).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
    assert sampler(share).is_drawn(trace_id) is theirs


def test_a_caller_that_does_not_sample_is_followed_always() -> None:
    assert sampler(1.0, per_s=100).follows(caller(0)) is False


def test_a_caller_that_samples_is_followed_within_the_allowance_and_drawn_beyond_it() -> None:
    followed = sampler(0.5, per_s=2)
    assert [followed.follows(caller(SAMPLED)) for _ in range(4)] == [True, True, False, False]
    lucky = sampler(0.5, per_s=0, number=0)
    assert lucky.follows(caller(SAMPLED)), "by a new random number, whatever trace id the caller has chosen"
    assert not sampler(0.5, per_s=0).follows(caller(SAMPLED))


@pytest.mark.parametrize("per_s", [0.1, 1.0, 7.0])
def test_an_allowance_refills_evenly_and_holds_a_seconds_worth(per_s: float) -> None:
    clock = Clock()
    allowance = TokenBucket(per_s, clock)

    def left() -> int:
        return sum(allowance.take() for _ in range(20))

    most = max(1, int(per_s))
    assert left() == most
    clock.now += 1 / per_s + 1e-6
    assert left() == 1
    clock.now += 1000
    assert left() == most


def test_without_an_allowance_nothing_is_granted_ever() -> None:
    clock = Clock()
    allowance = TokenBucket(0, clock)
    clock.now += 1e9
    assert not allowance.take()


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


def ended(spans: SpanSender) -> None:
    spans.stop()
    spans.join(20)


def test_a_full_batch_is_sent_at_once_and_the_rest_at_the_end() -> None:
    exporter, counts = Exporter(), Counts()
    spans = sender(exporter, counts)
    spans.start()
    for _ in range(3):
        spans.put(span())
    assert exporter.calls.wait(20)
    spans.put(span())
    ended(spans)
    assert (exporter.batches, counts) == ([3, 1], {EXPORTED: 4})


def test_spans_that_do_not_fit_are_dropped_and_counted() -> None:
    exporter, counts = Exporter(), Counts()
    spans = sender(exporter, counts, queue=2)
    for _ in range(5):
        spans.put(span())
    assert counts == {DROPPED: 3}
    spans.start()
    ended(spans)
    assert counts == {DROPPED: 3, EXPORTED: 2}
    spans.put(span())
    assert counts[DROPPED] == 4, "it is not sent any more"


def test_at_the_end_a_failing_collector_is_called_once() -> None:
    exporter, counts = Exporter(), Counts()
    exporter.problem = "refused"
    spans = sender(exporter, counts, batch=2)
    for _ in range(5):
        spans.put(span())
    spans.stop()
    spans.start()
    spans.join(20)
    assert counts == {FAILED: 2, DROPPED: 3}


def test_a_collector_that_hangs_delays_the_end_only_so_long() -> None:
    exporter, counts = Exporter(), Counts()
    exporter.may.clear()
    spans = sender(exporter, counts)
    spans.start()
    spans.put(span())
    spans.stop()
    assert exporter.calls.wait(20)
    spans.join(0.01)
    spans.join(20)
    assert counts == {FAILED: 1}


class DefectiveExporter(Exporter):
    def export(self, requests: Sequence[RequestSpan]) -> str | None:
        super().export(requests)
        raise ValueError(" ".join(["my", "words"]))


def test_a_defect_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    exporter, counts = DefectiveExporter(), Counts()
    spans = sender(exporter, counts, batch=1)
    spans.start()
    spans.put(span())
    assert exporter.calls.wait(20)
    spans.put(span())
    ended(spans)
    assert counts == {FAILED: 2}
    assert {"tracing_failed", "spans_not_sent"} <= {getattr(record, "event", "") for record in caplog.records}
    assert not any("my words" in str(record.__dict__) for record in caplog.records)


def test_an_exporter_that_cannot_be_made_is_logged_and_its_spans_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def none() -> Exporter:
        raise ValueError("no such certificate")

    counts = Counts()
    spans = SpanSender(none, counts, queue=5, batch=5, every_s=1000.0)
    spans.start()
    spans.put(span())
    ended(spans)
    assert counts == {FAILED: 1}
    assert [getattr(record, "event", "") for record in caplog.records] == ["tracing_failed"]


def of(section: Tracing, **environment: str) -> TracingSettings:
    chosen = settings(section, environment)
    assert chosen is not None
    return chosen


def test_the_variables_alone_do_not_enable_tracing() -> None:
    assert settings(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}) is None
    assert settings(Tracing(), {"OTEL_SDK_DISABLED": "true"}) is None


def test_settings_have_defaults() -> None:
    assert settings(Tracing(), {}) == TracingSettings(None, 0.1, 10.0, 2048, 512, 1.0)


def test_the_section_comes_before_the_variables() -> None:
    variables = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:4318"}
    chosen = of(Tracing(endpoint="http://collector:4318/", percent=2.5), **variables)
    assert (chosen.endpoint, chosen.share) == ("http://collector:4318/v1/traces", 0.025)


@pytest.mark.parametrize(
    ("sampler", "argument", "share"),
    [
        ("always_on", "", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "0.5", 0.5),
        ("parentbased_traceidratio", "", 1.0),
    ],
)
def test_the_standard_samplers_set_the_share(sampler: str, argument: str, share: float) -> None:
    assert of(Tracing(), OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument).share == share


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_TRACES_SAMPLER_ARG", "a tenth"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "9" * 30),
        ("OTEL_BSP_SCHEDULE_DELAY", "1.5"),
    ],
)
def test_a_variable_that_cannot_be_right_is_named(name: str, value: str) -> None:
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio", name: value}
    with pytest.raises(ConfigError, match=name):
        settings(Tracing(), variables)


def test_the_standard_variables_set_the_queue_and_its_batches() -> None:
    chosen = of(Tracing(), OTEL_BSP_MAX_QUEUE_SIZE="50", OTEL_BSP_SCHEDULE_DELAY="250")
    assert (chosen.queue, chosen.batch, chosen.every_s) == (50, 50, 0.25)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("collector:4318", "must be a URL"),
        ("grpc://collector:4317", "must be a URL"),
        ("http://", "must be a URL"),
        ("http://[collector", "must be a URL"),
        ("http://collector:4318?x=1", "must be a URL"),
        ("http://me:secret@collector:4318", "credentials"),
        ("http://collector:4318/v1/traces", "leave out /v1/traces"),
    ],
)
def test_an_invalid_endpoint_is_refused(endpoint: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        parse({**DOCUMENT, "tracing": {"endpoint": endpoint}})
    assert raised.value.problems[0].startswith("tracing: ")


DOCUMENT = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
    "deployments": {"blue": {"app": "blue", "model": "m"}},
}


def test_tracing_is_off_by_default_and_an_app_gets_contexts_anyway() -> None:
    assert Config.model_validate(DOCUMENT).tracing is None
    with pytest.raises(ConfigError, match="`trace_context` needs `url`"):
        parse({**DOCUMENT, "deployments": {"blue": {"app": "blue", "model": "m", "trace_context": True}}})
