from collections.abc import Mapping
from typing import Any

from app.dialects.common.passthrough import StreamFormat
from app.dialects.json_body import dump
from app.errors import ContextExceeded, SwitchyardError
from app.sse import encode

REQUEST_ID_HEADER = "request-id"
UNTHREADED = "thread_unsupported_request"
"""The error code of a request that the server can answer only without `thread`: SDKs' tool runners then leave it out,
and send every turn with the whole conversation."""

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: SwitchyardError, request_id: str) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}, "request_id"}``; the message names the field. With `UNTHREADED`
    the inner object has `details`, by which SDKs recognize the error.
    """
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    # vLLM turns it into a chat request, and its messages may name that request's field.
    message = error.message.replace("max_completion_tokens", "max_tokens")
    if isinstance(error, ContextExceeded):
        message = _exceeded(error)
    inner: dict[str, Any] = {"type": kind, "message": message}
    if error.code == UNTHREADED:
        inner["details"] = {"error_code": UNTHREADED, "unsupported": ["thread"]}
    return {"type": "error", "error": inner, "request_id": request_id}


def _exceeded(error: ContextExceeded) -> str:
    """Anthropic's sentences. Clients look for the numbers, and shorten the conversation or the answer."""
    if error.is_prompt_too_long or not error.wanted:
        return f"prompt is too long: {error.prompt or error.context + 1} tokens > {error.context - 1} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt or 0} + {error.wanted} > {error.context}, "
        "decrease input length or `max_tokens` and try again"
    )


def stream_format(request_id: str) -> StreamFormat:
    """The stream of messages, and the frames of an error in it."""
    return StreamFormat("/v1/messages", lambda error: encode(dump(error_body(error, request_id)), type="error"))
