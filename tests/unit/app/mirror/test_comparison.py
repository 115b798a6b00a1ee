"""The comparison of two answers."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.output import Promise
from app.exposures.wire import FinishCode, Pair
from app.mirror.comparison import MeasuredAnswer, compare, compare_vectors


def says(text: str | None, *calls: tuple[str, str], **fields: Any) -> MeasuredAnswer:
    tool_calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    message = {"content": text, "tool_calls": tool_calls}
    answer = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
    base = MeasuredAnswer(answer, False, FinishCode.STOP, True, None, 1.0, None)
    return base._replace(**fields)


def vectors(*values: list[float]) -> MeasuredAnswer:
    answer = json.dumps({"data": [{"embedding": value} for value in values]}).encode()
    return MeasuredAnswer(answer, False, FinishCode.NONE, True, None, 1.0, None)


@pytest.mark.parametrize(
    ("primary", "shadow", "equal", "equal_words", "ratio"),
    [
        ("a b", "a b", 1, 1, 1.0),
        ("a b", " a\n\tb ", 0, 1, 2.0),
        ("a b", "ab", 0, 0, 2 / 3),
        ("a b", "", 0, 0, 0.0),
        ("", "a", 0, 0, None),
        ("", "", 1, 1, None),
        (None, "", 1, 1, None),
        ("é", "e\u0301", 0, 0, 2.0),
    ],
)
def test_texts_are_compared_exactly_and_by_words(
    primary: str | None, shadow: str, equal: int, equal_words: int, ratio: float | None
) -> None:
    compared = compare(says(primary), says(shadow), None)
    assert (compared["equal"], compared["equal_words"], compared["length_ratio"]) == (equal, equal_words, ratio)
    assert compared["same_tools"] is None


@pytest.mark.parametrize(
    ("primary", "shadow", "same"),
    [
        ([("f", "{}")], [("f", "")], 1),
        ([("f", '{"a":1,"b":2}')], [("f", '{"b": 2, "a": 1}')], 1),
        ([("f", '{"a":1}')], [("f", '{"a":2}')], 0),
        ([("f", '{"a":')], [("f", '{"a":')], 1),
        ([("f", '{"a":1}')], [("f", '{"a":')], 0),
        ([("f", "{}"), ("g", "{}")], [("g", "{}"), ("f", "{}")], 0),
        ([("f", "{}")], [], 0),
        ([], [("f", "{}")], 0),
    ],
)
def test_tool_calls_are_compared_by_name_and_arguments(
    primary: list[tuple[str, str]], shadow: list[tuple[str, str]], same: int
) -> None:
    compared = compare(says("x", *primary), says("x", *shadow), None)
    assert (compared["same_tools"], compared["equal_words"]) == (same, same)


def test_measurements_are_subtracted() -> None:
    primary = says("a", ttft_s=0.5, duration_s=2.0, tokens_per_s=20.0, finish=FinishCode.LENGTH)
    shadow = says("a", ttft_s=0.75, duration_s=1.5, tokens_per_s=30.0, visible=False)
    compared = compare(primary, shadow, None)
    assert (compared["ttft_s"], compared["duration_s"], compared["tokens_per_s"]) == (0.25, -0.5, 10.0)
    assert (compared["finish"], compared["primary_finish"], compared["same_finish"]) == (
        FinishCode.STOP,
        FinishCode.LENGTH,
        0,
    )
    assert (compared["visible"], compared["primary_visible"]) == (0, 1)
    without = compare(primary, shadow._replace(ttft_s=None, tokens_per_s=None), None)
    assert (without["ttft_s"], without["tokens_per_s"]) == (None, None)


def test_promises_are_checked_on_both_sides() -> None:
    compared = compare(says("no"), says("[1]"), Promise.JSON)
    assert (compared["valid"], compared["primary_valid"]) == (1, 0)
    assert "valid" not in compare(says("no"), says("[1]"), None)


def test_an_unreadable_answer_is_not_compared_by_words() -> None:
    compared = compare(says("a"), says("a")._replace(answer=b"?"), None)
    assert "equal" not in compared
    assert compared["duration_s"] == 0.0


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.floats(0.1, 100))
def test_the_cosine_depends_on_directions_only(vector: list[float], factor: float) -> None:
    compared = compare_vectors(vectors(vector), vectors([factor * number for number in vector]))["cosine"]
    if math.sqrt(sum(number * number for number in vector)) > 1e-100:
        assert compared == pytest.approx(1.0)
    opposite = compare_vectors(vectors(vector), vectors([-number for number in vector]))["cosine"]
    assert (compared is None) == (opposite is None)


def test_the_mean_of_the_cosines_counts() -> None:
    compared = compare_vectors(vectors([1, 0], [1, 0]), vectors([1, 0], [0, 1]))
    assert compared["cosine"] == pytest.approx(0.5)
    assert compare_vectors(vectors([1, 0]), vectors([1, 0, 0]))["cosine"] is None
    assert compare_vectors(vectors([0, 0]), vectors([1, 0]))["cosine"] is None
    assert compare_vectors(vectors(), vectors())["cosine"] is None
    assert "cosine" not in compare_vectors(vectors([1]), vectors([1])._replace(answer=b"?"))


def test_every_result_of_a_comparison_is_a_field_of_a_pair() -> None:
    found = compare(says("a"), says("a"), Promise.JSON) | compare_vectors(vectors([1]), vectors([1]))
    assert set(found) <= set(Pair._fields)
