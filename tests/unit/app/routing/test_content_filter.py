"""A content filter finds in windows what it finds in one search."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import ContentFilter
from app.errors import BadRequest
from app.routing.content_filter import check_content, matches

PATTERNS = [
    re.compile(pattern)
    for pattern in (
        "secret project",
        "(?i)secret",
        r"\bsecret\b",
        "secret$",
        "^secret",
        "(?m)^secret$",
        r"s\w+t",
        "(?<=a )secret",
        "secret(?! project)",
        r"secret.*project",
        r"secret\s+project",
        r"\Z",
    )
]
_WINDOW = 64 * 1024
_PLACES = st.integers(0, 4).map(lambda number: number * _WINDOW) | st.integers(0, 4 * _WINDOW)
_NEEDLES = ("secret project", "secret", "Secret\nproject", "secrets", "xsecret", "secret", "\nsecret\n")


@given(
    places=st.lists(st.tuples(_PLACES, st.integers(-20, 20), st.sampled_from(_NEEDLES)), max_size=3),
    filling=st.sampled_from(["a", "a ", "a b\n"]),
    length=st.sampled_from([2 * _WINDOW, 3 * _WINDOW + 7, 4 * _WINDOW]),
)
def test_windows_change_nothing(places: list[tuple[int, int, str]], filling: str, length: int) -> None:
    text = (filling * length)[:length]
    for place, shift, needle in places:
        at = max(0, place + shift)
        text = text[:at] + needle + text[at + len(needle) :]
    for pattern in PATTERNS:
        whole = pattern.search(text)
        if whole is None or whole.end() - whole.start() < _WINDOW:
            assert matches(pattern, text) is (whole is not None), pattern


@pytest.mark.parametrize("text", ["", "secret", "a" * 300_000 + "secret"])
def test_a_text_of_any_length_is_searched_to_its_end(text: str) -> None:
    assert matches(re.compile("secret"), text) is text.endswith("secret")


def test_the_field_that_is_blocked_has_the_clients_name() -> None:
    secrets = ContentFilter.model_validate({"patterns": ["secret"]})
    with pytest.raises(BadRequest, match=r"^inputs: the request was blocked") as refused:
        check_content(secrets, {"prompt": "a secret"}, {"prompt": "inputs"})
    assert refused.value.param == "inputs"
