from collections.abc import Mapping
from typing import Any

from app.dialects.bodies import dump
from app.dialects.common.streams import StreamFormat
from app.errors import SwitchyardError
from app.sse import encode

_CODES: Mapping[str, str] = {
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


def _responses_error_frames(error: SwitchyardError) -> bytes:
    body = error_body(error)["error"]
    event = {
        "type": "error",
        "sequence_number": 0,
        **{key: body[key] for key in ("code", "message", "param")},
    }
    return encode(dump(event), type="error")


CHUNKS = StreamFormat("/v1/chat/completions", _error_frames)
COMPLETIONS = StreamFormat("/v1/completions", _error_frames)
EVENTS = StreamFormat("/v1/responses", _responses_error_frames)
