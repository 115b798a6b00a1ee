"""Validation stops at the first invalid item, in every model of every dialect."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.dialects.bodies import validator
from app.dialects.registry import DIALECTS

MODELS = {
    f"{dialect.name} {model.__qualname__}": model
    for dialect in DIALECTS
    for bodies in dialect.bodies.values()
    for body in bodies
    if isinstance(model := body.model, type) and issubclass(model, BaseModel)
}

_ITEMS: tuple[Any, ...] = ({}, [], "a", 1, -1, 1.5, None, {"role": "user"}, {"type": "text"}, {"a": {}}, [{}], [1.5])


def _lists(item: Any, count: int) -> Iterator[Any]:
    yield [item] * count
    yield [[item] * count]
    yield [{"role": "user", "content": [item] * count}]


def _errors(model: type[BaseModel], body: dict[str, Any]) -> int:
    try:
        validator(model).validate_python(body)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_long_list_has_no_more_errors_than_a_short_one(name: str) -> None:
    model = MODELS[name]
    for field, item in product([field.alias or name for name, field in model.model_fields.items()], _ITEMS):
        for short, long in zip(_lists(item, 3), _lists(item, 300), strict=True):
            # Some more: that it is too long, and what the other branches of a union say.
            assert _errors(model, {field: long}) <= _errors(model, {field: short}) + 3, (field, item)
