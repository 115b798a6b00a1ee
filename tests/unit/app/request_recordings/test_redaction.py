"""Text that a pattern matches is nowhere in the redacted body, and nothing else is lost."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.request_recordings.redaction import REDACTED, NotRedactable, anonymous, redacted

SECRET = "sk-[a-z0-9]{8}"
CARD = r"\b\d{16}\b"

words = st.text(alphabet='abc s-k019 \n"\\é', max_size=12)
secrets = st.from_regex(re.compile(SECRET), fullmatch=True)
texts = st.one_of(words, secrets, st.tuples(words, secrets, words).map("".join))
numbers = st.integers(-5, 10**17) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | texts | numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
bodies = st.dictionaries(texts, values, max_size=5)


def strings(value: Any) -> list[str]:
    """Every string in a value, and every number in it as text."""
    if isinstance(value, dict):
        return [text for name, part in value.items() for text in (name, *strings(part))]
    if isinstance(value, list):
        return [string for part in value for string in strings(part)]
    return [value] if isinstance(value, str) else []


@given(bodies)
def test_nothing_that_a_pattern_matches_is_left_in_any_string(body: dict[str, Any]) -> None:
    result = redacted(body, [SECRET, CARD])
    assert [string for string in strings(result) if re.search(SECRET, string) or re.search(CARD, string)] == []


@given(bodies)
def test_a_body_without_a_match_stays_as_it_is(body: dict[str, Any]) -> None:
    assert redacted(body, ["no such text"]) == body
    assert redacted(body, []) == body


@given(bodies)
def test_the_shape_of_a_body_stays(body: dict[str, Any]) -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return [shape(part) for part in value.values()]
        return [shape(part) for part in value] if isinstance(value, list) else None

    assert shape(redacted(body, [SECRET, CARD])) == shape(body)


def test_messages_tools_and_names_of_members_are_redacted() -> None:
    body = {
        "model": "chat",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "key sk-abcd1234, card 4111111111111111"}]}],
        "tools": [{"function": {"parameters": {"properties": {"sk-abcd1234": {}, "sk-zzzz9999": {}}}}}],
        "documents": [{"card": 4111111111111111}],
    }
    result = redacted(body, [SECRET, CARD])
    assert result["messages"][0]["content"][0]["text"] == f"key {REDACTED}, card {REDACTED}"
    assert list(result["tools"][0]["function"]["parameters"]["properties"]) == [REDACTED, f"{REDACTED} 2"]
    assert result["documents"] == [{"card": REDACTED}]
    assert result["max_tokens"] == 5


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"prompt": [1, 2, 3]}, id="token ids"),
        pytest.param({"prompt": [[1, 2], [3]]}, id="a batch of them"),
        pytest.param({"input": [[1, 2], [3]]}, id="to embed"),
        pytest.param({"prompt_embeds": "AAAA"}, id="embeddings"),
    ],
)
def test_text_that_no_pattern_can_read_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(NotRedactable):
        redacted(body, [SECRET])
    assert redacted(body, []) == body


def test_a_body_that_is_nested_too_deep_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(200):
        body = {"it": body}
    with pytest.raises(NotRedactable):
        redacted(body, [SECRET])


def test_fields_that_name_the_caller_are_removed() -> None:
    body = {"prompt": "hi", "user": "ada", "safety_identifier": "x", "metadata": {"user_id": "ada"}, "session_id": "s"}
    assert anonymous(body) == {"prompt": "hi"}
