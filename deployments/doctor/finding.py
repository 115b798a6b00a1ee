"""What an examination finds."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """`PROBLEM`: something does not work, or will not. `WARNING`: it works, but not well. `OK`: looked at, and fine."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """`area` is what was looked at; `fix` what to do, empty for `OK`."""

    level: Level
    area: str
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def ok(area: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, area, message)


def warning(area: str, message: str, fix: str) -> Finding:
    """It works, but not well."""
    return Finding(Level.WARNING, area, message, fix)


def problem(area: str, message: str, fix: str) -> Finding:
    """It does not work, or will not."""
    return Finding(Level.PROBLEM, area, message, fix)
