"""Creates, stores and verifies API keys.

A key is ``<prefix><id>-<secret>``, for example ``sk-sy-3f9a1c0b7d52-…``. The id (12 hexadecimal digits) is public and
finds the one record to compare with; the secret is 43 letters and digits, 256 bits from the operating system. The
prefix is free, since some clients check it (``dapi``, ``flp_``).

The record holds the salted BLAKE2b hash of the whole key. Slow password hashes make guessing costly; 256 random bits
cannot be guessed, so a fast hash is as safe and costs a microsecond per request. That is also why a key cannot be
chosen: it would be a password. Digests are compared in constant time; the response time reveals only whether an id
exists, and ids are public.

The file is a YAML list with one record a line, so that `switchyard keys create` appends, and deleting a line revokes.
"""

import hashlib
import hmac
import json
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from app.access.caller import Caller
from app.config.access import ANONYMOUS, CallerName, Limits
from app.config.base import ConfigError, Section, problems_of
from app.config.files import parse_yaml
from app.errors import Unauthorized

DEFAULT_PREFIX = "sk-sy-"
_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43  # 43 of 62 characters are 256 bits
_KEY = re.compile(rf"([0-9a-f]{{12}})-[A-Za-z0-9]{{{_SECRET_LENGTH}}}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,32}")  # without dots: a key must not look like a JWT
_INVALID_KEY = "The API key is not valid"


class KeyRecord(Section):
    """One line of the keys file: everything about a key but the key itself."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    name: CallerName
    hash: Annotated[str, StringConstraints(pattern=r"^blake2b:[0-9a-f]{32}:[0-9a-f]{64}$")] = Field(repr=False)
    endpoints: tuple[str, ...] | None = Field(default=None, min_length=1)
    expires: AwareDatetime | None = None
    limits: Limits | None = None

    @field_validator("name")
    @classmethod
    def _is_not_anonymous(cls, name: str) -> str:
        if name == ANONYMOUS:
            raise ValueError(f"'{ANONYMOUS}' is reserved for callers without a key")
        return name

    @property
    def line(self) -> str:
        """Its line in the file."""
        return f"- {json.dumps(self.model_dump(mode='json', exclude_unset=True))}\n"


_Records = TypeAdapter(tuple[KeyRecord, ...])


def create(
    name: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    endpoints: Sequence[str] = (),
    expires: datetime | None = None,
    limits: Limits | None = None,
) -> tuple[str, KeyRecord]:
    """A new key and its record. Raises ConfigError if the arguments are invalid."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(["prefix: at most 32 letters, digits, hyphens and underscores"])
    id = secrets.token_hex(6)
    key = f"{prefix}{id}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))}"
    salt = secrets.token_bytes(16)
    required = {"id": id, "name": name, "hash": f"blake2b:{salt.hex()}:{_digest(key, salt).hex()}"}
    optional = {"endpoints": tuple(endpoints) or None, "expires": expires, "limits": limits}
    try:
        record = KeyRecord.model_validate(required | {k: v for k, v in optional.items() if v is not None})
    except ValidationError as error:
        raise ConfigError(list(problems_of(error, KeyRecord))) from None
    return key, record


@dataclass(frozen=True, slots=True)
class _Entry:
    salt: bytes
    digest: bytes
    expires: float
    caller: Caller


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The valid keys, by id. `have_limits`: some of them have their own limits."""

    _entries: dict[str, _Entry] = field(default_factory=dict, repr=False)
    have_limits: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """The keys in a file's content. Raises ConfigError with every problem, without quoting the content."""
        try:
            records = _Records.validate_python(parse_yaml(text, is_secret=True) or ())
        except ValidationError as error:
            raise ConfigError(list(problems_of(error, KeyRecord, is_secret=True))) from None
        ids = [record.id for record in records]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ConfigError([f"{id}: two keys have this id; remove one" for id in twice])
        return cls({record.id: _entry(record) for record in records}, any(record.limits for record in records))

    def __len__(self) -> int:
        return len(self._entries)

    def caller(self, key: str, now: float) -> Caller:
        """The caller with this key at `now` (Unix time). Raises Unauthorized if there is none or it has expired."""
        id = _KEY.fullmatch(key[-_SECRET_LENGTH - 13 :])
        entry = self._entries.get(id[1]) if id else None
        if entry is None or not hmac.compare_digest(_digest(key, entry.salt), entry.digest):
            raise Unauthorized(_INVALID_KEY)
        if now >= entry.expires:
            raise Unauthorized(f"The API key of '{entry.caller.name}' has expired")
        return entry.caller


def _entry(record: KeyRecord) -> _Entry:
    _, salt, digest = record.hash.split(":")
    expires = record.expires.astimezone(UTC).timestamp() if record.expires else float("inf")
    endpoints = None if record.endpoints is None else frozenset(record.endpoints)
    caller = Caller(record.name, f"key-{record.id}", endpoints, record.limits)
    return _Entry(bytes.fromhex(salt), bytes.fromhex(digest), expires, caller)


def _digest(key: str, salt: bytes) -> bytes:
    data = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=32, salt=salt, person=b"switchyard key").digest()
