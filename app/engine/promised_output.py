"""Checks that an answer has the form that its request asked for: JSON, or a tool call.

It is parsed as a client would parse it, but not checked against the schema: that is the engine's task, and an answer
that was cut short does not even parse.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from pydantic_core import from_json

from app.engine.content import MALFORMED, content_of
from app.engine.forced_calls import forces_a_call

_FIELDS = frozenset({"response_format", "structured_outputs", "text", "output_config", "tool_choice"})


class Promise(Enum):
    """The form that a request asks of its answer."""

    JSON = auto()
    CALL = auto()


def promised(body: Mapping[str, Any]) -> Promise | None:
    """The form that the vLLM request `body` asks for; None for most requests."""
    if _FIELDS.isdisjoint(body):
        return None
    if forces_a_call(body):
        return Promise.CALL
    kinds = (_at(body, "response_format", "type"), _at(body, "text", "format", "type"))
    if any(kind in ("json_schema", "json_object") for kind in kinds):
        return Promise.JSON
    schemas = (_at(body, "structured_outputs", "json"), _at(body, "output_config", "format", "schema"))
    return Promise.JSON if any(schema is not None for schema in schemas) else None


def is_kept(promise: Promise, answer: bytes, *, stream: bool) -> bool:
    """Whether a whole answer of the engine's, or a stream that has ended, keeps the promise."""
    try:
        content = content_of(answer, stream=stream)
        texts, calls = list(content.texts.values()), list(content.arguments.values())
        for text in (*calls, *([] if promise is Promise.CALL else texts)):
            from_json(text or "{}")
    except MALFORMED:
        return False
    return bool(calls) or (promise is Promise.JSON and any(text.strip() for text in texts))


def _at(value: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
