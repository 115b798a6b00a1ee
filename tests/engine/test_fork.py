"""What a template imports survives a fork, and reads no variable that differs between replicas."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from deployments.engine import fork

IMPORT = """
import json, os, pathlib, signal, sys, threading
from deployments.engine import fork

read = set()
get = os._Environ.__getitem__
os._Environ.__getitem__ = lambda self, name: (read.add(name), get(self, name))[1]
fork.load(fork.IMPORTS)
os._Environ.__getitem__ = get

import numpy, ray, torch
if (pid := os.fork()) == 0:
    signal.alarm(60)
    torch.set_num_threads(2)
    square = torch.ones(600, 600)
    assert (square @ square)[0, 0] == (square.numpy() @ square.numpy())[0, 0] == 600
    os._exit(0)
def drawn_in_a_copy():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, ray.ObjectRef.from_random().binary())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(read, 100)

json.dump({
    "same ids": drawn_in_a_copy() == drawn_in_a_copy(),
    "read": sorted(map(str, read)),
    "threads": sorted((task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()),
    "python's threads": threading.active_count(),
    "device": torch.cuda.is_initialized(),
    "copy": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_no_import_reads_what_differs_between_replicas(imported: dict[str, Any]) -> None:
    assert "VLLM_LOGGING_LEVEL" in imported["read"]
    assert not fork.LATER & set(imported["read"])


def test_no_import_starts_a_thread_or_touches_a_device(imported: dict[str, Any]) -> None:
    """But for OpenBLAS, which is told to start none here, and jemalloc: both see to forks."""
    assert len([name for name in imported["threads"] if name != "jemalloc_bg_thd"]) == 1
    assert imported["python's threads"] == 1
    assert not imported["device"]


def test_a_copy_computes_with_several_threads(imported: dict[str, Any]) -> None:
    assert imported["copy"] == 0


def test_no_import_draws_an_id_of_rays(imported: dict[str, Any]) -> None:
    """Copies would draw the same ones after it."""
    assert not imported["same ids"]
