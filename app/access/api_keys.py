"""API keys: how one is made, what is kept of it, how a caller's is recognised.

A key is ``<prefix><id>-<secret>``, for example ``sk-sy-3f9a1c0b7d52-…``. The id (12 hexadecimal digits) is public and
finds the one record to compare with; the secret is 43 letters and digits, 256 bits drawn by the operating system. The
prefix is free, since some clients look at it (``dapi``, ``flp_``).

What is kept is the salted BLAKE2b hash of the whole key. Slow password hashes exist to make guessing costly where
there is something to guess; against 256 random bits there is not, so a fast hash gives away nothing and costs a
microsecond per request. That is also why a key cannot be chosen: it would be a password. Digests are compared in
constant time. That an id exists can be told from the time it takes, which says no more than the id itself does.

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
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,32}")  # without dots: a key is not to look like a token
_WRONG = "The API key is not valid"


class KeyRecord(Section):
    """One key, as the file has it: everything but the key."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    name: CallerName
    hash: Annotated[str, StringConstraints(pattern=r"^blake2b:[0-9a-f]{32}:[0-9a-f]{64}$")] = Field(repr=False)
    endpoints: tuple[str, ...] | None = Field(default=None, min_length=1)
    expires: AwareDatetime | None = None
    limits: Limits | None = None

    @field_validator("name")
    @classmethod
    def _is_not_everyones(cls, name: str) -> str:
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
    """A new key, and the record to keep of it. Raises ConfigError where they would not be usable."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(["prefix: at most 32 letters, digits, hyphens and underscores"])
    id = secrets.token_hex(6)
    key = f"{prefix}{id}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))}"
    salt = secrets.token_bytes(16)
    kept = {"id": id, "name": name, "hash": f"blake2b:{salt.hex()}:{_digest(key, salt).hex()}"}
    told = {"endpoints": tuple(endpoints) or None, "expires": expires, "limits": limits}
    try:
        record = KeyRecord.model_validate(kept | {what: it for what, it in told.items() if it is not None})
    except ValidationError as error:
        raise ConfigError(list(problems_of(error, KeyRecord))) from None
    return key, record


@dataclass(frozen=True, slots=True)
class _Kept:
    salt: bytes
    digest: bytes
    expires: float
    caller: Caller


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys that open this server, by id. `have_limits`: some of them say how much their callers may ask for."""

    _kept: dict[str, _Kept] = field(default_factory=dict, repr=False)
    have_limits: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a file's content. Raises ConfigError with every problem; what it says holds nothing of the text."""
        try:
            records = _Records.validate_python(parse_yaml(text, is_secret=True) or ())
        except ValidationError as error:
            raise ConfigError(list(problems_of(error, KeyRecord, is_secret=True))) from None
        ids = [record.id for record in records]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ConfigError([f"{id}: two keys have this id; remove one" for id in twice])
        return cls({record.id: _kept(record) for record in records}, any(record.limits for record in records))

    def caller(self, key: str, now: float) -> Caller:
        """Whose key it is at `now` (seconds since the epoch). Raises Unauthorized where it is nobody's."""
        id = _KEY.fullmatch(key[-_SECRET_LENGTH - 13 :])
        kept = self._kept.get(id[1]) if id else None
        if kept is None or not hmac.compare_digest(_digest(key, kept.salt), kept.digest):
            raise Unauthorized(_WRONG)
        if now >= kept.expires:
            raise Unauthorized(f"The API key of '{kept.caller.name}' has expired")
        return kept.caller


def _kept(record: KeyRecord) -> _Kept:
    _, salt, digest = record.hash.split(":")
    expires = record.expires.astimezone(UTC).timestamp() if record.expires else float("inf")
    endpoints = None if record.endpoints is None else frozenset(record.endpoints)
    caller = Caller(record.name, f"key-{record.id}", endpoints, record.limits)
    return _Kept(bytes.fromhex(salt), bytes.fromhex(digest), expires, caller)


def _digest(key: str, salt: bytes) -> bytes:
    data = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=32, salt=salt, person=b"switchyard key").digest()
