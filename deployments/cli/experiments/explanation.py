"""An assignment as text."""

from collections.abc import Mapping
from typing import Any

from deployments.cli.table import table


def explanation(assignment: Mapping[str, Any]) -> str:
    """The deployment that answers and why, then every deployment's weight and score."""
    name = assignment["deployment"]
    lines = [f"{assignment['endpoint']}: {name or 'drawn for each request'}", assignment["why"], ""]
    rows = [
        [
            it["deployment"],
            f"{it['weight']} %",
            "-" if it["score"] is None else f"{it['score']:.3f}",
            "open" if it["breaker_open"] else "closed",
        ]
        for it in assignment["deployments"]
    ]
    lines.append(table(["DEPLOYMENT", "WEIGHT", "SCORE", "BREAKER"], rows))
    lines += ["", f"Plan {assignment['plan']}"]
    if assignment["unit"] is not None:
        lines[-1] += f", unit {assignment['unit']}"
    return "\n".join(lines)
