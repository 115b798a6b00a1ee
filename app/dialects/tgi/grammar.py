from typing import Any

from app.dialects.json_body import nested_json
from app.dialects.tgi.fields import Grammar
from app.errors import Unprocessable


def structured_outputs(grammar: Grammar, param: str) -> dict[str, Any]:
    """vLLM's `structured_outputs` for a grammar, which the engine compiles and may reject.

    Raises Unprocessable, about `param`.
    """
    value = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str) or not value:
            raise _invalid(param, "the value of a regex must be a string")
        return {"regex": value}
    if isinstance(value, str):
        try:
            value = nested_json(value)
        except ValueError as error:
            raise _invalid(param, str(error)) from None
    if grammar.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    if not isinstance(value, dict) or "properties" not in value:
        raise _invalid(param, "Grammar must have a 'properties' field")
    # TGI takes a schema with properties for an object's; JSON Schema needs the `type` too.
    return {"json": {"type": "object", **value}}


def _invalid(param: str, reason: str) -> Unprocessable:
    return Unprocessable(f"grammar is not valid: {reason}", param=param)
