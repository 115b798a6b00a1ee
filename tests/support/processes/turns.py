"""Access to a resource that several processes share: shared or exclusive, in the order of the requests."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Waits for its turn, which lasts while the block runs. A waiting process holds the gate, so that later ones cannot
    overtake it: otherwise an exclusive turn could wait forever for a moment without other turns.
    """
    with (directory / "gate").open("w") as gate, (directory / "room").open("w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
