"""A container without a runtime: the command is process 1 of its own mounts, processes, host name and network."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.support.cluster import container_entry
from tests.support.cluster.memory import MemoryGroup

_STARTS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Spec:
    """`code`, which is read-only, and `mounts` map paths in the container to paths of the machine, `hosts` names to
    addresses.

    `setup` are commands that build the image: they end before `command` begins, and do not have its environment. `shm`
    is the size of /dev/shm, as mount takes it; `memory` is the limit in bytes.
    """

    name: str
    root: str
    command: Sequence[str]
    directory: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[Sequence[str]] = ()
    shm: str = "512m"
    memory: int | None = None


class Container:
    """Runs as soon as it is made. `log` is its output."""

    def __init__(self, spec: Spec, namespace: str, log: Path) -> None:
        self.log = log
        Path(spec.root).mkdir(parents=True, exist_ok=True)
        described = Path(spec.root).with_suffix(".json")
        described.write_text(json.dumps(asdict(spec)))
        entry = [sys.executable, "-S", container_entry.__file__, str(described)]
        unshared = ["unshare", "-m", "-p", "-f", "-u", "-i", "--kill-child"]
        self.memory = None if spec.memory is None else MemoryGroup(spec.name + Path(spec.root).name, spec.memory)
        joining = [] if self.memory is None else self.memory.joining()
        self._command = [*joining, "nice", "-n", "3", "ip", "netns", "exec", namespace, *unshared, *entry]
        self._kills = 0
        self._process = self._start()

    def restart(self) -> None:
        """Starts the container again once it has ended."""
        assert self.has_ended
        self._process = self._start()

    @property
    def has_ended(self) -> bool:
        """Whether all of the container's processes have ended."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of process 1; None while it runs."""
        return self._process.poll()

    def end_over_memory(self) -> None:
        """Ends every process once the kernel has ended one for want of memory, as kubelets let the kernel do since
        Kubernetes 1.28 (`memory.oom.group`, which control groups of version 1 lack)."""
        if self.memory is not None and self.memory.kills > self._kills:
            self._kills = self.memory.kills
            self.kill()

    @property
    def pid(self) -> int:
        """The pid of process 1 in the machine's namespace."""
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < deadline:
            with contextlib.suppress(psutil.NoSuchProcess):
                if children := psutil.Process(self._process.pid).children():
                    return children[0].pid
            assert not self.has_ended, self.log.read_text()[-2000:]
            time.sleep(0.02)
        raise AssertionError(f"no process 1: {self.log}")

    def terminate(self) -> None:
        """SIGTERM to process 1, as for a pod that is deleted."""
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).terminate()

    def kill(self) -> None:
        """SIGKILL to process 1: the kernel ends all others with it."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess, AssertionError):
                psutil.Process(self.pid).send_signal(signal.SIGKILL)
        self._process.wait(30)

    def remove(self) -> None:
        """Ends it, and removes what the kernel keeps of it."""
        self.kill()
        if self.memory is not None:
            self.memory.remove()

    def run(self, command: Sequence[str], *, timeout_s: float = 10) -> bool:
        """Whether `command`, run inside, succeeds: an exec probe."""
        entered = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i", "-r", "-w", "--", *command]
        try:
            return subprocess.run(entered, capture_output=True, timeout=timeout_s).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
