"""Requests in the types that the vendors' clients declare: TypedDicts, pydantic models, Azure's models, dataclasses."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import typing_extensions
from azure.ai.inference import models as azure

from app.dialects.bodies import request_object
from app.errors import BadRequest

_DEEPEST = 6
"""Objects in one another; some types contain themselves."""

_WRAPPERS = {typing.Annotated, typing.NotRequired, typing.Required}
_LISTS = {list, tuple, set, Iterable, Sequence}


def samples(kind: Any, depth: int = 0) -> Iterator[Any]:
    """Values of the type `kind`, with at most one field in each object: every field of every object occurs."""
    if isinstance(kind, typing_extensions.TypeAliasType):
        kind = kind.__value__
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _WRAPPERS:
        yield from samples(arguments[0], depth)
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from samples(argument, depth)
    elif origin in _LISTS:
        for argument in arguments:
            yield from ([value] for value in samples(argument, depth))
    elif depth < _DEEPEST and (fields := fields_of(kind)):
        for variant in kind.__subclasses__() if _is_azures(kind) else ():
            yield from samples(variant, depth)
        for name, field in fields.items():
            yield from ({name: value} for value in samples(field, depth + 1))
    else:
        yield 0


@cache
def fields_of(kind: Any) -> Mapping[str, Any]:
    """The fields of an object's type as requests have them, and their types; empty if `kind` is no such type."""
    if typing_extensions.is_typeddict(kind):
        return get_type_hints(kind)
    if not isinstance(kind, type):
        return {}
    if "model_fields" in dir(kind):
        fields: Mapping[str, Any] = getattr(kind, "model_fields")  # noqa: B009
        return {field.serialization_alias or field.alias or name: field.annotation for name, field in fields.items()}
    if _is_azures(kind):
        return {
            name: field
            for name, field in get_type_hints(kind, localns={"_models": azure}).items()
            if not name.startswith("_")
        }
    return get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}


def is_misspelt(body: dict[str, Any]) -> bool:
    """Whether a request has a nested field that is refused as a misspelling."""
    try:
        request_object(json.dumps(body).encode())
    except BadRequest as error:
        return error.code == "unknown_parameter"
    return False


def _is_azures(kind: Any) -> bool:
    return "_get_discriminator" in dir(kind)
