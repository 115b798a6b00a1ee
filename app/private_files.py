"""Files and folders that only their owner may read, whatever the process's umask: 600 and 700."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Makes the folder and its missing parents. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)


def open_new(file: Path) -> BinaryIO:
    """Opens the file for writing; former content is lost, and a former wider mode. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    opened = os.fdopen(descriptor, "wb")
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # /dev/stdout is no file of ours
        os.fchmod(descriptor, FILE_MODE)
    return opened


def tighten(folder: Path) -> list[str]:
    """Takes the rights of others away from the folder and from everything below it.

    Returns the paths where that was not possible: those of another owner.
    """
    failed: list[str] = []
    for parent, _, files in os.walk(folder):
        for path, mode in ((parent, FOLDER_MODE), *((os.path.join(parent, name), FILE_MODE) for name in files)):
            try:
                present = os.lstat(path).st_mode
                if not stat.S_ISLNK(present) and stat.S_IMODE(present) & ~mode:
                    os.chmod(path, stat.S_IMODE(present) & mode)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except OSError:
                failed.append(path)
    return failed
