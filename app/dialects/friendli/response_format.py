"""Friendli's `response_format` in vLLM's words (`structured_outputs`)."""

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic_core import from_json

from app.dialects.friendli.fields import ResponseFormat
from app.errors import BadRequest

PARAM = "response_format"


# What Friendli's reference rules out: looking around, its anchors among that, and escapes for sets of Unicode.
_UNSUPPORTED_GROUP = re.compile(r"\(\?(?:=|!|<=|<!)")
_UNSUPPORTED_ESCAPES = frozenset("AaZzNpP")


def structured(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    """vLLM's `structured_outputs`, None for plain text. What the engine cannot compile it refuses itself.

    Raises BadRequest.
    """
    if wanted is None or wanted.type == "text":
        if wanted is not None and (wanted.schema_ is not None or wanted.json_schema is not None):
            raise _wrong("schema", "not allowed where the type is text")
        return None
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise _wrong("json_schema", "must be given where the type is json_schema")
        return {"json": wanted.json_schema.schema_}
    if wanted.json_schema is not None:
        raise _wrong("json_schema", f"not allowed where the type is {wanted.type}")
    if wanted.type == "regex":
        return {"regex": _pattern(wanted.schema_)}
    return {"json_object": True} if wanted.schema_ is None else {"json": _whole(wanted.schema_)}


def _wrong(field: str, why: str) -> BadRequest:
    return BadRequest(f"{PARAM}.{field}: {why}", param=f"{PARAM}.{field}")


def _pattern(schema: str | dict[str, Any] | None) -> str:
    if not isinstance(schema, str) or not schema:
        raise _wrong("schema", "must be a regular expression where the type is regex")
    if found := next(_unsupported(schema), None):
        raise _wrong("schema", f"{found} is not supported in a regular expression")
    return schema


def _unsupported(pattern: str) -> Iterator[str]:
    in_class = False
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            if pattern[position + 1 : position + 2] in _UNSUPPORTED_ESCAPES:
                yield pattern[position : position + 2]
            position += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "^$":
            yield character
        elif group := _UNSUPPORTED_GROUP.match(pattern, position):
            yield group.group() + "…)"
        position += 1


def _whole(schema: str | dict[str, Any]) -> dict[str, Any]:
    """A schema as Friendli reads it: every property is generated, and no other."""
    if isinstance(schema, str):
        try:
            schema = from_json(schema)
        except ValueError as error:
            raise _wrong("schema", f"not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise _wrong("schema", "must be a JSON schema, an object")
    if _is_recursive(schema):
        # With every property required such an answer would never end.
        raise _wrong("schema", "recursion is not supported")
    whole: dict[str, Any] = _required(schema)
    return whole


# Where a JSON schema has others: by name, in a list, or alone.
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_PLACES = ("items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "contains")


def _required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {**schema, **{name: _required(schema[name]) for name in _PLACES if name in schema}}
    for name in _NAMED:
        if isinstance(schema.get(name), dict):
            whole[name] = {key: _required(item) for key, item in schema[name].items()}
    if isinstance(schema.get("properties"), dict):
        whole |= {"required": list(schema["properties"]), "additionalProperties": False}
    return whole


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether following the references from the top comes back to one that is being followed."""
    top = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    followed: dict[str, set[str]] = {"#": set(_references(top))}
    waiting = [*followed["#"]]
    while waiting:
        if (reference := waiting.pop()) not in followed:
            followed[reference] = set(_references(_definition(schema, reference)))
            waiting += followed[reference]
    try:
        TopologicalSorter(followed).prepare()
    except CycleError:
        return True
    return False


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, list):
        for item in part:
            yield from _references(item)
    elif isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for item in part.values():
            yield from _references(item)


def _definition(schema: Mapping[str, Any], reference: str) -> Any:
    """What a reference inside the schema points at; None where that is nothing, which the engine refuses."""
    found: Any = schema
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found
