"""Markdown tables of measured numbers, with the design's in brackets."""

import math
from collections.abc import Mapping, Sequence

Cell = str | float | tuple[float, float]
"""A text, a number, or a number with the design's number."""


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], form: str, forms: Mapping[int, str] = {}) -> str:
    """`form` formats numbers; `forms` overrides it by column."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(cell, (forms or {}).get(place, form)) for place, cell in enumerate(row)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: Cell, form: str) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, tuple):
        return f"{_text(cell[0], form)} ({_text(cell[1], form)})" if math.isfinite(cell[1]) else _text(cell[0], form)
    return form.format(cell) if math.isfinite(cell) else "-"
