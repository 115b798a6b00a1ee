"""The vectors of an answer, read one at a time."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from app.engine.vectors import embeddings

_NUMBER = st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
_VECTOR = st.lists(_NUMBER, min_size=1, max_size=4) | st.text(max_size=9)
_ITEM = st.fixed_dictionaries({"index": st.integers(0, 9), "embedding": _VECTOR, "object": st.just('"embedding":[1]')})


@given(items=st.lists(_ITEM, max_size=4), spaces=st.booleans())
def test_an_answer_is_read_as_in_one_piece(items: list[dict[str, Any]], spaces: bool) -> None:
    answer = json.dumps({"data": items, "usage": {}}, separators=None if spaces else (",", ":")).encode()
    assert embeddings(answer) == from_json(answer)
