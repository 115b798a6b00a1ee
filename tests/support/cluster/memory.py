"""Memory limits of containers: a control group for each, below that of this process, of version 2 or 1."""

import time
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_LIMIT, _USED, _EVENTS = (
    ("memory.max", "memory.limit_in_bytes"),
    ("memory.current", "memory.usage_in_bytes"),
    (
        "memory.events",
        "memory.oom_control",
    ),
)
"""The files of version 2 and of version 1."""

GONE_WITHIN_S = 10.0


class MemoryGroup:
    """The processes of a container, which have at most `limit` bytes. Raises OSError where none can be made."""

    def __init__(self, name: str, limit: int) -> None:
        parent, self._version = _parent()
        self._place = parent / f"switchyard-{name}"
        self.remove()
        self._place.mkdir()
        try:
            self.limit = limit
        except OSError:
            self._place.rmdir()
            raise
        if self._version == 2:
            (self._place / "memory.oom.group").write_text("1")  # as kubelets do

    @property
    def limit(self) -> int:
        """In bytes. A smaller one than is in use is refused, or ends the processes."""
        return int(self._file(_LIMIT).read_text())

    @limit.setter
    def limit(self, size: int) -> None:
        self._file(_LIMIT).write_text(str(size))

    @property
    def used(self) -> int:
        """In bytes, with files that are cached."""
        return int(self._file(_USED).read_text())

    @property
    def kills(self) -> int:
        """The number of processes that the kernel has ended for want of memory."""
        counts = dict(line.split() for line in self._file(_EVENTS).read_text().splitlines())
        return int(counts["oom_kill"])

    def joining(self) -> list[str]:
        """The beginning of a command that runs in the group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._place / "cgroup.procs")]

    def remove(self) -> None:
        """Once its processes have ended."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while self._place.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                self._place.rmdir()
                return
            time.sleep(0.05)

    def _file(self, names: tuple[str, str]) -> Path:
        return self._place / names[2 - self._version]


def obstacle() -> str | None:
    """The reason why memory cannot be limited here, or None."""
    try:
        MemoryGroup("probe", 1 << 30).remove()
    except OSError as error:
        return f"no control group with the memory controller, version 2 (memory.max) or 1, can be made: {error}"
    return None


def _parent() -> tuple[Path, int]:
    """The group below which others can be made, and the version."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/"), 1
    with suppress(OSError):
        (_ROOT / "cgroup.subtree_control").write_text("+memory")  # a group with processes has no groups below it
    return _ROOT, 2
