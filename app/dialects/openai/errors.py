from collections.abc import Mapping
from typing import Any

from app.dialects.common.passthrough import StreamFormat
from app.dialects.json_body import dump
from app.errors import SwitchyardError
from app.sse import DONE, encode

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


CHUNKS = StreamFormat(is_terminal=lambda frames: frames.endswith(DONE), error_frames=_error_frames)
_LAST_EVENTS = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")


def _ends_a_response(frames: bytes) -> bool:
    return frames[:-2].rpartition(b"\n\n")[2].startswith(_LAST_EVENTS)


EVENTS = StreamFormat(_ends_a_response, _responses_error_frames, "type")
