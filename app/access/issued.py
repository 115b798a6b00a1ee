"""Keys that managers have created over the API, as the controller of experiments keeps them and routers read them."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from pydantic import ValidationError

from app.access.keys import KeyRecord


class IssuedKey(msgspec.Struct, frozen=True):
    """A key without its secret: `record` is a `KeyRecord` as plain data, which has the secret's salted hash."""

    id: str
    name: str
    record: dict[str, Any]
    created_at: float
    """Unix seconds."""
    created_by: str
    """The manager's name."""

    @property
    def revision(self) -> str:
        """A hash of its content, for `If-Match`."""
        return hashlib.blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=8).hexdigest()


class IssuedKeys(msgspec.Struct, frozen=True):
    """Every issued key; `keys` is None for a reader that has this revision already."""

    revision: str
    keys: list[IssuedKey] | None


class KeyChange(msgspec.Struct, frozen=True):
    """A new key, or one in place of what the key `expected` (a revision; "" for a new key, "*" for whatever is there)
    names. `key` is None to revoke it."""

    id: str
    expected: str
    key: IssuedKey | None


def revision_of(keys: Iterable[IssuedKey]) -> str:
    """The revision of them all."""
    together = "".join(sorted(key.revision for key in keys))
    return hashlib.blake2b(together.encode(), digest_size=8).hexdigest()


def records_of(keys: Iterable[IssuedKey]) -> list[KeyRecord]:
    """The valid records among the keys: of a name that two have, the older one's. Others are of another version, and
    admit nobody."""
    records: dict[str, KeyRecord] = {}
    for key in sorted(keys, key=lambda key: key.created_at):
        try:
            record = KeyRecord.model_validate(key.record)
        except ValidationError:
            continue
        records.setdefault(record.name, record)
    return list(records.values())
