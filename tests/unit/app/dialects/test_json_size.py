"""The bound on values: of JSON outside strings, in pieces of any size."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.bodies import json_object, model_in, nested_json
from app.errors import BadRequest, TooLarge
from app.long_json import MOST_VALUES, check_size, weight

_TEXTS = st.text(st.sampled_from('a\\",:[{é'), max_size=12)
_VALUES = st.recursive(
    _TEXTS | st.integers(-(10**17), 10**17),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(_TEXTS, children, max_size=4),
    max_leaves=12,
)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


@given(value=_VALUES, piece=st.integers(1, 9))
def test_what_is_in_strings_does_not_count(value: Any, piece: int) -> None:
    text = json.dumps(value).encode()
    exact = weight(_STRING.sub(b"", text))
    check_size(text, exact, piece_size=piece)
    if exact:
        with pytest.raises(TooLarge):
            check_size(text, exact - 1, piece_size=piece)


@given(text=st.text(st.sampled_from('a\\",:[{'), max_size=40), piece=st.integers(1, 9))
def test_no_text_is_too_odd(text: str, piece: int) -> None:
    try:
        check_size(text.encode(), 1, piece_size=piece)
    except TooLarge:
        assert weight(text.encode()) > 1


@pytest.mark.parametrize(("digits", "values"), [(18, 1), (19, 17), (57, 49), (499, 26 * 16 + 1)])
def test_the_digits_of_a_long_number_count(digits: int, values: int) -> None:
    most = MOST_VALUES // values - 30  # one in each piece may be cut
    text = b"[" + b",".join([b"9" * digits] * most) + b"]"
    check_size(text, MOST_VALUES)
    with pytest.raises(TooLarge):
        check_size(text, MOST_VALUES // 2)


@pytest.mark.parametrize(
    "fits",
    [
        {"prompt": list(range(300_000))},
        {"input": ["a text, with commas: [and] {more}" * 50] * 2048},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 4096},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a/" * 2**20}}]}] * 2},
        {
            "tools": [{"name": "f", "parameters": {"properties": {f"p{n}": {"type": "string"} for n in range(20)}}}]
            * 200
        },
    ],
    ids=str.split("ids batch conversation images tools"),
)
def test_legitimate_bodies_fit(fits: dict[str, Any]) -> None:
    check_size(json.dumps(fits).encode(), MOST_VALUES)


def test_an_object_has_a_bounded_number_of_members() -> None:
    many = {str(n): 1 for n in range(10_001)}
    for name, body in (("", many), ("logit_bias", {"logit_bias": many}), ("a", {"a": [{"b": many}]})):
        with pytest.raises(BadRequest, match="at most 10000") as raised:
            json_object(json.dumps(body).encode())
        assert (raised.value.param or "") == name


def test_json_in_a_string_is_bounded_too() -> None:
    assert nested_json("[1]") == [1]
    with pytest.raises(TooLarge):
        nested_json(json.dumps([[]] * 20_000))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"a","model":"b"}', "b"),
        (b'{"x":[{}],"model":"\\u0061"}', "a"),
        (b'{"model":5}', None),
        (b"{}", None),
        (b'{"model":"a"', None),
        (b"[]", None),
        (b'{"model":"' + b"a" * 5000 + b'"}', None),
        (b'{"a":' * 5000, None),
    ],
)
def test_the_name_of_the_model_is_found_without_parsing(body: bytes, name: str | None) -> None:
    assert model_in(body) == name
