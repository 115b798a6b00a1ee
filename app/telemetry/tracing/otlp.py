"""Sends spans to a collector with OpenTelemetry's own exporter (OTLP over HTTP, protobuf).

Contract: https://opentelemetry.io/docs/specs/otlp/. The exporter knows the standard variables, retries, compression and
TLS.
"""

import logging
import time
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as WireResource
from opentelemetry.sdk.resources import SERVICE_NAME, Resource

from app.telemetry.tracing.request import RequestSpan
from app.telemetry.tracing.spans import Spans, pair

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
        # Not `export`, which takes the SDK's spans only, and encodes them (see `spans`).
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
