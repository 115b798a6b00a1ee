"""Sampling parameters of Friendli's completions and chat in vLLM's fields.

Friendli's `response_format` as vLLM's `structured_outputs`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.dialects.bodies import check_large_numbers, nested_json
from app.dialects.common.requests import temperature
from app.dialects.friendli.fields import GenerationFields, ResponseFormat
from app.engine.constraints import MOST_BYTES, MOST_CHARACTERS
from app.errors import BadRequest
from app.internal_api import Xarg, to_int64_seed
from app.long_json import written

PARAM = "response_format"

# Excluded by Friendli's reference: look-around, anchors, and Unicode property escapes.
_UNSUPPORTED_GROUP = re.compile(r"\(\?(?:=|!|<=|<!)")
_UNSUPPORTED_ESCAPES = frozenset("AaZzNpP")


def structured_outputs(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    """vLLM's `structured_outputs`, None for plain text. The engine itself rejects what it cannot compile.

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
    return {"json_object": True} if wanted.schema_ is None else {"json": _complete(wanted.schema_)}


def _wrong(field: str, why: str) -> BadRequest:
    return BadRequest(f"{PARAM}.{field}: {why}", param=f"{PARAM}.{field}")


def _pattern(schema: str | dict[str, Any] | None) -> str:
    if not isinstance(schema, str) or not schema:
        raise _wrong("schema", "must be a regular expression where the type is regex")
    if len(schema) > MOST_CHARACTERS:
        raise _wrong("schema", f"an expression has at most {MOST_CHARACTERS} characters")
    if keyword := next(_unsupported(schema), None):
        raise _wrong("schema", f"{keyword} is not supported in a regular expression")
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


def _complete(schema: str | dict[str, Any]) -> dict[str, Any]:
    """A schema as Friendli reads it: every property is required, and no other is allowed."""
    if isinstance(schema, str):
        try:
            schema = nested_json(schema)
        except ValueError as error:
            raise _wrong("schema", f"not valid JSON: {error}") from None
        check_large_numbers({"schema": schema}, with_tools=True, within="response_format")
    if not isinstance(schema, dict):
        raise _wrong("schema", "must be a JSON schema, an object")
    if len(written(schema)) > MOST_BYTES:
        raise _wrong("schema", f"a schema has at most {MOST_BYTES} bytes")
    if _is_recursive(schema):
        # With every property required, such an answer would never end.
        raise _wrong("schema", "recursion is not supported")
    complete: dict[str, Any] = _all_required(schema)
    return complete


# Where a JSON schema contains others: by name, in a list, or alone.
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_DIRECT = ("items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "contains")


def _all_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_all_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    complete = {**schema, **{name: _all_required(schema[name]) for name in _DIRECT if name in schema}}
    for name in _NAMED:
        if isinstance(schema.get(name), dict):
            complete[name] = {key: _all_required(item) for key, item in schema[name].items()}
    if isinstance(schema.get("properties"), dict):
        complete |= {"required": list(schema["properties"]), "additionalProperties": False}
    return complete


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether the references, followed from the top, form a cycle. Visits each part once, however often it is named."""
    top = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    seen, way = {id(schema)}, {id(schema)}
    waiting: list[tuple[Any, Iterator[Any]]] = [(schema, _followers(schema, top))]
    while waiting:
        part, followers = waiting[-1]
        if (follower := next(followers, None)) is None:
            waiting.pop()
            way.remove(id(part))
        elif id(follower) in way:
            return True
        elif id(follower) not in seen:
            seen.add(id(follower))
            way.add(id(follower))
            waiting.append((follower, _followers(schema, follower)))
    return False


def _followers(schema: Mapping[str, Any], part: Any) -> Iterator[Any]:
    """The objects and lists in a part, and the one that its reference names."""
    values = part if isinstance(part, list) else list(part.values())
    if isinstance(part, dict) and isinstance(reference := part.get("$ref"), str):
        values.append(schema if reference == "#" else _definition(schema, reference))
    return (value for value in values if isinstance(value, dict | list))


def _definition(schema: Mapping[str, Any], reference: str) -> Any:
    """The target of a reference inside the schema; None if there is none, which the engine rejects."""
    part: Any = schema
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(part, dict):
            return None
        part = part.get(step)
    return part


def sampling(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    """Temperature, logits processors and structured outputs. `several`: one vLLM request with more than one choice.

    Raises BadRequest.
    """
    body = _temperature_fields(fields, several=several)
    if fields.xtc_threshold and fields.xtc_probability and not fields.is_greedy:
        xtc = {Xarg.XTC_THRESHOLD: fields.xtc_threshold, Xarg.XTC_PROBABILITY: fields.xtc_probability}
        body["vllm_xargs"] = {**body.get("vllm_xargs", {}), **xtc}
    if (outputs := structured_outputs(fields.response_format)) is not None:
        body["structured_outputs"] = outputs
    return body


def _temperature_fields(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    if not fields.is_greedy:
        return temperature(1.0 if fields.temperature is None else fields.temperature)
    if several:
        # vLLM rejects several choices at temperature 0; sampling from one token is the same.
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": 0.0, "top_p": 1.0}


def seeds_count_up(seeds: Sequence[int]) -> bool:
    """Whether `seeds` are those that vLLM derives from the first: the next integer for each choice."""
    first, *others = map(to_int64_seed, seeds)
    return others == [first + index for index in range(1, len(seeds))]


def seed_fields(seeds: Sequence[int]) -> dict[str, Any]:
    """vLLM's `seed`, and `n` as the number of `seeds`, which count up."""
    return {"seed": to_int64_seed(seeds[0]), **({"n": len(seeds)} if len(seeds) > 1 else {})}
