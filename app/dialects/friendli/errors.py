"""Friendli's errors. Its reference documents only the 429 of a timeout; the SDKs keep status and body as they are."""

from collections.abc import Mapping
from typing import Any

from app.dialects.base import Reply
from app.dialects.friendli.chat_fields import Chat
from app.dialects.friendli.embeddings import Embeddings
from app.dialects.friendli.fields import Completions
from app.dialects.json_body import dump
from app.errors import Rejected, SwitchyardError
from app.sse import encode

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

# The other operations' fields are among these.
_FIELDS = {*Completions.model_fields, *Chat.model_fields, *Embeddings.model_fields}

# The engine's names for the client's fields, where they differ.
_CLIENT_NAMES: Mapping[str, str] = {
    "beam": "num_beams",
    "beam.bad_word_tokens": "bad_word_tokens",
    "beam.early_stopping": "early_stopping",
    "beam.eos_token_ids": "eos_token",
    "beam.length_penalty": "length_penalty",
    "beam.no_repeat_ngram": "no_repeat_ngram",
    "beam.seed": "seed",
    "beam.stop_tokens": "stop_tokens",
    "beam.type": "beam_search_type",
    "beam.width": "num_beams",
    "replace_embeddings": "token_index_to_replace",
    "replace_embeddings.indices": "token_index_to_replace",
    "replace_embeddings.values": "embedding_to_replace",
    "seeds": "seed",
    "stop_token_ids": "stop_tokens",
    "structured_outputs": "response_format",
    "thinking_token_budget": "reasoning_budget",
}


def error_body(error: SwitchyardError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}, "detail"}``; the message names the field."""
    param, message = _param(error), error.message
    if error.param and param and message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    elif param and param not in message:
        message = f"{param}: {message}"
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": error.code}, "detail": message}


def error_reply(error: SwitchyardError) -> Reply:
    """The answer to a request that failed before its first byte."""
    return Reply(dump(error_body(error)), error.status)


def timeout_reply(param: str) -> Reply:
    """The answer when the time that the client set in the field `param` has passed."""
    message = f"{param}: the time for this request is over"
    error = {"message": message, "type": _TYPES[429], "param": param, "code": "timeout"}
    return Reply(dump({"error": error, "detail": message}), 429)


def error_frames(error: SwitchyardError) -> bytes:
    """A failed chat stream's last event, in OpenAI's format like its chunks."""
    return encode(dump(error_body(error)))


def _param(error: SwitchyardError) -> str | None:
    if error.param is not None:
        return _CLIENT_NAMES.get(error.param, error.param)
    if not isinstance(error, Rejected):
        return None
    if error.message.startswith("Grammar error"):
        return "response_format"
    # The logits processors begin their messages with the key, which is the field's name.
    first = error.message.partition(" ")[0].rstrip(":")
    return first if first in _FIELDS else None
