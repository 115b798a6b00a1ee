"""A ledger directory as the source of answers."""

from pathlib import Path

from app.errors import BadRequest
from app.experiments.analysis.analysis import Analysis
from app.experiments.api import Answers
from app.experiments.recorded import RecordedLedger
from app.experiments.storage.store import StoreError
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.experiments.source import Directory


def open_directory(url: str, *, at: float | None) -> Directory:
    """Reads the ledger at `url`, a directory relative to the current one or an object store's address.

    `at`: only what had been recorded by this Unix time. Raises CommandError.
    """
    try:
        ledger = RecordedLedger(url, Path.cwd(), Analysis, at=at)
    except StoreError as error:
        raise CommandError(f"The ledger cannot be read: {error}") from None
    except BadRequest as error:
        raise CommandError(f"--at: {error}", ExitCode.USAGE) from None
    return Directory(Answers(ledger).answer)
