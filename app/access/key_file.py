"""The file with the API keys: a plain one, or a Secret that Kubernetes mounts. Read, and read again when it changes."""

from collections.abc import Callable
from pathlib import Path

from app.access.api_keys import KeyRing
from app.config.base import ConfigError
from app.config.files import read_text


class KeyFile:
    """`ring` is the file's content as it last made sense.

    A file that is gone or broken changes nothing: keys that worked keep working until somebody says otherwise.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where there is no sense in it to begin with."""
        self.path = path
        text = read_text(path)
        self.ring = self._parsed(text)
        self._taken = text
        self._seen: str | None = text
        self._judged: str | None = text

    def reread(self, check: Callable[[KeyRing], None]) -> bool:
        """Whether there was something new. Raises ConfigError, once per change, where the new content is wrong.

        So may `check`, which looks at it before it is taken. The content is compared, not the file's time: Kubernetes
        swaps a link, and a second is long for a clock. It is judged once two looks have found the same: an editor
        empties a file before it fills it, and half a list of keys is a list of keys.
        """
        before, self._seen = self._seen, self._text()
        if self._seen != before or self._seen == self._judged:
            return False
        self._judged = self._seen
        text = self._seen if self._seen is not None else read_text(self.path)
        ring = self._parsed(text)
        check(ring)
        self.ring, self._taken = ring, text
        return True

    def judge_again(self) -> None:
        """What was refused may be right now: `check` has changed."""
        self._judged = self._taken

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
    """Adds a record's line to the file, which it makes, readable by its owner alone, if there is none.

    Raises ConfigError where that would not make a keys file, as in somebody's configuration.
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
