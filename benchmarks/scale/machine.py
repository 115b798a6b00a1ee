"""The processes under test, an engine and a router, and their resource use."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.load import HOST
from benchmarks.programs import cpu_clock
from benchmarks.relay import running


@contextmanager
def engine(port: int, step_ms: float) -> Iterator[None]:
    """A fake engine on `port`."""
    with running(port, "benchmarks.scale.engine", str(port), str(step_ms)):
        yield


@contextmanager
def router(port: int, document: Mapping[str, Any]) -> Iterator[psutil.Process]:
    """A router of this configuration, as `switchyard router` runs it."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        config = Path(folder) / "router.yaml"
        config.write_text(yaml.safe_dump(dict(document)))
        yield stack.enter_context(running(port, "deployments", "router", str(config), "--port", str(port)))


def deployment(engine_port: int) -> dict[str, Any]:
    """A deployment whose engine listens on that port."""
    return {"url": f"http://{HOST}:{engine_port}", "model": "tiny-llama"}


def rss_kib(process: psutil.Process) -> float:
    """Its resident memory."""
    return float(process.memory_info().rss) / 1024


class CpuTime:
    """CPU time of a process, in microseconds."""

    def __init__(self, process: psutil.Process) -> None:
        self._clock = cpu_clock(process.pid)

    def us(self) -> float:
        """So far."""
        return time.clock_gettime(self._clock) * 1e6
