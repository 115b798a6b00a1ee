"""`/health` below `/tgi`: whether a deployment answers."""

from dataclasses import dataclass

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Translation,
    no_lookups,
)
from app.dialects.json_body import dump
from app.dialects.tgi.addressing import task_asked_about
from app.dialects.tgi.errors import error_reply
from app.errors import Rejected, SwitchyardError, Unavailable, UpstreamError


@dataclass(frozen=True, slots=True)
class Health(Translation):
    """An empty answer if the engine answers its own health check."""

    generates = False
    is_shared = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        return Call(task_asked_about(request, context), {}, cls())

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/ping", {}))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(b"")


def health_error(error: SwitchyardError) -> Reply:
    """A failed health check. A busy deployment is healthy, and so is a plain vLLM server that rejects the route."""
    if isinstance(error, Rejected) or (isinstance(error, Unavailable) and error.retry_after):
        return Reply(b"")
    if isinstance(error, UpstreamError):
        return Reply(dump({"error": "unhealthy", "error_type": "healthcheck"}), 503)
    return error_reply(error, stream=False)
