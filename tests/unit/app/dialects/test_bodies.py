"""Validation stops at the first invalid item, in every dialect. A long body is looked at as a short one is."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.dialects.bodies import peek, validator
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


MEMBERS = {"model": "chat", "stream": True, "seed": [1, 2], "response_format": {"type": "text"}, "n": None}


@pytest.mark.parametrize("long", ["a", ["a"] * 20_000, {"a": "b" * 40_000}, [[["a"]]] * 9000])
def test_a_long_body_has_the_members_of_a_short_one(long: Any) -> None:
    body = {**MEMBERS, "prompt": long}
    seen = peek(json.dumps(body).encode())
    assert dict(seen) == body
    assert "input" not in seen
    assert seen.get("input") is None


@pytest.mark.parametrize("text", ['["%s"]', '{"prompt":"%s"', '"%s"', '{"prompt":"%s"}}', '{"prompt":%s}'])
def test_what_is_no_object_has_no_members(text: str) -> None:
    for length in (1, 40_000):
        assert dict(peek((text % ("a" * length)).encode())) == {}
