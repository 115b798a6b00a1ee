"""JSON with long texts, read and written in pieces, and the cost of a JSON text before it is parsed.

A call of C code that reads or writes JSON holds the interpreter's lock to its end, in whichever thread it runs, and the
event loop waits: 100 ms for 32 MiB. Long texts, of which such bodies consist, are therefore set aside before the rest
is parsed, and each is read and written piece by piece. Between two pieces other threads run.
"""

import ctypes
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from pydantic_core import from_json, to_json

from app.errors import TooLarge

LONG_BODY = 16 * 1024
"""Bytes. Shorter JSON is read on the event loop: that takes milliseconds at most."""

LONG_TEXT = 2048
"""Bytes, or characters, of a text that is set aside."""

_PIECE = 64 * 1024
"""Bytes, or characters, that are read or written at a time."""

_LONG_LIST, _ITEMS = 64, 4096
"""Numbers in a list that is set aside when it is written, and those that are written at a time."""

_LONGEST_JOIN = 2 * 1024 * 1024
"""Bytes. Joining takes half a millisecond per MiB of memory, and a text may take four times its bytes."""

_QUOTE = b'"'[0]
_SHORT = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_CHARACTERS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+", re.DOTALL
)
_CONTAINERS = frozenset({dict, list, str})

CheckText = Callable[[Sequence[str], int], None]
"""Checks a long text by the names of the members in which it lies, the innermost last, and by its bytes."""


def _any_text(names: Sequence[str], size: int) -> None:
    """Every text may stand everywhere."""


class Outline(bytes):
    """A JSON text in which marks stand for the long texts. It is as valid as the JSON text itself, except for what is
    wrong in a long text: `restored` finds that.

    `size`: of the JSON text itself, in bytes.
    """

    size: int
    _whole: bytes
    _places: dict[str, tuple[int, int]]

    @classmethod
    def from_json(cls, whole: bytes) -> "Outline | bytes":
        """The outline of a JSON text, or the text itself if it has no long texts."""
        places = list(_long_texts(whole))
        if not places:
            return whole
        prefix = f"text-{secrets.token_hex(8)}-"  # no client can know it
        marks = [f"{prefix}{number}" for number in range(len(places))]
        parts: list[bytes | memoryview] = []
        view, at = memoryview(whole), 0
        for mark, (start, end) in zip(marks, places, strict=True):
            parts += (view[at:start], mark.encode())
            at = end
        outline = cls(b"".join([*parts, view[at:]]))
        outline.size, outline._whole = len(whole), whole
        outline._places = dict(zip(marks, places, strict=True))
        return outline

    def is_mark(self, text: object) -> bool:
        """Whether a text of the outline stands for a long one."""
        return isinstance(text, str) and text in self._places

    def restored(self, value: Any, check: CheckText) -> Any:
        """`value`, which was read from the outline, with the long texts in it. Raises ValueError, and what `check` of
        each long text raises.
        """
        root = [value]
        pending: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
        while pending:
            container, names = pending.pop()
            for place, part, names_here in self._parts(container, names):
                if isinstance(part, str):
                    container[place] = self._text(part, names_here, check)
                else:
                    pending.append((part, names_here))
        return root[0]

    def _parts(self, container: Any, names: tuple[str, ...]) -> list[tuple[Any, Any, tuple[str, ...]]]:
        """The containers and marks in a container: their places, themselves, and the members in which they lie."""
        if isinstance(container, dict):
            if not self._places.keys().isdisjoint(container):
                raise ValueError(f"the name of a member has more than {LONG_TEXT} bytes")
            return [(name, part, (*names, name)) for name, part in container.items() if self._is_changed(part)]
        if _CONTAINERS.isdisjoint(map(type, container)):
            return []
        return [(index, part, names) for index, part in enumerate(container) if self._is_changed(part)]

    def _is_changed(self, part: Any) -> bool:
        return part in self._places if isinstance(part, str) else isinstance(part, dict | list)

    def _text(self, text: str, names: Sequence[str], check: CheckText) -> str:
        start, end = self._places[text]
        check(names, end - start)
        return _read(self._whole, start, end)


def size_of(body: bytes) -> int:
    """The bytes of a JSON text, of which there may be only an `Outline`."""
    return body.size if isinstance(body, Outline) else len(body)


def cost_of(body: bytes) -> int:
    """The bytes of JSON without long texts that are written as fast: a long text is copied."""
    return len(body) + (body.size - len(body)) // _TEXT if isinstance(body, Outline) else len(body)


_TEXT = 16


def parsed(body: bytes, check: CheckText = _any_text) -> Any:
    """The value of a JSON text, or of the text of an `Outline`. Raises ValueError, and what `check` raises."""
    if not isinstance(body, Outline):
        return _value(body)
    try:
        return body.restored(_value(body), check)
    except ValueError as error:
        raise ValueError(str(error).partition(" at line ")[0]) from None  # of the outline, or of a piece


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LONG_VALUE = 256 * 1024
"""Bytes. To read as many numbers takes two milliseconds."""


def _value(body: bytes) -> Any:
    """The value of a JSON text, whose members are read one at a time if it is long. Raises ValueError."""
    if len(body) > _LONG_VALUE:
        with suppress(ValueError, RecursionError):  # `_from_json` says better where the error is
            return {name: _member(bytes(value)) for name, value in _MEMBERS.decode(body).items()}
    return _from_json(body)


def _from_json(text: bytes) -> Any:
    """The value of a JSON text, read in one call. Raises ValueError."""
    # A cache of all texts makes a list of 400,000 different ones take three times as long: 80 ms.
    return from_json(text, allow_inf_nan=False, cache_strings="keys")


def _member(text: bytes) -> Any:
    """The value of a JSON text: a long list of numbers, such as token ids, piece by piece."""
    if not has_only_numbers(text):
        return _from_json(text)
    items: list[Any] = []
    at = 1
    while at > 0:
        comma = text.find(b",", at + _PIECE)
        piece = text[at:comma] if comma > 0 else text[at : text.rindex(b"]")]
        items += _from_json(b"[%b]" % piece)
        at = comma + 1
    return items


def has_only_numbers(text: bytes) -> bool:
    """Whether a JSON text is a list without texts, lists and objects in it."""
    return text.startswith(b"[") and all(text.find(mark, 1) < 0 for mark in (b"{", b"[", b'"'))


def with_marks(body: bytes) -> Any:
    """The value of a JSON text, or that of an `Outline` as it is: with marks for the long texts. Raises ValueError."""
    return _value(body)


_ITEM = rb'\s*+(?:"(?:[^"\\]++|\\.)*+"|[^"\[\]{},\s]++)\s*+,'
_ITEMS_AT_ONCE = 4096
_MANY_ITEMS = re.compile(b"(?:%b){%d}" % (_ITEM, _ITEMS_AT_ONCE), re.DOTALL)


def has_more_items(text: bytes, most: int) -> bool:
    """Whether a JSON list has more than `most` items: of texts, no more than those are looked at. Raises ValueError."""
    at, left = 1, most
    while left >= _ITEMS_AT_ONCE and (items := _MANY_ITEMS.match(text, at)) is not None:
        at, left = items.end(), left - _ITEMS_AT_ONCE
    if left < _ITEMS_AT_ONCE and _items(left).match(text, at) is not None:
        return True
    return len(_from_json(text)) > most


@lru_cache
def _items(count: int) -> re.Pattern[bytes]:
    """So many items, and a comma behind each."""
    return re.compile(b"(?:%b){%d}" % (_ITEM, count), re.DOTALL)


def _long_texts(whole: bytes) -> Iterator[tuple[int, int]]:
    """Where the long texts begin and end, without their quotes. One that does not end is none."""
    at = 0
    while at < len(whole):
        end = _end(_SHORT, whole, at, at + LONG_TEXT)
        if end == at:  # here begins a text that does not end within as many bytes
            end = _end_of_text(whole, at + 1)
            if end < 0:
                return
            yield at + 1, end
            end += 1
        at = end


def _end_of_text(whole: bytes, start: int) -> int:
    """Where the quote is that ends the text; -1 if there is none."""
    quote = whole.find(b'"', start)
    if quote < 0 or whole.find(b"\\", start, quote) < 0:
        return quote
    at = start
    while at < len(whole):
        end = _end(_IN_TEXT, whole, at, at + _PIECE)
        if end < len(whole) and whole[end] == _QUOTE:
            return end
        if end == at:  # a backslash is the last byte
            break
        at = end
    return -1


def _end(pattern: re.Pattern[bytes], whole: bytes, start: int, end: int) -> int:
    match = pattern.match(whole, start, end)
    assert match is not None, "it matches nothing, too"
    return match.end()


def _read(whole: bytes, start: int, end: int) -> str:
    """The text between two quotes. Raises ValueError."""
    if end - start <= _PIECE:
        return _piece(whole, start, end)
    pieces = list(_pieces(whole, start, end))
    if end - start <= _LONGEST_JOIN:
        return "".join(_piece(whole, *piece) for piece in pieces)
    length = widest = 0
    for piece in pieces:
        text = _piece(whole, *piece)
        length, widest = length + len(text), max(widest, _widest(text))
    return _joined((_piece(whole, *piece) for piece in pieces), length, widest)  # twice, for they may take much memory


def _pieces(whole: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces of the text, none of which ends within a character or its escape."""
    while start < end:
        stop = min(start + _PIECE, end)
        if stop < end:
            if whole.find(b"\\", start, stop) >= 0:
                stop = _end(_CHARACTERS, whole, start, stop)
            for _ in range(3):
                if stop > start and whole[stop] & 0xC0 == 0x80:
                    stop -= 1
        if stop == start:  # nothing valid begins here: the error is in the piece
            stop = min(start + _PIECE, end)
        yield start, stop
        start = stop


def _piece(whole: bytes, start: int, end: int) -> str:
    text: str = from_json(b'"%b"' % whole[start:end])
    return text


def _widest(text: str) -> int:
    """The largest code point of the width that Python chooses for the text."""
    if text.isascii():
        return 0x7F
    if len(text.encode("utf-16-le")) > 2 * len(text):
        return 0x10FFFF
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return 0xFFFF
    return 0xFF


def _joined(texts: Iterator[str], length: int, widest: int) -> str:
    """The texts as one, of this length. `str.join` would fill all of the memory in one call: 128 MiB, if a text of
    32 MiB has a single emoji.
    """
    python = ctypes.pythonapi
    new = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_uint32)(("PyUnicode_New", python))
    copy = ctypes.PYFUNCTYPE(
        ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.py_object, ctypes.c_ssize_t, ctypes.c_ssize_t
    )(("PyUnicode_CopyCharacters", python))
    release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", python))
    address = new(length, widest)
    try:
        at = 0
        for text in texts:
            at += copy(address, at, text, 0, len(text))
        joined: str = ctypes.cast(address, ctypes.py_object).value
    finally:
        release(address)
    return joined


def written(value: Any) -> bytes:
    """Compact JSON, as `to_json` writes it."""
    prefix = f"text-{secrets.token_hex(8)}-"
    aside: list[str | list[Any]] = []
    outline = to_json(_outlined(value, prefix, aside))
    if not aside:
        return outline
    parts: list[bytes] = []
    at = 0
    for number, long in enumerate(aside):
        mark = f"{prefix}{number}".encode()
        place = outline.index(mark, at)
        quote = isinstance(long, list)  # which a list has not
        parts.append(outline[at : place - quote])
        parts += _list_pieces(long) if isinstance(long, list) else _text_pieces(long)
        at = place + len(mark) + quote
    return b"".join([*parts, outline[at:]])  # it lets other threads run


def _text_pieces(text: str) -> Iterator[bytes]:
    return (to_json(text[start : start + _PIECE])[1:-1] for start in range(0, len(text), _PIECE))


def _list_pieces(items: list[Any]) -> Iterator[bytes]:
    for start in range(0, len(items), _ITEMS):
        yield b"," if start else b"["
        yield to_json(items[start : start + _ITEMS])[1:-1]
    yield b"]"


def _outlined(value: Any, prefix: str, aside: list[str | list[Any]]) -> Any:
    """The value with marks for its long texts and lists of numbers, which are appended to `aside` in their order."""
    if isinstance(value, str):
        return value if len(value) <= LONG_TEXT else _marked(value, prefix, aside)
    if isinstance(value, dict):
        return {name: _outlined(part, prefix, aside) for name, part in value.items()}
    if isinstance(value, list):
        if not _CONTAINERS.isdisjoint(map(type, value)):
            return [_outlined(part, prefix, aside) for part in value]
        return value if len(value) <= _LONG_LIST else _marked(value, prefix, aside)
    return value


def _marked(value: str | list[Any], prefix: str, aside: list[str | list[Any]]) -> str:
    aside.append(value)
    return f"{prefix}{len(aside) - 1}"


# What a JSON text would take once it is parsed is told from its bytes: no value is made.
#
# Parsing holds the interpreter's lock, and an empty object of two bytes takes 64: without a bound on values, a body of
# some megabytes stops every other request for seconds. Texts, which are cheap, are bounded by the body's size alone.

MOST_VALUES = 400_000
"""The default bound on `weight`."""

_DEAR = 8
"""The values that an object, an array, and a member of an object count as each."""

_LONG_NUMBER_DIGITS, _LONG_NUMBER = 19, 16
"""The digits from which an integer may need more than 64 bits, and the values that each so many of them count as: to
write such an integer takes sixteen times as long as another one.
"""

_MOST_DIGITS = 500
"""Numbers of thousands of digits take quadratic time. Twice as many digits are always refused."""

_MOST_ESCAPES = 4_000_000
"""Texts with escapes are read character by character."""

_LONGEST_OUTLINE = 16 * 1024 * 1024
"""Bytes besides long texts: they are parsed in one call, at some 500 MiB/s."""
_MARK = b'\0"'
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_LONG_NUMBER = b"0" * _MOST_DIGITS
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BACKSLASHES = re.compile(rb"\\*+")


_MAGNITUDES = bytes.maketrans(b"123456789E", b"0" * 9 + b"e")
_LONG_INTEGER = b"0" * _LONG_NUMBER_DIGITS
_LONGEST_MARK = len(_LONG_INTEGER)


def may_have_large_number(text: bytes) -> bool:
    """Whether a JSON text may have an integer of more than 64 bits, or a number that is infinite once it is read. One
    in a text is as good: most bodies have none, and to look takes a microsecond per KiB."""
    for at in range(0, len(text), _PIECE):
        piece = text[at : at + _PIECE + _LONGEST_MARK].translate(_MAGNITUDES)
        if piece.find(_LONG_INTEGER) >= 0:  # `find`, not `in`: see `app.sse.has_comment`
            return True
        if piece.find(b"0e") >= 0 and (b"0e000" in piece or b"0e+000" in piece):
            return True
    return False


def weight(text: bytes, *, piece_size: int = _PIECE) -> int:
    """The values in a JSON text, where each object, array and member counts as eight, and a long number as sixteen;
    those in strings count too.
    """
    long_numbers = sum(piece.count(b"0" * _LONG_NUMBER_DIGITS) for piece in _digits(text, piece_size))
    dear = text.count(b"{") + text.count(b"[") + text.count(b":")
    return text.count(b",") + _DEAR * dear + _LONG_NUMBER * long_numbers


def outlined(text: bytes, most_values: int = MOST_VALUES) -> bytes:
    """The outline of a long JSON text, a short one itself. Raises TooLarge as `check_size` does, and for escapes."""
    if len(text) > _PIECE:
        if text.count(b"\\") > _MOST_ESCAPES:
            raise TooLarge(f"The body has more than {_MOST_ESCAPES} escaped characters")
        text = Outline.from_json(text)
        if len(text) > _LONGEST_OUTLINE:
            raise TooLarge(f"The body has more than {_LONGEST_OUTLINE} bytes besides long texts")
    check_size(text, most_values)
    return text


def check_size(text: bytes, most_values: int = MOST_VALUES, *, piece_size: int = _PIECE) -> None:
    """Raises TooLarge if the JSON text has more than `most_values`, or a number that is expensive to read.

    Takes some milliseconds per MiB, without a long call that holds the interpreter's lock: it reads `piece_size` bytes
    at a time.
    """
    if len(text) * _DEAR <= most_values:
        return
    if weight(text, piece_size=piece_size) <= most_values and not _has_long_number(text, piece_size):
        return
    values = 0
    for piece in _without_strings(text, piece_size):
        values += weight(piece, piece_size=piece_size)
        if values > most_values:
            raise TooLarge(
                f"The body has more than {most_values} values, where an object, array or member counts as {_DEAR}, "
                f"and {_LONG_NUMBER_DIGITS} digits of a number as {_LONG_NUMBER}"
            )
        if _has_long_number(piece, piece_size):
            raise TooLarge(f"The body has a number of more than {_MOST_DIGITS} digits")


def _has_long_number(text: bytes, piece_size: int) -> bool:
    return any(_TOO_LONG_NUMBER in piece for piece in _digits(text, piece_size, _MOST_DIGITS))


def _digits(text: bytes, piece_size: int, overlap: int = 0) -> Iterator[bytes]:
    """The text in pieces, each with `overlap` bytes of the next one, and a 0 for every digit."""
    for start in range(0, len(text), piece_size):
        yield text[start : start + piece_size + overlap].translate(_DIGITS)


def _without_strings(text: bytes, piece_size: int) -> Iterator[bytes]:
    """The text in pieces, without what is in quotes."""
    at, is_in_string = 0, False
    while at < len(text):
        # A piece does not end between a backslash and what it escapes.
        end = _BACKSLASHES.match(text, at + piece_size).end() if at + piece_size < len(text) else len(text)  # type: ignore[union-attr]
        if end < len(text) and text[end - 1] == ord("\\"):
            end += 1
        piece, at = text[at:end], end
        if is_in_string:
            closing = _REST_OF_STRING.match(piece).end()  # type: ignore[union-attr]
            if closing == len(piece):
                continue
            piece = piece[closing + 1 :]
        # A string that goes on in the next piece ends with the mark; otherwise the mark stays.
        outside = _STRING.sub(b"", piece + _MARK)
        is_in_string = not outside.endswith(_MARK)
        yield outside.removesuffix(_MARK)
