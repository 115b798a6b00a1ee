"""The API keys file: a plain file, or a Secret that Kubernetes mounts. It is reloaded when it changes."""

from collections.abc import Callable
from pathlib import Path

from app.access.api_keys import KeyRing
from app.config.base import ConfigError
from app.config.files import read_text


class KeyFile:
    """`ring` holds the keys of the file's last valid content.

    A missing or invalid file changes nothing: the previous keys keep working.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read or is invalid."""
        self.path = path
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
            return KeyRing.parse(text)
        except ConfigError as error:
            raise ConfigError([f"{self.path}: {problem}" for problem in error.problems]) from None


def append(path: Path, line: str) -> None:
    """Appends a record's line to the file, creating it readable by its owner only.

    Raises ConfigError if the result would not be a keys file, as when `path` is a configuration file.
    """
    path.touch(mode=0o600)
    text = read_text(path)
    added = line if not text or text.endswith("\n") else f"\n{line}"
    try:
        KeyRing.parse(text + added)
    except ConfigError as error:
        raise ConfigError([f"{path}: not a keys file: {problem}" for problem in error.problems]) from None
    with path.open("a", encoding="utf-8") as file:
        file.write(added)
