"""The conversation that a request belongs to, and its number of turns. Pure functions of a request in vLLM's fields."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

SESSION_HEADER = "x-session-id"
"""Names the conversation of a request, for endpoints with `sticky: {by: conversation}`."""

_MOST_CHARACTERS = 16 * 1024
"""The part of a text that is hashed, besides its length: hashing a megabyte would delay every other request."""

_MOST_TEXTS = 64
_MOST_VALUES = 512
"""Of a content that is not text; the rest is not looked at."""

_MOST_MESSAGES = 64
"""With system texts, before the first user message; further ones are not looked at."""

CONVERSATIONS = ("chat", "responses")
"""Tasks whose requests may hold earlier turns."""

_SYSTEM = ("system", "developer")
_BY_THE_MODEL = frozenset({"function_call", "reasoning", "custom_tool_call", "mcp_call"})
"""Items of a Responses request, without a role, that are parts of the model's turns."""

_NOT_CONTENT = frozenset({"type", "cache_control", "detail"})
"""Members of content parts that are not content: clients move `cache_control` from turn to turn."""


def conversation_key(caller: str, task: str, body: Mapping[str, Any]) -> str | None:
    """The same text for every turn of a conversation: a hash of the caller, the system texts before the first user
    message, and that message. None for requests that are not conversations: completions, embeddings.

    `body` is the request in vLLM's fields: a chat, Anthropic's messages or a Responses request.
    """
    hashed: list[str] = []
    _add(hashed, "caller", caller)
    for role, value in _until_the_user(task, body):
        _add(hashed, role, value)
        if role == "user":
            return hashlib.blake2b("".join(hashed).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return None


def stable_prefix(task: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The system texts before the first user message, and that message's: the same in every turn."""
    for _, value in _until_the_user(task, body):
        if isinstance(value, str):  # nearly always
            yield value
        else:
            yield from islice(_texts(value), _MOST_TEXTS)


def _until_the_user(task: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Roles and contents, up to the first user message."""
    system, items = _parts(task, body)
    if system is not None:
        yield "system", system
    systems = 0
    for item in items:
        role = item.get("role") if isinstance(item, dict) else "user"
        if role in _SYSTEM and systems < _MOST_MESSAGES:
            systems += 1
            yield "system", item.get("content")
        elif role == "user":
            yield "user", item.get("content") if isinstance(item, dict) else item
            return


def turns(task: str, body: Mapping[str, Any], most: int | None = None) -> int:
    """The model's earlier turns that a request holds; no more than `most` are counted."""
    count, before, has_items = 0, False, task == "responses"
    for item in _parts(task, body)[1]:
        is_models = isinstance(item, dict) and (
            item.get("role") == "assistant" or (has_items and item.get("type") in _BY_THE_MODEL)
        )
        if is_models and not before:
            count += 1
            if count == most:
                break
        before = is_models
    return count


def has_previous_turns(task: str, body: Mapping[str, Any]) -> bool:
    """Whether a request holds a turn of the model's."""
    return turns(task, body, most=1) > 0


def _parts(task: str, body: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The texts before the messages, and the messages or items; a bare text is the user's."""
    before, items = ("system", "messages") if task == "chat" else ("instructions", "input")
    if task not in CONVERSATIONS:
        return None, ()
    listed = body.get(items)
    return body.get(before), listed if isinstance(listed, list) else () if listed is None else (listed,)


def _add(hashed: list[str], role: str, value: Any) -> None:
    """Adds the texts in `value`. Each comes after its role and length, so that no two lists of texts are the same."""
    for text in (value,) if isinstance(value, str) else islice(_texts(value), _MOST_TEXTS):
        hashed.append(f"{role}:{len(text)}:{text[:_MOST_CHARACTERS]}")


def _texts(content: Any) -> Iterator[str]:
    """The texts among the first values of a content."""
    pending, left = [content], _MOST_VALUES
    while pending and left:
        value = pending.pop()
        left -= 1
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending.extend(reversed(value[:left]))
        elif isinstance(value, dict):
            parts = [part for name, part in islice(value.items(), left) if name not in _NOT_CONTENT]
            pending.extend(reversed(parts))
