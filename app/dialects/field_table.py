"""The README's table of all dialects' fields and how each is honoured, made of the dialects' own.

python -m app.dialects.field_table README.md
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.dialects.anthropic import support as anthropic_honoured
from app.dialects.azure import support as azure_honoured
from app.dialects.common.support import VLLMS, FieldSupport
from app.dialects.databricks import support as databricks_honoured
from app.dialects.friendli import support as friendli_honoured
from app.dialects.openai import support as openai_honoured
from app.dialects.tgi import support as tgi_honoured

BEGIN, END = "<!-- fields: begin (made by `make fields`) -->", "<!-- fields: end -->"


@dataclass(frozen=True, slots=True)
class DialectFields:
    """A dialect's fields by operation; `others` says what becomes of one that it does not know."""

    name: str
    honoured: FieldSupport
    others: str


DIALECTS: Sequence[DialectFields] = (
    DialectFields("OpenAI", openai_honoured.HONOURED, openai_honoured.OTHERS),
    DialectFields("Anthropic", anthropic_honoured.HONOURED, anthropic_honoured.OTHERS),
    DialectFields("Azure", azure_honoured.HONOURED, azure_honoured.OTHERS),
    DialectFields("Databricks", databricks_honoured.HONOURED, databricks_honoured.OTHERS),
    DialectFields("TGI", tgi_honoured.HONOURED, tgi_honoured.OTHERS),
    DialectFields("Friendli", friendli_honoured.HONOURED, friendli_honoured.OTHERS),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Fields of which the same holds in the same operations."""

    dialect: str
    operations: str
    fields: str
    line: str

    def __str__(self) -> str:
        return f"| {self.dialect} | {self.operations} | {self.fields} | {self.line} |"


def rows(dialect: DialectFields) -> Iterator[Row]:
    """What the engine does itself first, then the special ones by their names, and what is unknown."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for field in sorted({field for lines in dialect.honoured.values() for field in lines}):
        for line, told_of in _operations(field, dialect.honoured).items():
            found.setdefault((line, tuple(told_of)), []).append(field)
    # Stable: what has the same rank stays in the fields' order.
    for (line, operations), fields in sorted(found.items(), key=lambda item: item[0][0] != VLLMS):
        where = "all" if len(operations) == len(dialect.honoured) else ", ".join(operations)
        yield Row(dialect.name, where, ", ".join(f"`{field}`" for field in fields), line)
    yield Row(dialect.name, "all", "any other", dialect.others)


def _operations(field: str, honoured: FieldSupport) -> dict[str, list[str]]:
    """Each line of a field, and the operations where it holds."""
    found: dict[str, list[str]] = {}
    for operation, lines in honoured.items():
        if field in lines:
            found.setdefault(lines[field], []).append(operation)
    return found


def table() -> str:
    """One Markdown table of all dialects."""
    head = ["| dialect | requests | fields | how |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *(str(row) for dialect in DIALECTS for row in rows(dialect))])


def updated(text: str) -> str:
    """`text` with the table between its two marks. Raises ValueError where they are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no line {BEGIN} with a line {END} after it")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.dialects.field_table")
    parser.add_argument("file", type=Path, help="the Markdown file that has the marks")
    file: Path = parser.parse_args(argv).file
    file.write_text(updated(file.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
