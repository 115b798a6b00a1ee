"""Commands as they can be pasted where the user stands: every message that names one takes it from here.

An API's answers name the bare command instead, since the reader may be on another machine; the command line, which
knows, passes them through `pasteable`.
"""

import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

PROGRAM = "switchyard"

ROOT = Path(__file__).resolve().parents[1]

_BARE = re.compile(rf"(?<![\w/.'-])(?<!-- )(?<!-n ){PROGRAM} (?=[a-z])")
"""A command by its bare name, except one that `kubectl exec … --` runs in a pod. `kubectl -n` names a namespace."""


def command(arguments: str) -> str:
    """The command line with these arguments, which the caller quotes."""
    return f"{program()} {arguments}"


def program() -> str:
    """The program of this installation: its name if the shell finds it by that, else its path."""
    script = Path(sysconfig.get_path("scripts"), PROGRAM)
    return _callable(script) if script.is_file() else module("deployments")


def module(arguments: str) -> str:
    """`python -m` with a module and its arguments, by the Python of this installation."""
    return f"{_callable(Path(sys.executable))} -m {arguments}"


def make(target: str) -> str:
    """A target of the Makefile, with its variables."""
    if Path.cwd() == ROOT or not (ROOT / "Makefile").is_file():  # an image has none: its files come from a checkout
        return f"make {target}"
    return f"make -C {shlex.quote(str(ROOT))} {target}"


def pasteable(text: str) -> str:
    """The text with every command that it calls by the bare name as it can be pasted here."""
    called = f"{program()} "
    return _BARE.sub(lambda _: called, text)


def _callable(path: Path) -> str:
    """An executable file as the shell can call it: the shortest of its name, its relative path and its path."""
    found = shutil.which(path.name)
    if found is not None and os.path.samefile(found, path):
        return path.name
    try:
        relative = str(path.relative_to(Path.cwd()))
    except ValueError:
        return shlex.quote(str(path))
    return shlex.quote(relative if os.sep in relative else os.path.join(os.curdir, relative))
