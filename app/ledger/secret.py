"""The units' secret of a router without an internal key: made once, kept in the ledger's directory."""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from app.ledger.units import secret_of
from app.telemetry.logs import event

FILE = "unit-secret"
_SIZE = 32
_log = logging.getLogger("switchyard")


def unit_secret(internal_key: str, base: Path, ledger_url: str) -> bytes:
    """The secret from the internal key; without one, from the ledger's directory, which may be relative to `base`.

    Without a directory that can be read and written here, the secret is new in every process: the units of earlier
    processes are then other units.
    """
    if internal_key:
        return secret_of(internal_key)
    try:
        if "://" in ledger_url:
            raise OSError(f"{ledger_url} is not a directory of this machine")
        return kept_secret(base / ledger_url)
    except OSError as error:
        _log.warning(
            "The secret of experiments' units could not be kept: after a restart, users count as new ones",
            extra=event("unit_secret_not_kept", error=str(error)),
        )
        return secrets.token_bytes(_SIZE)


def kept_secret(directory: Path) -> bytes:
    """The secret in `directory`, made with mode 600 if there is none. Raises OSError.

    Processes that start together agree: a link, unlike a rename, replaces nothing.
    """
    file = directory / FILE
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        new = directory / f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as written:
                written.write(secrets.token_hex(_SIZE))
            with suppress(FileExistsError):  # another process was first
                os.link(new, file)
        finally:
            new.unlink()
    try:
        secret = bytes.fromhex(file.read_text())
    except ValueError:
        secret = b""
    if len(secret) != _SIZE:
        raise OSError(f"{file} does not hold a secret; remove it")
    return secret
