"""Commands as they can be pasted where the user stands: every message that names one takes it from here.

The law: a command runs in the directory in which it was printed, and on the server that was asked. An API's answers
name the bare command instead, since the reader may be on another machine; the command line, which knows, passes them
through `pasteable`.
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

DEFAULT_FILE = Path("serve_config.yaml")
"""The configuration of commands that name none, if it is in the current directory."""

URL_VARIABLE = "SWITCHYARD_URL"
"""The server that is asked if a command names none."""

STANDS = "SWITCHYARD_STANDS_IN"
"""The directory from which `make -C` was called: it runs its commands in another one."""

_WITHOUT_FILE = re.compile(r"(?:serve|deploy|check)(?= --|  |[`.,;)]|$)", re.MULTILINE)
"""A command that takes a configuration, and names none."""

_BARE = re.compile(rf"(?<![\w/.'-])(?<!-- )(?<!-n ){PROGRAM} (?=[a-z])({_WITHOUT_FILE.pattern})?", re.MULTILINE)
"""A command by its bare name, except one that `kubectl exec … --` runs in a pod. `kubectl -n` names a namespace."""


def command(arguments: str, url: str | None = None) -> str:
    """The command line with these arguments, which the caller quotes: files with `argument`. `url`: the server that the
    user has named on the command line."""
    server = f"{URL_VARIABLE}={shlex.quote(url)} " if url is not None and url != os.environ.get(URL_VARIABLE) else ""
    if (match := _WITHOUT_FILE.match(arguments)) is not None:
        arguments = match[0] + _default_file() + arguments[match.end() :]
    return f"{server}{program()} {arguments}"


def program(name: str = PROGRAM) -> str:
    """The program of this installation: its name if the shell finds it by that, else its path; the module where it is
    not installed."""
    script = Path(sysconfig.get_path("scripts"), name)
    return _callable(script) if script.is_file() else module("deployments")


def module(arguments: str) -> str:
    """`python -m` with a module and its arguments, by the Python of this installation."""
    return f"{_callable(Path(sys.executable))} -m {arguments}"


def make(target: str) -> str:
    """A target of the Makefile, with its variables."""
    if _stands_in() == ROOT or not (ROOT / "Makefile").is_file():  # an image has none: its files come from a checkout
        return f"make {target}"
    return f"make -C {shlex.quote(str(ROOT))} {target}"


def argument(path: Path) -> str:
    """A file that this process reaches by `path`, as an argument of a command."""
    return shlex.quote(str(path if _stands_in() == Path.cwd() else path.absolute()))


def missing(path: Path, name: str) -> str:
    """The error of the command `name`, whose configuration `path` does not exist."""
    if path != DEFAULT_FILE:
        return f"{path} is missing. Name another file, or change to its directory"
    return f"{path} is not in this directory. Name it: {command(name)}"


def pasteable(text: str, url: str | None = None) -> str:
    """The text with every command that it calls by the bare name as it can be pasted here. `url` as for `command`."""
    return _BARE.sub(lambda match: command(match[1] or "", url), text)


def _default_file() -> str:
    """The configuration's argument: none where the default is found."""
    if (_stands_in() / DEFAULT_FILE).is_file():
        return ""
    there = ROOT / DEFAULT_FILE
    return f" {shlex.quote(str(there))}" if there.is_file() else " FILE"


def _stands_in() -> Path:
    """The directory of the user's shell."""
    return Path(os.environ.get(STANDS) or "").resolve()


def _callable(path: Path) -> str:
    """An executable file as the shell can call it: the shortest of its name, its relative path and its path."""
    program = shutil.which(path.name)
    if program is not None and os.path.samefile(program, path):
        return path.name
    try:
        relative = str(path.relative_to(_stands_in()))
    except ValueError:
        return shlex.quote(str(path))
    return shlex.quote(relative if os.sep in relative else os.path.join(os.curdir, relative))
