"""Rules over several fields as JSON Schema: the OpenAPI document states what pydantic's validators check.

Null is absent here too. The rules are alternatives rather than `if` and `not`, which generators of requests can hardly
satisfy.
"""

from typing import Any

from pydantic import ConfigDict

Schema = dict[str, Any]

_VALUE: Schema = {"type": ["array", "boolean", "number", "object", "string"]}


def absent(*names: str) -> Schema:
    """The schema of a body without any of these fields."""
    return values({name: [None] for name in names})


def values(choices: dict[str, list[Any]]) -> Schema:
    """The schema of a body whose given fields each have one of these values; None is null."""
    return {"properties": {name: {"enum": allowed} for name, allowed in choices.items()}}


def given(name: str, schema: Schema = _VALUE) -> Schema:
    """The schema of a body with this field, with a value that matches `schema`."""
    return {"required": [name], "properties": {name: schema}}


def is_true(name: str) -> Schema:
    """The schema of a body with true in this field."""
    return given(name, {"const": True})


def both(*rules: Schema) -> Schema:
    """Matches all of `rules`."""
    return {"allOf": list(rules)}


def either(*rules: Schema) -> Schema:
    """Matches at least one of `rules`."""
    return {"anyOf": list(rules)}


def only_with(name: str, condition: Schema) -> Schema:
    """The schema of a body that has the field `name` only if `condition` matches."""
    return either(absent(name), condition)


def described_by(*rules: Schema) -> ConfigDict:
    """A model's configuration that adds `rules` to its schema."""
    return ConfigDict(json_schema_extra=both(*rules))


STREAM_OPTIONS_WITH_STREAM = only_with("stream_options", is_true("stream"))
TOP_LOGPROBS_WITH_LOGPROBS = only_with("top_logprobs", is_true("logprobs"))
BEST_OF_WITHOUT_STREAM = either(
    values({"stream": [None, False]}), absent("best_of"), values({"best_of": [1], "n": [None, 1]})
)
SOME_TOOLS = given("tools", {"type": "array", "minItems": 1})
