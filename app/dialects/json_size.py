"""What a JSON text would take once it is parsed, told from its bytes: no value is made.

Parsing holds the interpreter's lock, and an empty object of two bytes takes 64: without a bound on values, a body of
some megabytes stops every other request for seconds. Texts, which are cheap, are bounded by the body's size alone.
"""

import re
from collections.abc import Iterator

from app.errors import TooLarge
from app.long_json import Outline

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

_PIECE = 64 * 1024
_MARK = b'\0"'
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_LONG_NUMBER = b"0" * _MOST_DIGITS
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BACKSLASHES = re.compile(rb"\\*+")


def weight(text: bytes) -> int:
    """The values in a JSON text, where each object, array and member counts as eight, and a long number as sixteen;
    those in strings count too.
    """
    long_numbers = sum(piece.count(b"0" * _LONG_NUMBER_DIGITS) for piece in _digits(text))
    dear = text.count(b"{") + text.count(b"[") + text.count(b":")
    return text.count(b",") + _DEAR * dear + _LONG_NUMBER * long_numbers


def outlined(text: bytes, most_values: int = MOST_VALUES) -> bytes:
    """The outline of a long JSON text, a short one itself. Raises TooLarge as `check_size` does, and for escapes."""
    if len(text) > _PIECE:
        if text.count(b"\\") > _MOST_ESCAPES:
            raise TooLarge(f"The body has more than {_MOST_ESCAPES} escaped characters")
        text = Outline.of(text)
        if len(text) > _LONGEST_OUTLINE:
            raise TooLarge(f"The body has more than {_LONGEST_OUTLINE} bytes besides long texts")
    check_size(text, most_values)
    return text


def check_size(text: bytes, most_values: int = MOST_VALUES) -> None:
    """Raises TooLarge if the JSON text has more than `most_values`, or a number that is expensive to read.

    Takes some milliseconds per MiB, without a long call that holds the interpreter's lock.
    """
    if len(text) * _DEAR <= most_values:
        return
    if weight(text) <= most_values and not _has_long_number(text):
        return
    values = 0
    for piece in _without_strings(text):
        values += weight(piece)
        if values > most_values:
            raise TooLarge(
                f"The body has more than {most_values} values, where an object, array or member counts as {_DEAR}, "
                f"and {_LONG_NUMBER_DIGITS} digits of a number as {_LONG_NUMBER}"
            )
        if _has_long_number(piece):
            raise TooLarge(f"The body has a number of more than {_MOST_DIGITS} digits")


def _has_long_number(text: bytes) -> bool:
    return any(_TOO_LONG_NUMBER in piece for piece in _digits(text, _MOST_DIGITS))


def _digits(text: bytes, overlap: int = 0) -> Iterator[bytes]:
    """The text in pieces, each with so many bytes of the next one, and a 0 for every digit."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE + overlap].translate(_DIGITS)


def _without_strings(text: bytes) -> Iterator[bytes]:
    """The text in pieces, without what is in quotes."""
    at, is_in_string = 0, False
    while at < len(text):
        # A piece does not end between a backslash and what it escapes.
        end = _BACKSLASHES.match(text, at + _PIECE).end() if at + _PIECE < len(text) else len(text)  # type: ignore[union-attr]
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
