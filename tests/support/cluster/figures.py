"""The figures of a run, as the table that docs/internals/cluster-measured.md quotes."""

from dataclasses import dataclass, field
from pathlib import Path

BEGIN, END = "<!-- figures of make cluster -->", "<!-- end of the figures -->"


@dataclass
class Figures:
    """Rows in the order in which they were added: the action and the measurement."""

    rows: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, seen: str) -> None:
        """One row; a later one with the same title takes its place."""
        self.rows[what] = seen

    def table(self) -> str:
        """In Markdown."""
        lines = [f"| {what} | {seen} |" for what, seen in self.rows.items()]
        return "\n".join(["| what | seen |", "| --- | --- |", *lines])

    def write(self, document: Path) -> None:
        """Puts the table between the document's markers."""
        before, _, rest = document.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        assert after, f"{document} has no markers"
        document.write_text(f"{before}{BEGIN}\n{self.table()}\n{END}{after}")
