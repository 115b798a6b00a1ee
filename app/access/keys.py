"""Creates, stores and verifies API keys.

A key is ``<prefix><id>-<secret>``, for example ``sk-sy-3f9a1c0b7d52-…``. The id (12 hexadecimal digits) is public and
finds the one record to compare with; the secret is 43 letters and digits, 256 bits from the operating system. The
prefix is free, since some clients check it (``dapi``, ``flp_``).

The record holds the salted BLAKE2b hash of the whole key. Slow password hashes make guessing costly; 256 random bits
cannot be guessed, so a fast hash is as safe and costs a microsecond per request. That is also why a key cannot be
chosen: it would be a password. Digests are compared in constant time; the response time reveals only whether an id
exists, and ids are public.

The file is a YAML list with one record a line, so that `switchyard keys create` appends, and deleting a line revokes.
A name is one record's: it tells callers apart in logs, limits and rights. While a key is rotated, its record holds two
secrets, the `previous` one with an end; id, endpoints and limits are the same for both, and so is the caller.

The API keys file: a plain file, or a Secret that Kubernetes mounts. It is reloaded when it changes.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shlex
import string
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import yaml
from pydantic import AwareDatetime, Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from app.access.caller import Caller
from app.config.access import ANONYMOUS, KEY, TOKEN, CallerName, GroupName, Limits
from app.config.base import ConfigError, Section, problems_of
from app.config.loading import parse_yaml, read_text
from app.errors import Unauthorized
from app.moments import shown

DEFAULT_PREFIX = "sk-sy-"
_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43  # 43 of 62 characters are 256 bits
_KEY = re.compile(rf"([0-9a-f]{{12}})-[A-Za-z0-9]{{{_SECRET_LENGTH}}}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,32}")  # without dots: a key must not look like a JWT
_INVALID_KEY = "The API key is not valid"


Hash = Annotated[str, StringConstraints(pattern=r"^blake2b:[0-9a-f]{32}:[0-9a-f]{64}$")]


class PreviousSecret(Section):
    """The secret that a rotation replaced, and when it ends."""

    hash: Hash = Field(repr=False)
    expires: AwareDatetime


class KeyRecord(Section):
    """One line of the keys file: everything about a key but the key itself."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    name: CallerName
    hash: Hash = Field(repr=False)
    endpoints: tuple[str, ...] | None = Field(default=None, min_length=1)
    expires: AwareDatetime | None = None
    limits: Limits | None = None
    group: GroupName | None = None
    previous: PreviousSecret | None = None

    @field_validator("name")
    @classmethod
    def _is_not_reserved(cls, name: str) -> str:
        if name == ANONYMOUS:
            raise ValueError(f"'{ANONYMOUS}' is reserved for callers without a key")
        if name.startswith((KEY, TOKEN)):
            raise ValueError(f"must not begin with '{KEY}' or '{TOKEN}': roles tell keys from tokens by them")
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
    group: str | None = None,
) -> tuple[str, KeyRecord]:
    """A new key and its record. Raises ConfigError if the arguments are invalid."""
    id = secrets.token_hex(6)
    key, hash = _new_secret(prefix, id)
    required = {"id": id, "name": name, "hash": hash}
    optional = {"endpoints": tuple(endpoints) or None, "expires": expires, "limits": limits, "group": group}
    try:
        record = KeyRecord.model_validate(required | {k: v for k, v in optional.items() if v is not None})
    except ValidationError as error:
        raise ConfigError(list(problems_of(error, KeyRecord))) from None
    return key, record


def rotated(
    record: KeyRecord, *, now: datetime, until: datetime, expires: datetime | None, prefix: str = DEFAULT_PREFIX
) -> tuple[str, KeyRecord]:
    """A new key for the record's caller, and its record, with which the old key works as well until `until`.

    `expires` is the new key's; None: as before. Raises ConfigError if the arguments are invalid, if that would be in
    the past, and if another secret is being replaced already.
    """
    if record.previous is not None and record.previous.expires > now:
        end = shown(record.previous.expires.timestamp())
        raise ConfigError([f"'{record.name}' has two valid keys until {end}; remove `previous` from its line first"])
    ends = expires or record.expires
    if ends is not None and ends <= now:
        raise ConfigError([f"the key of '{record.name}' has expired; name the new key's end with --expires"])
    last = min(until, record.expires or until)
    previous = PreviousSecret(hash=record.hash, expires=last) if last > now else None
    key, hash = _new_secret(prefix, record.id)
    kept = record.model_dump(exclude_unset=True, exclude={"previous"})
    changed = {"hash": hash} | ({"expires": ends} if ends else {}) | ({"previous": previous} if previous else {})
    return key, KeyRecord.model_validate(kept | changed)


def _new_secret(prefix: str, id: str) -> tuple[str, str]:
    """A new key with this id, and its hash."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(["prefix: at most 32 letters, digits, hyphens and underscores"])
    key = f"{prefix}{id}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))}"
    salt = secrets.token_bytes(16)
    return key, f"blake2b:{salt.hex()}:{_digest(key, salt).hex()}"


@dataclass(frozen=True, slots=True)
class _Secret:
    """`hash` as in the record, by which its last use is kept."""

    salt: bytes
    digest: bytes
    expires: float
    hash: str


@dataclass(frozen=True, slots=True)
class _KeyEntry:
    secret: _Secret
    previous: _Secret | None
    caller: Caller


class KeyUse(NamedTuple):
    """A key for a report, in Unix seconds. `last_used`: the minute, None if it was not used here. `previous`: the same
    of the secret that a rotation has replaced."""

    caller: Caller
    expires: float | None
    last_used: float | None
    previous: tuple[float, float | None] | None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The valid keys, by id. `have_limits`: some of them have their own limits. `used`: when each secret was used last,
    by its hash (Unix seconds); it outlives the ring."""

    _entries: dict[str, _KeyEntry] = field(default_factory=dict, repr=False)
    have_limits: bool = False
    used: MutableMapping[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str, used: MutableMapping[str, float] | None = None) -> Self:
        """The keys in a file's content. Raises ConfigError with every problem, which quotes ids and names alone."""
        return cls.from_records(read_records(text), used)

    @classmethod
    def from_records(cls, records: Sequence[KeyRecord], used: MutableMapping[str, float] | None = None) -> Self:
        """The keys of these records, whose ids and names differ."""
        entries = {record.id: _entry(record) for record in records}
        return cls(entries, any(record.limits for record in records), {} if used is None else used)

    def without(self, others: "KeyRing") -> "KeyRing":
        """These keys but for those with an id or a name of `others`: a name is one caller's."""
        names = {entry.caller.name for entry in others._entries.values()}
        entries = {
            id: entry
            for id, entry in self._entries.items()
            if id not in others._entries and entry.caller.name not in names
        }
        limits = any(entry.caller.limits for entry in entries.values())
        return KeyRing(entries, limits, self.used)

    def holds(self, key: str) -> bool:
        """Whether there is a key with the id in `key`; its secret may be another."""
        id = _KEY.fullmatch(key[-_SECRET_LENGTH - 13 :])
        return id is not None and id[1] in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def id_of(self, name: str) -> str | None:
        """The id of the caller whose key has this name; None if there is none."""
        return next((entry.caller.id for entry in self._entries.values() if entry.caller.name == name), None)

    def caller(self, key: str, now: float) -> Caller:
        """The caller with this key at `now` (Unix time). Raises Unauthorized if there is none or it has expired."""
        id = _KEY.fullmatch(key[-_SECRET_LENGTH - 13 :])
        entry = self._entries.get(id[1]) if id else None
        if entry is None:
            raise Unauthorized(_INVALID_KEY)
        secret = entry.secret
        if not hmac.compare_digest(_digest(key, secret.salt), secret.digest):
            if entry.previous is None:
                raise Unauthorized(_INVALID_KEY)
            secret = entry.previous
            if not hmac.compare_digest(_digest(key, secret.salt), secret.digest):
                raise Unauthorized(_INVALID_KEY)
        if now >= secret.expires:
            raise Unauthorized(f"The API key of '{entry.caller.name}' has expired")
        self.used[secret.hash] = now
        return entry.caller

    def uses(self) -> Iterator[KeyUse]:
        """Every key, by name."""
        for entry in sorted(self._entries.values(), key=lambda entry: entry.caller.name):
            previous = None
            if entry.previous is not None:
                previous = entry.previous.expires, _minute(self.used, entry.previous)
            ends = entry.secret.expires if entry.secret.expires != float("inf") else None
            yield KeyUse(entry.caller, ends, _minute(self.used, entry.secret), previous)


def read_records(text: str) -> Sequence[KeyRecord]:
    """The records in a keys file's content. Raises ConfigError with every problem, which quotes ids and names alone."""
    try:
        records = _Records.validate_python(parse_yaml(text, is_secret=True) or ())
    except ValidationError as error:
        raise ConfigError(list(problems_of(error, KeyRecord, is_secret=True))) from None
    ids = [record.id for record in records]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise ConfigError([f"{id}: two keys have this id; remove one" for id in twice])
    if len({record.name for record in records}) < len(records):
        raise ConfigError(list(_repeated_names(records, places(text))))
    return records


def places(text: str) -> Sequence[yaml.Node]:
    """The records' nodes in a keys file's content, which say where each of them begins and ends."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return root.value if isinstance(root, yaml.SequenceNode) else ()


def _repeated_names(records: Sequence[KeyRecord], nodes: Sequence[yaml.Node]) -> Iterator[str]:
    first: dict[str, int] = {}
    for record, node in zip(records, nodes, strict=True):
        line = node.start_mark.line + 1
        if (earlier := first.setdefault(record.name, line)) != line:
            fix = "rename one or remove it; `switchyard keys rotate` gives a name two valid keys"
            yield f"line {line}: '{record.name}' has a key on line {earlier} already; {fix}"


def _minute(used: Mapping[str, float], secret: _Secret) -> float | None:
    at = used.get(secret.hash)
    return at - at % 60 if at is not None else None


def _entry(record: KeyRecord) -> _KeyEntry:
    endpoints = None if record.endpoints is None else frozenset(record.endpoints)
    groups = () if record.group is None else (record.group,)
    caller = Caller(record.name, f"key-{record.id}", endpoints, record.limits, groups=groups)
    previous = record.previous
    return _KeyEntry(
        _secret(record.hash, record.expires),
        _secret(previous.hash, previous.expires) if previous is not None else None,
        caller,
    )


def _secret(hash: str, expires: datetime | None) -> _Secret:
    _, salt, digest = hash.split(":")
    ends = expires.astimezone(UTC).timestamp() if expires else float("inf")
    return _Secret(bytes.fromhex(salt), bytes.fromhex(digest), ends, hash)


def _digest(key: str, salt: bytes) -> bytes:
    data = key.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=32, salt=salt, person=b"switchyard key").digest()


class KeyFile:
    """`ring` holds the keys of the file's last valid content. `used`: when each was used last, see `KeyRing`.

    A missing or invalid file changes nothing: the previous keys keep working.
    """

    def __init__(self, path: Path, used: MutableMapping[str, float] | None = None) -> None:
        """Raises ConfigError if the file cannot be read or is invalid."""
        self.path, self._used = path, used
        text = read_text(path)
        self.ring = self._parsed(text)
        self._applied = text
        self._latest: str | None = text
        self._checked: str | None = text

    def reread(self, check: Callable[[KeyRing], None]) -> bool:
        """Whether there were new keys. Raises ConfigError, once per change, if the new content is invalid.

        `check` may raise it too, before the keys are applied. The content is compared, not the file's time: Kubernetes
        swaps a link, and file times are coarse. New content is checked once two reads agree: an editor empties a file
        before it fills it, and half a list of keys is a valid list of keys.
        """
        before, self._latest = self._latest, self._text()
        if self._latest != before or self._latest == self._checked:
            return False
        self._checked = self._latest
        text = self._latest if self._latest is not None else read_text(self.path)
        ring = self._parsed(text)
        check(ring)
        self.ring, self._applied = ring, text
        return True

    def recheck(self) -> None:
        """Lets the next `reread` check rejected content again: `check` has changed."""
        self._checked = self._applied

    def _text(self) -> str | None:
        try:
            return read_text(self.path)
        except ConfigError:
            return None

    def _parsed(self, text: str) -> KeyRing:
        try:
            return KeyRing.parse(text, self._used)
        except ConfigError as error:
            raise ConfigError([f"{self.path}: {problem}" for problem in error.problems]) from None


def append(path: Path, line: str) -> None:
    """Appends a record's line to the file, creating it readable by its owner only.

    Raises ConfigError if the file has a key with that name, and if the result would not be a keys file, as when `path`
    is a configuration file.
    """
    path.touch(mode=0o600)
    text = read_text(path)
    added = line if not text or text.endswith("\n") else f"\n{line}"
    names = {record.name for record in _records(path, text)}
    if taken := [record.name for record in read_records(line) if record.name in names]:
        rotate = f"switchyard keys rotate --name {shlex.quote(taken[0])} --file {shlex.quote(str(path))}"
        raise ConfigError([f"{path} has a key of '{taken[0]}' already; choose another name, or replace it: {rotate}"])
    _records(path, text + added)
    with path.open("a", encoding="utf-8") as file:
        file.write(added)


def replace(path: Path, name: str, change: Callable[[KeyRecord], KeyRecord]) -> None:
    """Replaces the record with this name by what `change` makes of it; the rest of the file stays as it is.

    Raises ConfigError if there is none, if it is not on a line of its own, and what `change` raises.
    """
    text = read_text(path)
    records = _records(path, text)
    index = next((number for number, record in enumerate(records) if record.name == name), None)
    if index is None:
        known = ", ".join(record.name for record in records) or "none"
        raise ConfigError([f"{path} has no key of '{name}'; it has: {known}"])
    node = places(text)[index]
    start, end = node.start_mark.index, node.end_mark.index
    if "\n" in text[start:end]:
        raise ConfigError([f"{path}, line {node.start_mark.line + 1}: the record is not on one line; put it there"])
    changed = text[:start] + change(records[index]).line.removeprefix("- ").rstrip("\n") + text[end:]
    _records(path, changed)
    _write(path.resolve(), changed)


def _records(path: Path, text: str) -> list[KeyRecord]:
    try:
        return list(read_records(text))
    except ConfigError as error:
        raise ConfigError([f"{path}: not a keys file: {problem}" for problem in error.problems]) from None


def _write(path: Path, text: str) -> None:
    """Replaces the file's content as a whole, so that no reader finds half of it. Raises OSError."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
