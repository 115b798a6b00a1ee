"""A document as blocks, which `text` and `markdown` lay out."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """`level` 1 is the document's title. What follows belongs to it."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences, each on a separate line."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """`right` are the columns of numbers, aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()


Block = Heading | Paragraph | Bullets | Table
