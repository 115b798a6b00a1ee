"""The table in docs/operate/metrics.md: what a router counts, from the help of its metrics.

python -m app.telemetry.metric_table docs/operate/metrics.md
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app.markdown import with_part
from app.telemetry.metrics import Telemetry

BEGIN, END = "<!-- metrics: begin (made by `make fields`) -->", "<!-- metrics: end -->"


def table() -> str:
    """A Markdown table, in the order of the names."""
    head = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    telemetry = Telemetry()
    rows = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} | "
        # A family that has counted nothing yet does not tell its labels: only its collector does.
        f"{', '.join(f'`{label}`' for label in getattr(collector, '_labelnames', ()))} | {family.documentation} |"
        for collector in (*telemetry.registry._collector_to_names, *telemetry.histograms)
        for family in collector.collect()
        if not family.name.startswith("process_")
    ]
    return "\n".join([*head, *sorted(rows)])


def updated(text: str) -> str:
    """`text` with the table between the two marks. Raises ValueError if they are missing."""
    return with_part(text, BEGIN, END, table())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m app.telemetry.metric_table")
    parser.add_argument("page", type=Path, help="the page, which has the marks")
    page: Path = parser.parse_args(argv).page
    page.write_text(updated(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
