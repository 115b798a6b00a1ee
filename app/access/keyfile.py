"""The file with the API keys: a plain one, or a Secret that Kubernetes mounts. Read, and read again when it changes."""

from collections.abc import Callable
from pathlib import Path

from app.access.keys import KeyRing
from app.config_base import ConfigError
from app.config_file import read_text


class KeyFile:
    """`ring` is the file's content as it last made sense.

    A file that is gone or broken changes nothing: keys that worked keep working until somebody says otherwise.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where there is no sense in it to begin with."""
        self.path = path
        self._text: str | None = read_text(path)
        self.ring = self._parsed(self._text)

    def reread(self, check: Callable[[KeyRing], None]) -> bool:
        """Whether there was something new. Raises ConfigError, once per change, where the new content is wrong.

        So may `check`, which looks at it before it is taken. The content is compared, not the file's time: Kubernetes
        swaps a link, and a second is long for a clock.
        """
        try:
            text = read_text(self.path)
        except ConfigError:
            was_there, self._text = self._text is not None, None
            if was_there:
                raise
            return False
        if text == self._text:
            return False
        self._text = text
        ring = self._parsed(text)
        check(ring)
        self.ring = ring
        return True

    def _parsed(self, text: str) -> KeyRing:
        try:
            return KeyRing.parse(text)
        except ConfigError as error:
            raise ConfigError([f"{self.path}: {problem}" for problem in error.problems]) from None


def append(path: Path, line: str) -> None:
    """Adds a record's line to the file, which it makes, readable by its owner alone, if there is none."""
    path.touch(mode=0o600)
    with path.open("r+") as file:
        text = file.read()
        file.write(line if not text or text.endswith("\n") else f"\n{line}")
