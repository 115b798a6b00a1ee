"""The Makefile on machines that lack something. Nothing is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.project import ROOT

TARGETS = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
WITHOUT_PACKAGES = {"help", "stop", "status", "deploy", "docs", "clean", "audit", "sbom", "lock"}
"""Targets that do not need the locked packages."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the Makefile needs of a clone, without packages."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("Makefile", "pyproject.toml", "serve_config.yaml"):
        shutil.copy2(ROOT / name, folder)
    return folder


def environment() -> dict[str, str]:
    """That of these tests, without what an outer `make` leaves there."""
    return {name: value for name, value in os.environ.items() if name != "ACCELERATOR" and not name.startswith("MAKE")}


def make(clone: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`make` with the Python of this test, and without a GPU unless `PATH` leads to one."""
    given = {**environment(), "PYTHON": sys.executable, "PATH": os.defpath, **variables}
    return subprocess.run(["make", *arguments], cwd=clone, env=given, capture_output=True, text=True, timeout=60)


def machine_with(folder: Path, gpus: str) -> str:
    """A PATH on which nvidia-smi lists these GPUs: driver, compute capability, name."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{gpus}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}{os.pathsep}{os.defpath}"


def test_the_help_begins_with_the_two_commands_and_lists_every_target(clone: Path) -> None:
    first, *others = make(clone, "help").stdout.split("\n\n")
    listed = re.compile(r"^make ([a-z0-9-]+) +\S", re.MULTILINE)
    assert listed.findall(first) == ["serve", "test"]
    assert listed.findall("".join(others)) == [name for name in TARGETS if name not in ("serve", "test")]


def test_a_folder_with_a_space_is_refused_in_one_sentence(clone: Path) -> None:
    done = make(clone.rename(clone.with_name("my clone")), "serve")
    first, *_ = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert first.startswith("Ray starts no workers in a folder with a space in its path: move '/")


@pytest.mark.parametrize("target", ["help", "stop"])
def test_what_installs_nothing_runs_with_any_accelerator(target: str, clone: Path) -> None:
    done = make(clone, target, ACCELERATOR="tpu")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in WITHOUT_PACKAGES])
def test_what_installs_refuses_an_unknown_accelerator_before_anything_else(target: str, clone: Path) -> None:
    done = make(clone, target, ACCELERATOR="tpu")
    first, *_ = done.stderr.splitlines()
    assert (done.returncode, done.stdout, first) == (2, "", "ACCELERATOR is cpu or gpu, not 'tpu'")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("PORT=abc", "PORT is a number from 1 to 65535, not 'abc'"),
        ("PORT=70000", "PORT is a number from 1 to 65535, not '70000'"),
        ("CONFIG=gone.yaml", "CONFIG: gone.yaml is missing"),
    ],
)
def test_a_wrong_variable_is_refused_before_the_set_up(wrong: str, said: str, clone: Path) -> None:
    done = make(clone, "serve", wrong, ACCELERATOR="cpu")
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (2, "", said)
    assert not (clone / ".venv").exists()


def test_a_python_without_ensurepip_is_told_the_package_that_has_it(clone: Path, tmp_path: Path) -> None:
    """As on Debian and Ubuntu without python3-venv."""
    (tmp_path / "ensurepip.py").write_text("raise ImportError\n")
    done = make(clone, "serve", PYTHONPATH=str(tmp_path), ACCELERATOR="cpu")
    package = "python{}.{}-venv".format(*sys.version_info)
    sentence = f"{sys.executable} lacks ensurepip, which creates .venv: install {package} (Debian, Ubuntu)"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (2, "", sentence)
    assert not (clone / ".venv").exists()


def installed(clone: Path, script: str) -> None:
    """Installs a program `switchyard`, which `make stop` runs."""
    program = clone / ".venv/bin/switchyard"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_home_that_cannot_be_written_leaves_the_caches_in_the_environment(clone: Path) -> None:
    installed(clone, "echo $UV_CACHE_DIR $PIP_NO_CACHE_DIR")
    done = make(clone, "stop", HOME="/dev/null", XDG_CACHE_HOME="", UV_CACHE_DIR="")
    assert (done.stdout, done.stderr) == (f"{clone}/.venv/cache 1\n", "")


@pytest.mark.parametrize("target", ["serve", "deploy", "stop", "status"])
def test_a_port_is_passed_if_it_is_set(target: str, clone: Path) -> None:
    installed(clone, "echo $*")
    (clone / ".venv/.ready").write_text("cpu")
    named = f"{target} serve_config.yaml" if target in ("serve", "deploy") else target
    given = ("--assume-old=.venv/.ready", "ACCELERATOR=cpu", target)
    assert make(clone, *given).stdout == make(clone, *given, PORT="").stdout == f"{named}\n"
    for made in (make(clone, *given, "PORT=9000"), make(clone, *given, PORT="9000")):
        assert made.stdout == f"{named} --port 9000\n"


def test_commands_know_the_directory_from_which_make_was_called(clone: Path, tmp_path: Path) -> None:
    installed(clone, "echo stands in $SWITCHYARD_STANDS_IN")
    (clone / ".venv/.ready").write_text("cpu")
    (tmp_path / "elsewhere").mkdir()
    for folder in (clone, tmp_path / "elsewhere"):
        line = f"cd {folder}; ACCELERATOR=cpu make --silent --assume-old=.venv/.ready -C {clone}"
        for target in ("stop", "status"):
            command = ["bash", "-c", f"{line} {target}"]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
            assert (done.stdout.strip(), done.stderr) == (f"stands in {folder}", "")


@pytest.mark.parametrize(
    ("gpus", "variables", "lock", "reason"),
    [
        ("580.95.05, 9.0, NVIDIA H100", {}, "gpu", "nvidia-smi lists 1 x NVIDIA H100 (ACCELERATOR="),
        ("580.95.05, 9.0, NVIDIA H100", {"ACCELERATOR": "cpu"}, "cpu", "ACCELERATOR=cpu"),
        ("535.1, 9.0, NVIDIA H100", {}, "cpu", "NVIDIA H100 has driver 535.1, and CUDA 13 needs 580 (ACCELERATOR="),
        ("", {"ACCELERATOR": "gpu"}, "gpu", "ACCELERATOR=gpu"),
    ],
)
def test_the_lock_is_that_of_the_machine_unless_a_variable_overrides_it(
    gpus: str, variables: dict[str, str], lock: str, reason: str, clone: Path, tmp_path: Path
) -> None:
    planned = make(clone, "-n", "serve", PATH=machine_with(tmp_path, gpus), **variables).stdout
    assert re.search(rf"requirements/install {lock}$", planned, re.MULTILINE)
    size = {"cpu": 4, "gpu": 12}[lock]
    said = rf"Installing \d{{3}} locked packages for {lock.upper()}s into \.venv \({size} GB\), which takes minutes: "
    assert re.search(said + re.escape(reason), planned)
    tests = make(clone, "-n", "test-fast", PATH=machine_with(tmp_path, gpus), **variables).stdout
    assert re.search(r"requirements/install cpu$", tests, re.MULTILINE)
    assert (".venv-cpu" in tests) == (lock == "gpu")


def test_whatever_installs_says_first_what_it_installs() -> None:
    rules = re.findall(r"^\S[^\n#=]*:(?!=).*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    installing = [
        rule for rule in rules if re.search(r"pip (install|sync)|npm\(|apt-get|requirements/install \$", rule)
    ]
    assert len(installing) == 9
    for rule in installing:
        work = re.search(r"pip (install|sync)|npm\(|apt-get|requirements/install \$", rule)
        assert work is not None
        assert '@echo "Installing ' in rule[: work.start()], rule


def test_an_audit_fails_if_the_index_knows_nothing(clone: Path) -> None:
    """pip-audit skips what it finds no answer for, and without `--strict` it succeeds."""
    uv = clone / ".venv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text("#!/bin/sh\ncase $* in *--strict*) exit 1 ;; esac\n")
    uv.chmod(0o755)
    audit = make(clone, "audit")
    assert audit.stdout.splitlines() == ["cpu.lock:", "gpu.lock:", "torch-cpu.lock:"], "each is asked about"
    assert audit.returncode != 0
