"""Where a request constrains its answer: JSON Schemas, regular expressions and grammars in vLLM's request fields.

vLLM accepts some that no answer satisfies and fails while it generates, with an internal error that does not mention
the request. `unsatisfiable` recognises them before the engine is called. Contract: vLLM 0.29's
`StructuredOutputsParams`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.engine.satisfiability import grammar_admits_something, regex_admits_something, schema_admits_something

Json = Any


def unsatisfiable(body: Mapping[str, Any]) -> bool:
    """Whether vLLM's request `body` has a constraint that no answer satisfies."""
    return any(not satisfiable for satisfiable in _verdicts(body))


def is_constrained(body: Mapping[str, Any]) -> bool:
    """Whether the engine follows a schema, expression or grammar for the answer to `body`."""
    return any(True for _ in _verdicts(body))


def _verdicts(body: Mapping[str, Any]) -> Iterator[bool]:
    for schema in _schemas(body):
        yield schema_admits_something(schema)
    structured = body.get("structured_outputs")
    if not isinstance(structured, dict):
        return
    if isinstance(expression := structured.get("regex"), str):
        yield regex_admits_something(expression)
    if isinstance(grammar := structured.get("grammar"), str):
        yield grammar_admits_something(grammar)


def _schemas(body: Mapping[str, Any]) -> Iterator[Json]:
    for path in (
        ("response_format", "json_schema", "schema"),
        ("structured_outputs", "json"),
        ("text", "format", "schema"),
        ("output_config", "format", "schema"),
    ):
        if (schema := _at(body, path)) is not None:
            yield schema
    choice = body.get("tool_choice")
    forced = choice in ("required", "any") or (isinstance(choice, dict) and choice.get("type") != "auto")
    named = _at(body, ("tool_choice", "function", "name")) or _at(body, ("tool_choice", "name"))
    for tool in body.get("tools") or [] if forced else []:
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        schema = function.get("parameters", function.get("input_schema"))
        if schema is not None and named in (None, function.get("name")):
            yield schema


def _at(value: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
