"""Moments on the command line."""

from app.experiments.contract.questions import unix_seconds
from deployments.cli.errors import CommandError, ExitCode


def moment(text: str, option: str) -> float:
    """Unix seconds of a date, a time (UTC unless it has a zone) or Unix seconds. Raises CommandError."""
    try:
        return unix_seconds(text)
    except ValueError:
        message = f"{option} '{text}': expected a date, a time or Unix seconds: 2026-11-12, 2026-11-12T16:00"
        raise CommandError(message, ExitCode.USAGE) from None
