"""API keys for callers: created here, printed once, kept only as a hash."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.access.api_keys import create
from app.access.key_file import append
from app.config.access import Limits
from app.config.base import ConfigError
from deployments.cli.errors import CommandError, ExitCode


@dataclass(frozen=True)
class NewKey:
    """`key` is shown once; `line` is its record for a keys file, without the key."""

    key: str
    line: str
    record_id: str


def create_key(
    name: str,
    file: Path | None,
    *,
    prefix: str,
    endpoints: list[str],
    expires: datetime | None,
    limits: dict[str, int],
) -> NewKey:
    """Creates a key and appends its record to `file`, which running routers reread. Raises CommandError."""
    try:
        key, record = create(
            name, prefix=prefix, endpoints=endpoints, expires=expires, limits=Limits(**limits) if limits else None
        )
        if file is not None:
            append(file, record.line)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    return NewKey(key, record.line, record.id)


def expiry(text: str, now: datetime) -> datetime:
    """`90d`, a date, or a time (UTC unless it has a zone). Raises CommandError for anything else and for the past."""
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return (now + timedelta(days=int(days[1]))).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"--expires '{text}': expected a number of days, a date or a time: 90d, 2030-01-31"
        raise CommandError(message, ExitCode.USAGE) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment <= now:
        raise CommandError(f"--expires '{text}' has passed; name a later date", ExitCode.USAGE)
    return moment
