"""A document as GitHub-flavoured Markdown."""

import re
from collections.abc import Iterable

from app.experiments.rendering.document import Block, Bullets, Heading, Paragraph, Table

_SPECIAL = re.compile(r"([\\`*\[\]<>|~#]|(?<!\w)_|_(?!\w))")


def render(blocks: Iterable[Block]) -> str:
    """The document; ends with a newline."""
    return "\n\n".join(text for block in blocks if (text := _block(block))) + "\n"


def escape(text: str) -> str:
    """`text` with markup escaped: names are never markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _block(block: Block) -> str:
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
