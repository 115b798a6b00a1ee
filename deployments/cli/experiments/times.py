"""Moments on the command line."""

from datetime import UTC, datetime

from deployments.cli.errors import CommandError, ExitCode


def moment(text: str, option: str) -> float:
    """Unix seconds of a date, a time (UTC unless it has a zone) or Unix seconds. Raises CommandError."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        message = f"{option} '{text}': expected a date, a time or Unix seconds: 2026-11-12, 2026-11-12T16:00"
        raise CommandError(message, ExitCode.USAGE) from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
