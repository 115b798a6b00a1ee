"""The exit codes of `switchyard experiments report --check`, for pipelines."""

from enum import IntEnum


class Check(IntEnum):
    """A decision as an exit code. Anything that prevents a report exits with 1, a wrong command line with 2."""

    SHIP = 0
    NO_REPORT = 1
    DO_NOT_SHIP = 2
    KEEP_GOING = 3
    INVALID = 4


def check_of(decision: str) -> Check:
    """The exit code of a report's decision."""
    return Check[decision.upper()]
