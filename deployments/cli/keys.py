"""API keys for callers: created and rotated here, printed once, kept only as a hash. And the internal keys."""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from app.access.keys import KeyRecord, append, create, replace, rotated
from app.config.access import Limits
from app.config.base import ConfigError
from app.internal_api import INTERNAL_KEY_VARIABLE
from app.internal_keys import Purpose, derived, listed
from app.moments import read, shown
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.router_client import RouterClient
from deployments.cli.table import table


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
    group: str | None = None,
) -> NewKey:
    """Creates a key and appends its record to `file`, which running routers reread. Raises CommandError."""
    try:
        key, record = create(
            name,
            prefix=prefix,
            endpoints=endpoints,
            expires=expires,
            limits=Limits(**limits) if limits else None,
            group=group,
        )
        if file is not None:
            append(file, record.line)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    return NewKey(key, record.line, record.id)


def rotate_key(
    name: str, file: Path, *, prefix: str, until: datetime, expires: datetime | None, now: datetime
) -> tuple[str, datetime | None]:
    """Gives `name` a new key in `file`; returns it, and the time until which the old one works, None if it does not.
    Raises CommandError."""
    made: list[tuple[str, KeyRecord]] = []

    def change(record: KeyRecord) -> KeyRecord:
        made.append(rotated(record, now=now, until=until, expires=expires, prefix=prefix))
        return made[0][1]

    try:
        replace(file, name, change)
    except ConfigError as error:
        raise CommandError("\n".join(error.problems)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    key, record = made[0]
    return key, record.previous.expires if record.previous is not None else None


NO_KEYS = (
    "The server has no keys. It reads them from a file that its configuration names: `access: {keys_file: FILE}` "
    "in the router's `user_config`"
)


def keys_of(router: RouterClient) -> list[dict[str, Any]]:
    """The keys that a router knows, as `GET /api/callers` has them. Raises CommandError."""
    known: list[dict[str, Any]] = json.loads(router.ask("GET", "/callers"))["keys"]
    return known


def keys_table(keys: Sequence[Mapping[str, Any]]) -> str:
    """The keys for a terminal, with their ends and last uses."""
    header = ("NAME", "ENDPOINTS", "EXPIRES", "LAST USED", "PREVIOUS KEY")
    return table(header, [_row(it) for it in keys])


def _row(key: Mapping[str, Any]) -> tuple[str, ...]:
    previous = key["previous"]
    old = f"until {_time(previous['expires'])}, used {_time(previous['last_used'])}" if previous else ""
    endpoints = "all" if key["endpoints"] is None else ",".join(key["endpoints"])
    return key["caller"], endpoints, _time(key["expires"]), _time(key["last_used"]), old


def _time(at: float | None) -> str:
    return shown(at) if at is not None else "never"


def internal_keys(masters: str | None) -> Iterator[str]:
    """The entries of a cluster's Secret that concern the internal keys, one `name=value` a line: for the given masters
    in their order, or for a new one. Raises CommandError."""
    keys = listed(masters) if masters is not None else (secrets.token_hex(32),)
    if not keys:
        raise CommandError(f"{INTERNAL_KEY_VARIABLE} is empty; unset it for a new key", ExitCode.USAGE)
    yield f"internal-key={','.join(keys)}"
    yield f"engine-key={','.join(derived(key, Purpose.ENGINE) for key in keys)}"


def expiry(text: str, now: datetime, option: str = "--expires") -> datetime:
    """`90d`, a date, or a time (UTC unless it has a zone). Raises CommandError for anything else and for the past."""
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return (now + timedelta(days=int(days[1]))).replace(microsecond=0)
    try:
        moment = read(text)
    except ValueError:
        message = f"{option} '{text}': expected a number of days, a date or a time: 90d, 2030-01-31"
        raise CommandError(message, ExitCode.USAGE) from None
    if moment <= now:
        raise CommandError(f"{option} '{text}' has passed; name a later date", ExitCode.USAGE)
    return moment
