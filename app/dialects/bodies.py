"""Checks a body against a pydantic model, and describes the first problem."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, from_json, to_json

from app.dialects.json_size import outlined
from app.errors import BadRequest, SwitchyardError, TooLarge
from app.long_json import Outline, parsed

_MOST_MEMBERS = 10_000
"""In one object: each unknown one may be an error of its own."""

_MOST_NESTED_VALUES = 100_000
"""In a JSON text that is a value of a body; see `json_size.weight`."""


_LONGEST_WORD = 4 * 1024 * 1024

_CONTENT = frozenset(
    "messages input inputs prompt suffix system instructions instruction query queries documents texts text_1 text_2 "
    "data_1 data_2 images instances prompt_embeds input_data extra_params".split()
)
"""Members that may hold megabytes of text, images, audio and files, in members of theirs, too."""

_WORDS = frozenset({"role", "type"})


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object without nulls. Raises BadRequest on anything else."""
    value = json_object_with_nulls(body)
    # Most bodies have no null, and searching for the word is far cheaper than walking the tree.
    return without_nulls(value) if body.find(b"null") >= 0 else value


def json_object_with_nulls(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises BadRequest on anything else."""
    try:
        value = parsed(body, _check_text)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object")
    if body.count(b":") > _MOST_MEMBERS:
        _check_members(value)
    return value


def _check_text(names: Sequence[str], size: int) -> None:
    """Raises TooLarge for megabytes where no content stands, such as a role: checks of words read all of a text."""
    if size > _LONGEST_WORD and names and (names[-1] in _WORDS or _CONTENT.isdisjoint(names)):
        name = names[-1]
        raise TooLarge(f"{name}: a text here has at most {_LONGEST_WORD} bytes", param=name)


def _check_members(body: dict[str, Any]) -> None:
    """Raises BadRequest, about a field of the body, if an object has too many members."""
    if len(body) > _MOST_MEMBERS:
        raise BadRequest(f"The body has {len(body)} fields, at most {_MOST_MEMBERS} are allowed")
    for name, field in body.items():
        pending = [field]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if len(value) > _MOST_MEMBERS:
                    message = f"{name}: an object has {len(value)} members, at most {_MOST_MEMBERS} are allowed"
                    raise BadRequest(message, param=name)
                pending.extend(item for item in value.values() if isinstance(item, dict | list))
            elif isinstance(value, list):
                pending.extend(item for item in value if isinstance(item, dict | list))


def nested_json(text: str) -> Any:
    """The value of a JSON text that is a value of a body. Raises ValueError, and TooLarge."""
    return parsed(outlined(text.encode("utf-8", "surrogatepass"), _MOST_NESTED_VALUES))


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()


_NAMED = msgspec.json.Decoder(_Named)
_LONGEST_NAME = 1024


def model_in(body: bytes) -> str | None:
    """The text in the body's `model`, found without parsing the rest; None if it has none, or is not an object."""
    try:
        raw = _NAMED.decode(body).model
        value = from_json(bytes(raw)) if 0 < len(raw) <= _LONGEST_NAME else None
    except (ValueError, RecursionError):  # the latter for one that is nested too deeply, which `parse` refuses
        return None
    is_mark = isinstance(body, Outline) and body.is_mark(value)
    return value if isinstance(value, str) and not is_mark else None


def peek(body: bytes) -> dict[str, Any]:
    """The body if it is a JSON object, else an empty one: to detect the dialect of a request. Of an `Outline` it is
    the object with the marks.
    """
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
    deepest = max(of_the_first, key=lambda item: len(_fields(item)))
    path, message = field_path(_fields(deepest)), _message(deepest)
    if not path:  # a rule over several fields, whose message begins with the field's name
        path, _, message = message.partition(": ")
    kind = deepest["type"]
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
