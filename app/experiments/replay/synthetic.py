"""Texts of a given length, for recordings without texts. Deterministic."""

from itertools import accumulate, pairwise
from random import Random

WORDS = (
    "the of and to in is that for it was on as with be by at have from or one had but what all were when we there can "
    "an your which their said if do will each about how up out them then she many some so these would other into has "
    "more two like him time see no could make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know"
).split()
"""Frequent words: nearly every tokenizer has one token for each."""


def words(seed: str, count: int) -> list[str]:
    """This number of words, at least one. Longer texts of the same seed begin with the shorter ones."""
    return Random(seed).choices(WORDS, k=max(1, count))


def words_of_bytes(seed: str, size: int) -> list[str]:
    """As many words as have about this number of bytes, including the spaces between them."""
    found = words(seed, size // 3 + 1)
    ends = accumulate(len(word) + 1 for word in found)
    return found[: max(1, sum(end - 1 <= size for end in ends))]


def parts(text: list[str], count: int) -> list[str]:
    """The text in this number of parts of nearly the same length, at least one; fewer if a part would be empty."""
    count = max(1, min(count, len(text)))
    bounds = [len(text) * number // count for number in range(count + 1)]
    return [" ".join(text[begin:end]) for begin, end in pairwise(bounds)]
