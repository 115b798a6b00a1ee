"""Prometheus' own checker, which `make setup` provides."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.processes.project import ROOT


def promtool(*arguments: str | Path) -> tuple[bool, str]:
    """Whether the check passed, and its output."""
    binary = os.environ.get("PROMTOOL") or shutil.which("promtool") or ROOT / ".tools/promtool"
    assert Path(binary).exists(), "promtool is missing: `make setup`, Debian's package `prometheus`, or PROMTOOL=/path"
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=240, check=False)
    return done.returncode == 0, done.stdout + done.stderr
