"""The API keys file: a plain file, or a Secret that Kubernetes mounts. It is reloaded when it changes."""

import os
import secrets
import shlex
from collections.abc import Callable, MutableMapping
from pathlib import Path

from app.access.api_keys import KeyRecord, KeyRing, places, read_records
from app.config.base import ConfigError
from app.config.loading import read_text


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
