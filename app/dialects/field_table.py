"""The tables in docs/use-with: every field of a dialect's requests and how it is supported, made of its models.

python -m app.dialects.field_table docs/use-with
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.dialects.base import Dialect
from app.dialects.bodies import IDLE
from app.dialects.registry import DIALECTS
from app.dialects.schemas import VLLM, FieldSupport, dialect_support
from app.markdown import with_part

MISSPELT = "rejected, with the name that was meant"
"""The support of nested fields that `app.dialects.bodies` takes for misspelt."""

NO_EFFECT = "no effect, where they are accepted"

_OBJECTS: Mapping[str, str] = {
    "message": "messages",
    "item": "items of an `input`",
    "part": "parts and blocks",
    "url": "`image_url`",
    "call": "calls of tools",
    "tool": "tools",
    "function": "functions",
    "format": "formats",
    "json_schema": "`json_schema`",
    "text": "`text`",
    "reasoning": "`reasoning`",
    "output_config": "`output_config`",
    "stream_options": "`stream_options`",
}
"""What the docs call the kinds of objects with fields that change nothing."""

BEGIN, END = "<!-- fields: begin (made by `make fields`) -->", "<!-- fields: end -->"


@dataclass(frozen=True, slots=True)
class SupportRow:
    """Fields with the same support in the same operations."""

    operations: str
    fields: str
    support: str

    def __str__(self) -> str:
        return f"| {self.operations} | {self.fields} | {self.support} |"


def rows(support: FieldSupport, unknown_fields: str, unknown_nested: str) -> Iterator[SupportRow]:
    """First what vLLM does itself, then the other fields by name, then unknown ones, and those of nested objects."""
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for field in sorted({field for sentences in support.values() for field in sentences}):
        for sentence, same_in in _operations(field, support).items():
            grouped.setdefault((sentence, tuple(same_in)), []).append(field)
    # Stable: rows of the same rank stay in the order of their first fields.
    for (sentence, operations), fields in sorted(grouped.items(), key=lambda item: item[0][0] != VLLM):
        where = "all" if len(operations) == len(support) else ", ".join(operations)
        yield SupportRow(where, _listed(fields), sentence)
    yield SupportRow("all", "any other", unknown_fields)
    yield SupportRow(
        "all", "; ".join(f"of {_OBJECTS[kind]}: {_listed(names)}" for kind, names in IDLE.items()), NO_EFFECT
    )
    yield SupportRow("all", "a misspelt field of a nested object", MISSPELT)
    yield SupportRow("all", "any other field of a nested object", unknown_nested)


def _listed(fields: Iterable[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


def _operations(field: str, support: FieldSupport) -> dict[str, list[str]]:
    """Each sentence about a field, and the operations where it holds."""
    grouped: dict[str, list[str]] = {}
    for operation, sentences in support.items():
        if field in sentences:
            grouped.setdefault(sentences[field], []).append(operation)
    return grouped


def table(dialect: Dialect) -> str:
    """A Markdown table."""
    head = ["| requests | fields | support |", "| --- | --- | --- |"]
    support = dialect_support(dialect.bodies)
    return "\n".join([*head, *map(str, rows(support, dialect.unknown_fields, dialect.unknown_nested))])


def updated(text: str, dialect: Dialect) -> str:
    """`text` with the dialect's table between the two marks. Raises ValueError if they are missing."""
    return with_part(text, BEGIN, END, table(dialect))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.dialects.field_table")
    parser.add_argument("folder", type=Path, help="the folder of the pages, <dialect>.md, which have the marks")
    folder: Path = parser.parse_args(argv).folder
    for dialect in DIALECTS:
        page = folder / f"{dialect.name}.md"
        page.write_text(updated(page.read_text(), dialect))
    return 0


if __name__ == "__main__":
    sys.exit(main())
