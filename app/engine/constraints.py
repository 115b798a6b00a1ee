"""Constraints of a request on its answer: JSON Schemas, regular expressions and grammars in vLLM's request fields.

vLLM accepts some that no answer satisfies and fails while it generates, with an internal error that does not mention
the request. `unsatisfiable_field` recognises them before the engine is called. Contract: vLLM 0.29's
`StructuredOutputsParams`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from app.engine.satisfiability import (
    Effort,
    grammar_admits_something,
    regex_admits_something,
    schema_admits_something,
)

Json = Any

MOST_CHARACTERS = 8192
"""Of a regular expression or grammar. Engines compile one in a thread, without a limit on time: 8,000 characters take
seconds of CPU time, and some take minutes.
"""

_FIELDS = frozenset({"response_format", "structured_outputs", "text", "output_config", "tools"})


def constrained_field(body: Mapping[str, Any]) -> str | None:
    """The first field of the vLLM request `body` that constrains the answer."""
    if _FIELDS.isdisjoint(body):  # most requests
        return None
    if _at(body, ("structured_outputs", "choice")) is not None:
        return "structured_outputs"
    return next((name for name, _ in _constraints(body)), None)


def too_long_field(body: Mapping[str, Any]) -> str | None:
    """The field with an expression or grammar that is too long to be compiled; its path, as clients write it."""
    if "structured_outputs" not in body:
        return None
    for name in ("regex", "grammar"):
        text = _at(body, ("structured_outputs", name))
        if isinstance(text, str) and len(text) > MOST_CHARACTERS:
            return f"structured_outputs.{name}"
    return None


def unsatisfiable_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose constraint no answer satisfies."""
    if _FIELDS.isdisjoint(body):
        return None
    effort = Effort()
    return next((name for name, admits_something in _constraints(body) if not admits_something(effort=effort)), None)


def _constraints(body: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., bool]]]:
    """Each constraint's field, and whether it can be satisfied."""
    for name, path in _SCHEMAS:
        if (schema := _at(body, (name, *path))) is not None:
            yield name, partial(schema_admits_something, schema)
    for schema in _forced_parameters(body):
        yield "tools", partial(schema_admits_something, schema)
    if isinstance(expression := _at(body, ("structured_outputs", "regex")), str):
        yield "structured_outputs", partial(regex_admits_something, expression)
    if isinstance(grammar := _at(body, ("structured_outputs", "grammar")), str):
        yield "structured_outputs", partial(grammar_admits_something, grammar)


_SCHEMAS = (
    ("response_format", ("json_schema", "schema")),
    ("structured_outputs", ("json",)),
    ("text", ("format", "schema")),
    ("output_config", ("format", "schema")),
)


def _forced_parameters(body: Mapping[str, Any]) -> Iterator[Json]:
    """The parameters' schemas of the tools that the model must choose from."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(tools, list) or choice in (None, "none", "auto") or _at(choice, ("type",)) in ("none", "auto"):
        return
    named = _at(choice, ("function", "name")) or _at(choice, ("name",))
    for tool in tools:
        function = _at(tool, ("function",)) or tool
        schema = _at(function, ("parameters",)) or _at(function, ("input_schema",))
        if schema is not None and named in (None, _at(function, ("name",))):
            yield schema


def _at(value: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
