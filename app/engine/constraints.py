"""Constraints of a request on its answer: JSON Schemas, regular expressions and grammars in vLLM's request fields.

vLLM accepts some that no answer satisfies and fails while it generates, with an internal error that does not mention
the request. `unsatisfiable_field` recognises them before the engine is called. Contract: vLLM 0.29's
`StructuredOutputsParams`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic_core import to_json

from app.engine.satisfiability import (
    Effort,
    grammar_admits_something,
    regex_admits_something,
    schema_admits_something,
)
from app.long_json import written

Json = Any

MOST_CHARACTERS = 8192
"""Of a regular expression or grammar: 8,000 characters take an engine seconds of CPU time to compile, and some take
minutes (`deployments/engine/trial.py`).
"""

MOST_BYTES = 1024 * 1024
"""Of a constraint as JSON. vLLM converts a schema on the event loop that passes on other answers, in 0.1 s for this."""

MOST_REPETITIONS = 100_000
"""Of all strings, lists and expressions of a constraint together. What is cheap to refuse here costs an engine a minute
of CPU time (`deployments/engine/trial.py`).
"""

CONSTRAINTS = frozenset({"response_format", "structured_outputs", "text", "output_config", "tools"})
"""The fields that may constrain the answer: most requests have none."""


def constrained_field(body: Mapping[str, Any]) -> str | None:
    """The first field of the vLLM request `body` that constrains the answer."""
    if CONSTRAINTS.isdisjoint(body):  # most requests
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


def too_large_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose constraint has more than `MOST_BYTES`. For long bodies: it is written as JSON to know."""
    return next((name for name, value in _compiled(body) if len(written(value)) > MOST_BYTES), None)


def too_repetitive_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose lengths, counts and repetitions add up to more than `MOST_REPETITIONS`."""
    if CONSTRAINTS.isdisjoint(body):
        return None
    return next((name for name, value in _compiled(body) if _repetitions(to_json(value)) > MOST_REPETITIONS), None)


def _compiled(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that may constrain the answer, and what in them the engine compiles."""
    for name in sorted(CONSTRAINTS & body.keys()):
        if value := [*_forced_parameters(body)] if name == "tools" else body[name]:
            yield name, value


def _repetitions(constraint: bytes) -> float:
    """The sum of the numbers by which a constraint (JSON) repeats something.

    It is searched, not walked: a schema may be a text in JSON, or in a structural tag, also with escapes.
    """
    constraint = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), constraint)
    return sum(
        float(found[1] or found[2])
        for start in range(0, len(constraint), _STEP)  # between two steps the event loop serves others
        for found in _REPEATS.finditer(constraint, start, start + _STEP + _LONGEST_REPEAT)
        if found.start() < start + _STEP
    )


_ESCAPED = re.compile(rb"\\++u00([2-7][0-9a-fA-F])")
_STEP, _LONGEST_REPEAT = 64 * 1024, 256
"""Bytes."""

# A bound of a schema, also of one in a text; or one of a regular expression or grammar: an object has no such braces.
_REPEATS = re.compile(
    rb'(?:max|min)(?:Length|Items|Properties)\\*"(?:\s|\\[nrt])*:(?:\s|\\[nrt])*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)'
    rb"|\{(?:\d+,)?(\d+),?\}"
)


def unsatisfiable_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose constraint no answer satisfies."""
    if CONSTRAINTS.isdisjoint(body):
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
