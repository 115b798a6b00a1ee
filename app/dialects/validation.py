"""Checks a body against a pydantic model, and describes the first problem."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator

from app.dialects.json_body import field_path
from app.errors import SwitchyardError

Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Problem:
    """The first problem of a body: a `field_path`, and a sentence that begins with it.

    `missing`: a required field is absent; `unknown`: the model has no such field; `wrong_type`: the value has the wrong
    JSON type, in every branch of a union.
    """

    path: str
    message: str
    missing: bool
    unknown: bool
    wrong_type: bool


def first_problem(error: ValidationError) -> Problem:
    """The problem of the first invalid field; in a union, of the branch that got furthest into the value."""
    errors = error.errors(include_url=False)
    of_the_first = [item for item in errors if item["loc"][:1] == errors[0]["loc"][:1]]
    found = max(of_the_first, key=lambda item: len(_fields(item)))
    path, message = field_path(_fields(found)), _message(found)
    if not path:  # a rule over several fields, whose message begins with the field's name
        path, _, message = message.partition(": ")
    kind = found["type"]
    wrong_type = all(map(_is_wrong_type, of_the_first))
    return Problem(path, f"{path}: {message}", kind == "missing", kind == "extra_forbidden", wrong_type)


def _message(error: ErrorDetails) -> str:
    """Pydantic's message in the words of JSON, not of Python."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "Input should be an object"
    if error["type"] == "none_required":
        return "Input should be null"
    message = error["msg"].removeprefix("Value error, ")
    return message.replace("True", "true").replace("False", "false") if error["type"] == "literal_error" else message


def _is_wrong_type(error: ErrorDetails) -> bool:
    # Pydantic reports a wrong type for a choice of words as a value out of bounds.
    is_literal = error["type"] == "literal_error" and not isinstance(error["input"], str)
    return error["type"].endswith("_type") or is_literal


def _fields(error: ErrorDetails) -> list[int | str]:
    """An error's location without the parts that name a branch of a union and no field."""
    *parents, last = error["loc"] or ("",)
    fields = [part for part in parents if isinstance(part, int) or not _BRANCH.match(part)]
    is_field = isinstance(last, int) or error["type"] in ("missing", "extra_forbidden") or not _BRANCH.match(last)
    return [*fields, last] if error["loc"] and is_field else fields


_BRANCH = re.compile(r"(str|int|float|bool|dict)$|constrained-|[A-Z]|.*\[")


def validated(model: type[Checked], body: Any, wrong: Callable[[Problem], SwitchyardError]) -> Checked:
    """`body` as a `model`. Raises the error that `wrong` returns for the first problem."""
    try:
        checked: Checked = validator(model).validate_python(body)
        return checked
    except ValidationError as error:
        raise wrong(first_problem(error)) from None


@cache
def validator(model: type[BaseModel]) -> SchemaValidator:
    """The model's validator, which leaves a list at its first invalid item: a list of a million would have as many
    errors, times the branches of a union.
    """
    schema = _failing_fast(model.__pydantic_core_schema__)
    return SchemaValidator(schema, _use_prebuilt=False)  # those of nested models would not fail fast


_SEQUENCES = ("list", "tuple", "set", "frozenset")
_NO_SCHEMAS = frozenset({"metadata", "serialization", "default", "expected"})


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_failing_fast, schema))
    if not isinstance(schema, dict):
        return schema
    changed = {key: value if key in _NO_SCHEMAS else _failing_fast(value) for key, value in schema.items()}
    return {**changed, "fail_fast": True} if changed.get("type") in _SEQUENCES else changed
