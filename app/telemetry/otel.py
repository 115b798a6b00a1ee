"""Sends spans to a collector with OpenTelemetry's own exporter (OTLP over HTTP, protobuf).

Contract: https://opentelemetry.io/docs/specs/otlp/. The exporter knows the standard variables, retries, compression and
TLS.

Makes spans of the notes, in OTLP's messages.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as WireResource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, SpanFlags, Status
from opentelemetry.sdk.resources import SERVICE_NAME, Resource

from app.telemetry.logs import Record
from app.telemetry.request_trace import RequestSpan, TracedCall

# Attribute names follow OpenTelemetry's conventions for GenAI and HTTP where one exists
# (https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/); the others begin with `switchyard.`. Their values
# are numbers, names of the configuration and words of ours, and the request id, with which the access log is found. The
# caller's path, host, name and texts are not among them.
#
# The messages are made directly, not over the SDK's spans: that takes 29 µs of CPU for a request with one call, instead
# of 65 for the SDK's two spans and 114 for their encoder. Most attributes of a request are those of many others, which
# are kept as bytes, and merged into each span as the protocol defines it.

Value = str | bool | int | float | Sequence[str]
Noted = TypeVar("Noted", RequestSpan, TracedCall)

_OPERATIONS: Final = {
    "chat": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "rerank": "rerank",
    "classify": "classify",
}
"""The conventions' names for our tasks; they count the Responses API as a chat, and have no name for the last
two."""

_FINISHES: Final = frozenset(
    "stop end_turn stop_sequence length max_tokens max_output_tokens tool_calls tool_use function_call content_filter "
    "refusal abort error cancelled".split()
)
"""The engine's finish reasons that are shown; another one could be any text."""

_MOST: Final = 2**63 - 1
"""JSON integers are unbounded, OTLP's are not."""

_MOST_KEPT: Final = 4096
"""Sets of attributes; more than a router with many endpoints needs."""

_HAS_PARENT = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE_PARENT = _HAS_PARENT | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_ERROR = Status(code=Status.STATUS_CODE_ERROR)


def pair(name: str, value: Value) -> KeyValue:
    """An attribute."""
    return KeyValue(key=name, value=_any(value))


def _any(value: Value) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=min(value, _MOST))
        case float():
            return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=map(_any, value)))


def _text(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _number(name: str, value: int) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(int_value=min(value, _MOST)))


class Spans:
    """Makes the spans of requests, and keeps the attributes that they share."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], bytes] = {}

    def add(self, request: RequestSpan, to: ScopeSpans, offset_ns: int) -> None:
        """Adds one span for the request, and one below it for each call of a deployment.

        `offset_ns`: the difference to add to `time.perf_counter_ns` for Unix time.
        """
        trace, parent, record = request.trace, request.parent, request.record
        trace_id, span_id = trace.trace_id.to_bytes(16), trace.span_id.to_bytes(8)
        failed = record.status >= 500 or (record.status == 200 and record.error != "")
        span = to.spans.add(
            trace_id=trace_id,
            span_id=span_id,
            trace_state=trace.state,
            parent_span_id=parent.span_id.to_bytes(8) if parent is not None else b"",
            flags=trace.flags | (_REMOTE_PARENT if parent is not None else _HAS_PARENT),
            name=_name(request),
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=int(record.started * 1e9) + offset_ns,
            end_time_unix_nano=int(request.ended * 1e9) + offset_ns,
            attributes=_own(record),
            events=_events(request, offset_ns),
            status=_ERROR if failed else None,
        )
        span.MergeFromString(self._shared(request))
        for call in request.calls:
            span = to.spans.add(
                trace_id=trace_id,
                span_id=call.span_id.to_bytes(8),
                trace_state=trace.state,
                parent_span_id=span_id,
                flags=trace.flags | _HAS_PARENT,
                name=f"call {call.deployment}",
                kind=Span.SPAN_KIND_CLIENT,
                start_time_unix_nano=int(call.started * 1e9) + offset_ns,
                end_time_unix_nano=int(call.ended * 1e9) + offset_ns,
                status=_ERROR if call.error else None,
            )
            key = ("call", call.deployment, call.url, call.error)
            span.MergeFromString(self._keeping(key, _of_call, call))

    def _shared(self, request: RequestSpan) -> bytes:
        record = request.record
        key = (
            request.method,
            request.route,
            request.plan,
            request.task,
            request.finish,
            record.dialect,
            record.operation,
            record.endpoint,
            record.deployment,
            record.reason,
            record.status,
            record.error,
            record.stream,
            record.attempts,
        )
        return self._keeping(key, _of_many, request)

    def _keeping(self, key: tuple[object, ...], make: Callable[[Noted], Mapping[str, Value]], noted: Noted) -> bytes:
        """Attributes in a span's form; those without a value are left out."""
        if (encoded := self._kept.get(key)) is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            attributes = [pair(name, value) for name, value in make(noted).items() if value]
            encoded = self._kept[key] = Span(attributes=attributes).SerializeToString()
        return encoded


def _events(request: RequestSpan, offset_ns: int) -> Iterator[Span.Event]:
    """The events in the order in which they happened."""
    if request.queued is not None:
        yield Span.Event(name="switchyard.queued", time_unix_nano=int(request.queued * 1e9) + offset_ns)
    for number, call in enumerate(request.calls, 1):
        attributes = [_text("switchyard.deployment", call.deployment), _number("switchyard.attempt", number)]
        if call.error:
            attributes.append(_text("error.type", call.error))
        at = int(call.started * 1e9) + offset_ns
        yield Span.Event(name="switchyard.upstream", time_unix_nano=at, attributes=attributes)
    record = request.record
    if record.streamed and record.first_byte is not None:
        yield Span.Event(name="gen_ai.first_token", time_unix_nano=int(record.first_byte * 1e9) + offset_ns)


def _name(request: RequestSpan) -> str:
    if (operation := _OPERATIONS.get(request.task)) is not None and (model := _model(request.record)):
        return f"{operation} {model}"
    return f"{request.method} {request.route}"


def _model(record: Record) -> str:
    """The name that the client meant: the endpoint's, or the deployment's that it named."""
    return record.deployment if record.reason == "model" else record.endpoint


def _own(record: Record) -> list[KeyValue]:
    """A request's own attributes."""
    attributes = [_text("switchyard.request_id", record.request_id)]
    if record.max_tokens is not None:
        attributes.append(_number("gen_ai.request.max_tokens", record.max_tokens))
    if record.usage is not None:
        attributes.append(_number("gen_ai.usage.input_tokens", record.usage.prompt_tokens))
        attributes.append(_number("gen_ai.usage.output_tokens", record.usage.completion_tokens))
    if record.moves or record.pause_s:
        attributes.append(_number("switchyard.moves", record.moves))
        attributes.append(KeyValue(key="switchyard.pause", value=AnyValue(double_value=record.pause_s)))
    if record.streamed and record.first_byte is not None:
        seconds = record.first_byte - record.started
        attributes.append(KeyValue(key="gen_ai.response.time_to_first_chunk", value=AnyValue(double_value=seconds)))
    return attributes


def _of_many(request: RequestSpan) -> Mapping[str, Value]:
    """The attributes that many requests share."""
    record = request.record
    attributes: dict[str, Value] = {
        "http.request.method": request.method,
        "http.route": request.route,
        "http.response.status_code": record.status,
        "error.type": record.error,
        "switchyard.dialect": record.dialect,
        "switchyard.operation": record.operation,
        "switchyard.endpoint": record.endpoint,
        "switchyard.deployment": record.deployment,
        "switchyard.reason": record.reason,
        "switchyard.plan": request.plan,
        "switchyard.attempts": record.attempts,
    }
    if (operation := _OPERATIONS.get(request.task)) is not None:
        attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "switchyard",
            "gen_ai.request.model": _model(record),
            "gen_ai.response.model": record.deployment if record.status == 200 else "",
            "gen_ai.response.finish_reasons": [request.finish] if request.finish in _FINISHES else [],
        }
        if record.stream:
            attributes["gen_ai.request.stream"] = True
    return attributes


def _of_call(call: TracedCall) -> Mapping[str, Value]:
    url = urlsplit(call.url)
    return {
        "switchyard.deployment": call.deployment,
        "server.address": url.hostname or "",
        "server.port": url.port or 0,
        "error.type": call.error,
    }


SERVICE: Final = "switchyard-router"
"""The service name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES set another."""

_LIBRARY = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_SCOPE = InstrumentationScope(name="switchyard")


class OtlpExporter:
    """Sends spans to `endpoint`, None: to the one of OpenTelemetry's variables."""

    def __init__(self, endpoint: str | None) -> None:
        self._problem = _LastProblem()
        # The library's own log lines are not JSON, and come for every batch: the sender logs changes instead.
        logger = logging.getLogger(_LIBRARY)
        logger.handlers, logger.propagate = [self._problem], False
        self._exporter = OTLPSpanExporter(endpoint)
        self._resource = _resource()
        self._spans = Spans()

    def export(self, requests: Sequence[RequestSpan]) -> str | None:
        """See `sending.Exporter`."""
        offset_ns = time.time_ns() - time.perf_counter_ns()
        message = ExportTraceServiceRequest()
        # Filled in place: a message that is put into another one is copied.
        spans = message.resource_spans.add(resource=self._resource).scope_spans.add(scope=_SCOPE)
        for request in requests:
            self._spans.add(request, spans, offset_ns)
        # The exporter's `export` takes the SDK's spans only, and encodes them; no public method sends bytes. The lock
        # file pins the version, and `tests/router/tracing` sends over it.
        sent = self._exporter._client.export(message.SerializeToString())
        return None if sent.success else self._problem.text

    def close(self) -> None:
        """See `sending.Exporter`."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _resource() -> WireResource:
    """The resource of the spans, completed by the standard variables."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    return WireResource(attributes=[pair(name, str(value)) for name, value in resource.attributes.items()])


class _LastProblem(logging.Handler):
    """Keeps the last message of the library."""

    text = "unknown"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()[:500]
