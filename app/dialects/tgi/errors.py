"""TGI's errors: ``{"error": text, "error_type": word}``. TGI's own client chooses its exception by the word.

On a stream TGI has already answered 200 when it looks at a request: most errors are then an event, and the end.
"""

from typing import Any

from app.dialects.base import EVENT_STREAM, Reply
from app.dialects.json_body import dump
from app.errors import (
    BadRequest,
    ClientError,
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
from app.sse import DONE, encode

# What the exchange and the engine call these is not what the client sent.
_NAMES = {"prompt": "inputs", "max_tokens": "max_new_tokens", "input": "instances"}
_IN_BAND = frozenset({"validation", "generation", "overloaded", "incomplete_generation"})


def told(error: SwitchyardError) -> tuple[int, str, str]:
    """The status, the text and the `error_type` of an error; the code of an Unprocessable is its `error_type`."""
    if isinstance(error, ClientError):
        return _clients_fault(error)
    if isinstance(error, Incomplete):
        return 500, f"Incomplete generation: {error.message}", "incomplete_generation"
    if isinstance(error, Unavailable):
        # TGI itself has no word for a server that is gone but its health check's.
        return (429, "Model is overloaded", "overloaded") if error.retry_after else (503, error.message, "healthcheck")
    if isinstance(error, UpstreamError):
        return 424, f"Request failed during generation: {error.message}", "generation"
    return error.status, error.message, "internal"


def _clients_fault(error: ClientError) -> tuple[int, str, str]:
    if error.status == 429:
        return 429, error.message, "overloaded"
    if isinstance(error, NotFound):
        return 404, error.message, "not_found"
    if isinstance(error, Unprocessable) and error.code:
        return 422, error.message, error.code
    if not isinstance(error, BadRequest | Unprocessable | Rejected):
        return error.status, error.message, "refused"
    # A body that is no JSON is 400, whatever is wrong with the fields 422.
    status = 400 if type(error) is BadRequest and error.param is None else 422
    return status, f"Input validation error: {_in_tgis_words(error)}", "validation"


def _in_tgis_words(error: ClientError) -> str:
    message = error.message
    if isinstance(error, Rejected) and message.startswith("Grammar error"):
        return f"grammar is not valid: {message.partition(': ')[2]}"
    if error.param in _NAMES and message.startswith(f"{error.param}:"):
        return _NAMES[error.param] + message.removeprefix(error.param)
    return message


def error_body(error: SwitchyardError) -> dict[str, Any]:
    """The error as JSON."""
    _, text, kind = told(error)
    return {"error": text, "error_type": kind}


def error_event(error: SwitchyardError) -> bytes:
    """The error as a stream's last event."""
    return encode(dump(error_body(error)))


def chat_error_events(error: SwitchyardError) -> bytes:
    """The error as the last events of a stream below /v1. `error_type` is there for Hugging Face's client."""
    status, text, kind = told(error)
    body = {"error": {"message": text, "http_status_code": status, "type": kind}, "error_type": kind}
    return encode(dump(body)) + DONE


def error_reply(error: SwitchyardError, *, stream: bool, chat: bool = False) -> Reply:
    """The answer to a request that failed before its first byte. `stream`: its client waits for events.

    A body that could not be read as a request has not reached TGI's handler, nor has a request beyond its caller's
    limit: their status stays a status.
    """
    if isinstance(error, Unauthorized):
        return Reply(b"", error.status)
    status, _, kind = told(error)
    if stream and kind in _IN_BAND and not isinstance(error, BadRequest | LimitExceeded):
        events = chat_error_events(error) if chat else error_event(error)
        return Reply(events, 200, EVENT_STREAM, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    return Reply(dump(error_body(error)), status)
