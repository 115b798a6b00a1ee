"""TGI's errors: ``{"error": text, "error_type": kind}``. TGI's own client chooses its exception by `error_type`.

TGI answers a streaming request with status 200 before it checks it: most errors are then the stream's only event.
"""

from typing import Any

from app.dialects.base import EVENT_STREAM, Reply
from app.dialects.bodies import dump
from app.errors import (
    BadRequest,
    ClientError,
    ContextExceeded,
    Incomplete,
    LimitExceeded,
    NotFound,
    Rejected,
    SwitchyardError,
    Unauthorized,
    Unavailable,
    Unprocessable,
    UpstreamError,
)
from app.sse import encode

_IN_BAND = frozenset({"validation", "generation", "overloaded", "incomplete_generation"})


def _rendered(error: SwitchyardError) -> tuple[int, str, str]:
    """The status, the text and the `error_type` of an error; an Unprocessable's `code` is its `error_type`."""
    if isinstance(error, ClientError):
        return _rendered_client_error(error)
    if isinstance(error, Incomplete):
        return 500, f"Incomplete generation: {error.message}", "incomplete_generation"
    if isinstance(error, Unavailable):
        # TGI has no `error_type` for an unreachable server other than its health check's.
        return (429, "Model is overloaded", "overloaded") if error.retry_after else (503, error.message, "healthcheck")
    if isinstance(error, UpstreamError):
        return 424, f"Request failed during generation: {error.message}", "generation"
    return error.status, error.message, "internal"


def _rendered_client_error(error: ClientError) -> tuple[int, str, str]:
    if error.status == 429:
        return 429, error.message, "overloaded"
    if isinstance(error, NotFound):
        return 404, error.message, "not_found"
    if isinstance(error, Unprocessable) and error.code:
        return 422, error.message, error.code
    if not isinstance(error, BadRequest | Unprocessable | Rejected):
        return error.status, error.message, "refused"
    # 400 for a body that is not JSON, 422 for wrong fields.
    status = 400 if type(error) is BadRequest and error.param is None else 422
    return status, f"Input validation error: {_validation_message(error)}", "validation"


def _validation_message(error: ClientError) -> str:
    message = error.message
    if isinstance(error, ContextExceeded):
        return _exceeded(error)
    if isinstance(error, Rejected) and message.startswith("Grammar error"):
        return f"grammar is not valid: {message.partition(': ')[2]}"
    return message


def _exceeded(error: ContextExceeded) -> str:
    """The sentences of TGI, and of TEI."""
    if error.is_prompt_too_long or not error.wanted:
        return f"`inputs` must have less than {error.context - 1} tokens. Given: {error.prompt or error.context + 1}"
    return (
        f"`inputs` tokens + `max_new_tokens` must be <= {error.context}. "
        f"Given: {error.prompt or 0} `inputs` tokens and {error.wanted} `max_new_tokens`"
    )


def _error_body(error: SwitchyardError) -> dict[str, Any]:
    _, text, kind = _rendered(error)
    return {"error": text, "error_type": kind}


def error_event(error: SwitchyardError) -> bytes:
    """The error as a stream's last event."""
    return encode(dump(_error_body(error)))


def chat_error_event(error: SwitchyardError) -> bytes:
    """The error as the last event of a stream below /v1. `error_type` is for Hugging Face's client."""
    status, text, kind = _rendered(error)
    body = {"error": {"message": text, "http_status_code": status, "type": kind}, "error_type": kind}
    return encode(dump(body))


def error_reply(error: SwitchyardError, *, stream: bool, chat: bool = False) -> Reply:
    """The answer to a request that failed before its first byte. `stream`: its client expects events.

    Unauthenticated, unreadable and rate-limited requests do not reach TGI's handler: they get their status, no stream.
    """
    if isinstance(error, Unauthorized):
        return Reply(b"", error.status)
    status, _, kind = _rendered(error)
    if stream and kind in _IN_BAND and not isinstance(error, BadRequest | LimitExceeded):
        events = chat_error_event(error) if chat else error_event(error)
        return Reply(events, 200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    return Reply(dump(_error_body(error)), status)
