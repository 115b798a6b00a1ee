"""The token ids of a long text, piece by piece: its encoding as a whole takes hundreds of times its memory.

A tokenizer splits a text into words before it looks at the vocabulary, from left to right and without a look behind. A
piece that begins with a word thus has the ids that it has in the whole text. Each piece ends some words before its
window does, and those words must have the same ids at the next one's beginning.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 16 * 1024
"""Characters that are encoded at once: milliseconds, and a few megabytes."""

_MARGIN = 256
"""Characters before a window's end whose words may be others in the whole text."""

LONGEST_WORD = 32 * 1024
"""Characters. A longer piece without two words takes too much memory, and is no text."""

MOST_CHARACTERS = 256 * 1024
"""Of a text that is tokenized, unless the model's context holds more; and of a word, where a tokenizer takes every text
for one."""

MOST_TOKENS = 128 * 1024
"""Of such a text, unless the model's context holds more, and of one that an engine puts together from its tokens: a
quarter of a second, and ten megabytes at most."""

Encode = Callable[[str], Any]
"""A text's `tokenizers.Encoding`, without special tokens."""


class Unsplittable(ValueError):
    """The text has a word of more than `longest` characters: its encoding would take too much memory."""

    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self.longest = longest


@dataclass(frozen=True, slots=True)
class Piece:
    """The ids of a part of a text, which begins at the character `start`. `encoding` may have more behind them."""

    ids: Sequence[int]
    encoding: Any
    start: int = 0

    @property
    def offsets(self) -> Sequence[tuple[int, int]]:
        """The characters of the whole text that each id covers."""
        own: Sequence[tuple[int, int]] = self.encoding.offsets[: len(self.ids)]
        return [(self.start + begin, self.start + end) for begin, end in own] if self.start else own


def pieces(text: str, encode: Encode, *, longest: int, size: int = WINDOW) -> Iterator[Piece]:
    """The pieces of `text` in order, one at least, of `size` characters at most, unless a word is longer.

    Raises Unsplittable for a word that may be longer than `longest` characters.
    """
    start, expected = 0, list[int]()
    while True:
        window = _window(text, start, encode, size, longest)
        ids = window.encoding.ids
        if ids[: min(window.count, len(expected))] != expected[: window.count]:
            raise Unsplittable(longest)
        yield Piece(ids[: window.count], window.encoding, start)
        if window.count == len(ids):
            return
        expected = ids[window.count : window.certain]
        start += window.end(window.count - 1)


class _Window:
    """The encoding of `size` characters of a text. `count` ids are a piece; 0: none, the window must be larger."""

    def __init__(self, encoding: Any, text: str, *, is_last: bool) -> None:
        self.encoding = encoding
        self._text = text
        self.count = len(encoding) if is_last else self._words_before(len(text) - 2 * _MARGIN)

    @property
    def certain(self) -> int:
        """The number of ids in words that end before the margin."""
        return self._words_before(len(self._text) - _MARGIN)

    def end(self, at: int) -> int:
        """The character behind the id at the index `at`."""
        end: int = self.encoding.token_to_chars(at)[1]
        return end

    def _words_before(self, character: int) -> int:
        """The number of ids before the last word that begins before `character`, and where another may begin."""
        word = self.encoding.token_to_word
        for count in range(len(self.encoding) - 1, 0, -1):
            begin, end = self.encoding.token_to_chars(count)[0], self.end(count - 1)
            # Some tokenizers leave a word's space out of its characters.
            if begin <= character and word(count) != word(count - 1) and self._text[end:begin] in ("", " ") and end:
                return count
        return 0


def _window(text: str, start: int, encode: Encode, size: int, longest: int) -> _Window:
    while True:
        part = text[start : start + size]
        window = _Window(encode(part), part, is_last=start + size >= len(text))
        if window.count or not part:
            return window
        if size >= longest:
            raise Unsplittable(longest)
        size = min(2 * size, longest)
