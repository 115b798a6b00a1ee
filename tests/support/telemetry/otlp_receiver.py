"""A collector: a server of OTLP's trace service over HTTP, built on the protocol's generated code."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.processes.servers import serve
from tests.support.waiting import wait_until

PROTOBUF = "application/x-protobuf"


class Span:
    """A span that has arrived. Ids are in hexadecimal; `parent` is "" for a root."""

    def __init__(self, wire: WireSpan, resource: Mapping[str, Any]) -> None:
        self.wire, self.resource = wire, resource
        self.name: str = wire.name
        self.trace: str = wire.trace_id.hex()
        self.id: str = wire.span_id.hex()
        self.parent: str = wire.parent_span_id.hex()
        self.kind: str = WireSpan.SpanKind.Name(wire.kind).removeprefix("SPAN_KIND_")
        self.failed: bool = wire.status.code == wire.status.STATUS_CODE_ERROR
        self.attributes = values(wire.attributes)
        self.events = [(event.name, values(event.attributes)) for event in wire.events]
        self.times: list[int] = [
            wire.start_time_unix_nano,
            *(event.time_unix_nano for event in wire.events),
            wire.end_time_unix_nano,
        ]


class OtlpReceiver:
    """Stores what arrives. `status` is the status of its answers, `headers` those of the last export."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.received: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.status = 200

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/traces", self._export, methods=["POST"])])

    async def _export(self, request: Request) -> Response:
        body = await request.body()
        self.headers = dict(request.headers)
        if self.status != 200:
            return Response(status_code=self.status)
        assert request.headers["content-type"] == PROTOBUF
        self.received.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = values(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += [Span(span, resource) for span in scope.spans]
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type=PROTOBUF)

    def reset(self) -> None:
        """As it began."""
        vars(self).update(vars(OtlpReceiver()))

    def of(self, request_id: str) -> list[Span]:
        """The spans of a request, its own first, then its calls of deployments. Waits until they have arrived."""
        own = self.wait(lambda span: span.attributes.get("switchyard.request_id") == request_id)
        (request,) = [span for span in own if span.attributes.get("switchyard.request_id") == request_id]
        return [request, *(span for span in own if span.parent == request.id)]

    def wait(self, wanted: Callable[[Span], bool]) -> list[Span]:
        """All spans so far, once a wanted one has arrived."""
        wait_until(lambda: any(map(wanted, list(self.spans))), lambda: [span.name for span in self.spans])
        return list(self.spans)


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind is not None else None


@contextmanager
def receiving() -> Iterator[tuple[OtlpReceiver, str]]:
    """A running receiver and its base URL."""
    receiver = OtlpReceiver()
    with serve(receiver.app) as url:
        yield receiver, url
