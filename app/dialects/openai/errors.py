from collections.abc import Mapping
from typing import Any

from app.dialects.bodies import dump
from app.dialects.common.streams import StreamFormat
from app.errors import SwitchyardError
from app.sse import encode

_CODES: Mapping[str, str] = {
    "at_capacity": "service_unavailable",
    "unauthorized": "invalid_api_key",
    "forbidden": "permission_denied",
    "too_large": "request_too_large",
    "method_not_allowed": "method_not_allowed",
    "unavailable": "service_unavailable",
    "timeout": "timeout",
}


def error_body(error: SwitchyardError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}`` as the SDK's exception classes read it."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    code = error.code or _CODES.get(error.kind)
    if error.status == 429:
        kind, code = "rate_limit_error", code or "rate_limit_exceeded"
    if error.status == 404 and error.param == "model":
        code = "model_not_found"
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": code,
        }
    }


def _error_frames(error: SwitchyardError) -> bytes:
    return encode(dump(error_body(error)))


def failed_events(error: SwitchyardError, response: Mapping[str, Any] | None, number: int) -> bytes:
    """The events that end a failed stream of Responses, the first with this sequence number; `response`: as it was
    before, None if there was none.

    OpenAI's server sends these two. Its SDK raises on the first one's `error`, which its reference does not have; other
    clients read the second.
    """
    body = error_body(error)["error"]
    told = {key: body[key] for key in ("code", "message", "param")}
    events: list[dict[str, Any]] = [{"type": "error", **told, "error": body}]
    if response is not None:
        described = {"code": body["code"] or body["type"], "message": body["message"]}
        events.append({"type": "response.failed", "response": {**response, "status": "failed", "error": described}})
    return b"".join(
        encode(dump({**event, "sequence_number": at}), type=event["type"]) for at, event in enumerate(events, number)
    )


CHUNKS = StreamFormat("/v1/chat/completions", _error_frames)
COMPLETIONS = StreamFormat("/v1/completions", _error_frames)
EVENTS = StreamFormat("/v1/responses", lambda error: failed_events(error, None, 0))
