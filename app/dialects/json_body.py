import re
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic_core import from_json, to_json

from app.errors import BadRequest


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object without nulls. Raises BadRequest on anything else."""
    value = json_object_with_nulls(body)
    # Most bodies have no null, and searching for the word is far cheaper than walking the tree.
    return without_nulls(value) if b"null" in body else value


def json_object_with_nulls(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest on anything else."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object")
    return value


def peek(body: bytes) -> dict[str, Any]:
    """The body if it is a JSON object, else an empty one: to detect the dialect of a request."""
    if not body:  # not read yet
        return {}
    try:
        value = from_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Below these keys JSON null is data, not absence: a JSON Schema's `const`, `default` or `enum`, template variables.
_VERBATIM = frozenset({"parameters", "schema", "json", "input_schema", "chat_template_kwargs", "arguments"})


def without_nulls(value: Any) -> Any:
    """`value` without the null members of its objects: null means absent, at every level."""
    if isinstance(value, dict):
        return {
            key: item if key in _VERBATIM else without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def field_path(location: Sequence[int | str]) -> str:
    """A field's path in the form of OpenAI's errors: ``messages[0].role``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def value_at(body: Any, path: str | None) -> Any:
    """The value in `body` at a `field_path`; None if there is none."""
    for part in _STEPS.findall(path or ""):
        try:
            body = body[int(part) if isinstance(body, list) else part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return body if path else None


_STEPS = re.compile(r"[^.\[\]]+")


def dump(value: Any) -> bytes:
    """Compact JSON on one line."""
    return to_json(value)


_MEMBERS, _ITEMS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def members(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """A JSON object's members as they are written: a long answer makes no object for each of its numbers.

    Raises ValueError.
    """
    return _MEMBERS.decode(body)


def items(body: bytes | msgspec.Raw) -> list[dict[str, msgspec.Raw]]:
    """The `members` of each object of a JSON list. Raises ValueError."""
    return _ITEMS.decode(body)


def dump_members(value: Any) -> bytes:
    """Compact JSON of a value that has `members` in it."""
    return msgspec.json.encode(value)
