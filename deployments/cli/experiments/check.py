"""The exit codes of `switchyard experiments report --check`, for pipelines: none is one of an error's."""

from enum import IntEnum


class Check(IntEnum):
    """A decision as an exit code. Whatever prevents a report has the exit code of its error (`ExitCode`)."""

    SHIP = 0
    DO_NOT_SHIP = 10
    KEEP_GOING = 11
    INVALID = 12


def check_of(decision: str) -> Check:
    """The exit code of a report's decision."""
    return Check[decision.upper()]
