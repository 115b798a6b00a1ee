"""Serve's own controller, which may change with Ray's version."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.project import ROOT

pytestmark = pytest.mark.real


def test_no_step_of_the_control_loop_comes_between_a_comparison_and_its_write(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.processes.serve_controller", str(tmp_path / "counts.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    here, beside = json.loads((tmp_path / "counts.json").read_text())
    assert here == 0
    assert beside > 0, "the control loop runs, and Ray runs functions beside it"
