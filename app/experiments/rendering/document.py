"""A document as blocks, which `text` and `markdown` lay out.

- A document as GitHub-flavoured Markdown.
- A document as plain text, the same on a terminal and in a pipe.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


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


_SPECIAL = re.compile(r"([\\`*\[\]<>|~#]|(?<!\w)_|_(?!\w))")


def markdown(blocks: Iterable[Block]) -> str:
    """The document; ends with a newline."""
    return "\n\n".join(text for block in blocks if (text := _markdown_block(block))) + "\n"


def escape(text: str) -> str:
    """`text` with markup escaped: names are never markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _markdown_block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {escape(block.text)}"
        case Paragraph():
            return "\\\n".join(escape(line) for line in block.lines)
        case Bullets():
            return "\n".join(f"- {escape(item)}" for item in block.items)
        case Table():
            rules = ["---:" if column in block.right else "---" for column in range(len(block.header))]
            rows = [[escape(cell) for cell in row] for row in (block.header, *block.rows)]
            lines = [rows[0], rules, *rows[1:]]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)


WIDTH = 100
"""The longest line."""

_GAP = "  "
_NARROWEST = 10
"""The smallest width, in characters, to which a column is wrapped."""


def text(blocks: Iterable[Block]) -> str:
    """The document: an empty line between blocks, none below a heading; ends with a newline."""
    result = ""
    gap = ""
    for block in blocks:
        if text := _text_block(block):
            result += gap + text
            gap = "\n" if isinstance(block, Heading) else "\n\n"
    return result + "\n"


def _text_block(block: Block) -> str:
    match block:
        case Heading():
            return textwrap.fill(block.text, WIDTH, break_on_hyphens=False)
        case Paragraph():
            return "\n".join(textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in block.lines)
        case Bullets():
            return "\n".join(
                textwrap.fill(item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
                for item in block.items
            )
        case Table():
            return "\n".join(table_lines(block))


def table_lines(table: Table, width: int = WIDTH) -> list[str]:
    """The table's lines, with an upper-case header: none is longer than `width`, if that is possible.

    Columns of text wrap, the widest first, and then those of numbers.
    """
    rows = [[name.upper() for name in table.header], *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        wide = [column for column, width in enumerate(widths) if width > _NARROWEST]
        if not wide:
            break
        widths[max(wide, key=lambda column: (column not in table.right, widths[column]))] -= 1
    return [line for row in rows for line in _row(row, widths, table.right)]


def _row(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        aligned = [
            part.rjust(width) if column in right else part.ljust(width)
            for column, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append(_GAP.join(aligned).rstrip())
    return lines
