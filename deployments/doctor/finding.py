"""The result of a check."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """`PROBLEM`: something fails, or will. `WARNING`: it works, but badly. `OK`: checked, nothing to do."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `area`: the subject of the check. `fix`: the remedy; empty for `OK`."""

    level: Level
    area: str
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding for `--json`."""
        return asdict(self)


def ok(area: str, message: str) -> Finding:
    """A check that passed."""
    return Finding(Level.OK, area, message)


def warning(area: str, message: str, fix: str) -> Finding:
    """Something works, but badly."""
    return Finding(Level.WARNING, area, message, fix)


def problem(area: str, message: str, fix: str) -> Finding:
    """Something fails, or will."""
    return Finding(Level.PROBLEM, area, message, fix)
