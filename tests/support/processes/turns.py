"""Access to something that several processes share: many at once, or one alone, in the order of their requests."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Waits for its turn, which lasts while the block runs.

    The one that waits holds the gate, so that later ones cannot overtake it: otherwise one that wants to be alone could
    wait forever for a moment in which no other is inside.
    """
    with (directory / "gate").open("w") as gate, (directory / "room").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
