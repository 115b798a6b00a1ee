"""JSON in pieces means what it means in one."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from app.long_json import LONG_TEXT, Outline, has_more_items, parsed, size_of, written
from tests.support import cpu_time

_PIECE = 64 * 1024
_UNITS = ("a", '"', "\\", "\n", "é", "中", "😀", "\x7f", ':"', ",")
_LENGTHS = (0, 1, LONG_TEXT - 1, LONG_TEXT, LONG_TEXT + 1, _PIECE - 1, _PIECE, _PIECE + 3, 2 * _PIECE)


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """A text about as long as a bound, from characters of every width and every escape."""
    units = "".join(draw(st.lists(st.sampled_from(_UNITS), min_size=1, max_size=9)))
    length = draw(st.sampled_from(_LENGTHS))
    return draw(st.sampled_from(("", *_UNITS))) + (units * (length // len(units) + 1))[:length]


_LONG_LISTS = st.integers(0, 9).map(lambda last: [*range(65), None, True, 1.5] * 70 + [last])

_VALUES = st.recursive(
    _texts() | st.none() | st.integers() | st.lists(st.integers(), max_size=3) | _LONG_LISTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abc"), part, max_size=3),
    max_leaves=5,
)


@given(value=_VALUES, is_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_a_value_is_read_and_written_as_in_one_piece(value: Any, is_ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    outline = Outline.from_json(text)
    assert size_of(outline) == len(text)
    assert parsed(outline) == value
    assert written(parsed(outline)) == to_json(value)


def _read(read: Callable[[bytes], Any], text: bytes) -> Any:
    try:
        return read(text)
    except ValueError:
        return ValueError


@given(
    value=_texts(), at=st.floats(0, 1), damage=st.sampled_from([b"", b"\xff", b"\x80", b'"', b"\\", b"\\ud83d", b"\n"])
)
def test_what_is_no_json_is_none_in_pieces(value: str, at: float, damage: bytes) -> None:
    text = json.dumps({"a": value, "b": 1}, ensure_ascii=at < 0.5).encode()
    place = int(at * len(text))
    text = text[:place] + damage + text[place + 1 :]
    assert _read(lambda damaged: parsed(Outline.from_json(damaged)), text) == _read(from_json, text)


@pytest.mark.parametrize("rare", ["", "é", "中", "😀"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_megabytes_are_one_text_of_the_right_width(rare: str, place: int) -> None:
    whole = "words " * 500_000
    text = whole[: place * 1_500_000] + rare + whole[place * 1_500_000 :]
    value = parsed(Outline.from_json(to_json([text])))
    assert value == [text]
    assert hash(value[0]) == hash(text)
    assert written(value) == to_json([text])


def test_a_mark_is_told_from_what_clients_write() -> None:
    outline = Outline.from_json(to_json({"a": "x" * _PIECE, "b": "short"}))
    assert isinstance(outline, Outline)
    marks = from_json(outline)
    assert outline.is_mark(marks["a"])
    assert not outline.is_mark(marks["b"])
    copied = Outline.from_json(to_json({"a": "x" * _PIECE, "b": marks["a"]}))
    assert parsed(copied)["b"] == marks["a"]


_NUMBERS = (b"7", b"-1", b"1.5e3", b"123456789012345678901234567890", b" 12 ", b"true", b"null", b"[4]", b'"5"', b"{}")
_NO_NUMBERS = (b"", b"01", b"-", b"NaN", b"1 2", b"[", b"]", b'"', b"\xff", b"\n,")


@given(
    numbers=st.lists(st.sampled_from(_NUMBERS), min_size=1, max_size=4),
    others=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(_NO_NUMBERS)), max_size=1),
    more=st.sampled_from([b"", b',"a":1', b',"ids":[2]', b',"a":{"b":[1,2]}', b",", b"}"]),
)
def test_long_lists_of_numbers_are_read_as_in_one_piece(
    numbers: list[bytes], others: list[tuple[float, bytes]], more: bytes
) -> None:
    items = numbers * (300_000 // len(b",".join(numbers)) + 1)
    for place, other in others:
        items.insert(int(place * len(items)), other)
    text = b'{"ids":[%b]%b}' % (b",".join(items), more)
    assert _read(parsed, text) == _read(lambda whole: from_json(whole, allow_inf_nan=False), text)


_ITEMS = st.sampled_from(["a", "", 'a","b', "\\", "[", 5, -1.5e9, None, True, [], {}, ["a", "b"], {"a": ["b", 1]}])


@given(
    items=st.lists(_ITEMS, max_size=12),
    repeated=st.integers(0, 3),
    most=st.integers(1, 14) | st.sampled_from([4095, 4096, 4097, 8192, 12_288, 12_289]),
    indent=st.sampled_from([None, 1]),
)
def test_items_are_counted_as_if_they_were_read(items: list[Any], repeated: int, most: int, indent: int | None) -> None:
    items = ["a"] * (4096 * repeated) + items
    assert has_more_items(json.dumps(items, indent=indent).encode(), most) is (len(items) > most)


def test_names_of_members_are_short() -> None:
    with pytest.raises(ValueError, match=f"more than {LONG_TEXT} bytes"):
        parsed(Outline.from_json(to_json({"x" * _PIECE: 1})))


def test_other_threads_run_meanwhile() -> None:
    """Another thread has to wait for milliseconds only, and not for all of it."""
    text = to_json({"a": "😀" + "words " * 6_000_000})

    def longest_wait_s() -> float:
        longest, is_over = 0.0, threading.Event()

        def watch() -> None:
            nonlocal longest
            while not is_over.is_set():
                before = time.process_time(), time.perf_counter()
                time.sleep(0.001)
                longest = max(longest, min(time.process_time() - before[0], time.perf_counter() - before[1]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            written(parsed(Outline.from_json(text)))
        finally:
            is_over.set()
            watcher.join()
        return longest

    # In one piece each takes 0.08 s on a quiet core.
    assert cpu_time.least(longest_wait_s, 0.05) < 0.05
