"""The ledger's directory: a local one, or an object store. Whole files only, so that no reader ever sees a part of one.

Paths are relative to the directory, with slashes. Every failure is a StoreError: a full disk, a read-only directory and
an object store that does not answer are the same to the controller, which keeps its data and tries again.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from app.private_files import make_folder, open_new

TEMPORARY = ".tmp"
"""The end of the names of files that are being written; they begin with a dot, which readers of Parquet skip."""


class StoreError(Exception):
    """The directory cannot be read or written now; the message gives the reason, in one line."""


class Missing(StoreError):
    """The file does not exist."""


class Damaged(StoreError):
    """The file exists, but its content is invalid."""


class File(NamedTuple):
    """A file of the directory."""

    path: str
    modified_at: float
    """Unix seconds."""


class FileStore(Protocol):
    """A directory of whole files. Every call may raise StoreError."""

    def write(self, path: str, data: bytes) -> None:
        """Writes `data` to `path`, atomically and durably; replaces earlier content."""

    def open(self, path: str) -> AbstractContextManager[Any]:
        """A binary file for reading, at any position. Raises Missing if there is no such file; inside the block, errors
        of reading become a StoreError, and Damaged if pyarrow cannot read the content.
        """

    def list(self, folder: str) -> list[File]:
        """Every file below `folder`, at any depth, sorted by path; none if there is no such folder."""

    def delete(self, path: str) -> None:
        """Deletes the file if it exists."""


class LocalStore:
    """A directory of this machine. A file is written under a temporary name, synchronised with the disk, renamed.

    Only their owner may read files and folders: there may be prompts in them, and hashes of users.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, path: str, data: bytes) -> None:
        target = self._directory / path
        temporary = target.with_name(f".{target.name}{TEMPORARY}")
        with _store_errors():
            make_folder(target.parent)
            try:
                with open_new(temporary) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            synchronise(target.parent)

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with _store_errors(), (self._directory / path).open("rb") as file:
            try:
                yield file
            except OSError as error:
                if error.errno is None:  # pyarrow's word for content that it cannot decode
                    raise Damaged(_line(error)) from error
                raise

    def list(self, folder: str) -> list[File]:
        files: list[File] = []
        with _store_errors():
            if self._directory.exists() and not self._directory.is_dir():
                raise NotADirectoryError(f"{self._directory} is not a directory")
            for parent, _, names in os.walk(self._directory / folder, onerror=_raise_unless_missing):
                for name in names:
                    file = Path(parent, name)
                    path = file.relative_to(self._directory).as_posix()
                    try:
                        files.append(File(path, file.stat().st_mtime))
                    except FileNotFoundError:  # deleted by another controller in the meantime
                        continue
        return sorted(files)

    def delete(self, path: str) -> None:
        with _store_errors():
            (self._directory / path).unlink(missing_ok=True)


class ObjectStore:
    """A bucket, or a folder of one, by pyarrow's file systems. An object appears whole or not at all."""

    def __init__(self, file_system: pafs.FileSystem, root: str) -> None:
        self._files, self._root = file_system, root.rstrip("/")

    def write(self, path: str, data: bytes) -> None:
        with _store_errors(), self._files.open_output_stream(self._full(path)) as stream:
            stream.write(data)

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with _store_errors(), self._files.open_input_file(self._full(path)) as file:
            yield file

    def list(self, folder: str) -> list[File]:
        with _store_errors():
            selector = pafs.FileSelector(self._full(folder), recursive=True, allow_not_found=True)
            return sorted(
                File(info.path.removeprefix(self._root).lstrip("/"), (info.mtime_ns or 0) / 1e9)
                for info in self._files.get_file_info(selector)
                if info.type == pafs.FileType.File
            )

    def delete(self, path: str) -> None:
        with _store_errors():
            try:
                self._files.delete_file(self._full(path))
            except FileNotFoundError:
                return

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"


def open_store(url: str, base: Path) -> FileStore:
    """The directory that `ledger.url` names: a path, relative to `base`, or s3://, gs:// or abfs://.

    Raises StoreError if the address is invalid, or its credentials cannot be found.
    """
    if (directory := local_directory(url, base)) is not None:
        return LocalStore(directory)
    with _store_errors():
        file_system, root = pafs.FileSystem.from_uri(url)
    if isinstance(file_system, pafs.LocalFileSystem):
        return LocalStore(Path(root))
    return ObjectStore(file_system, root)


def local_directory(url: str, base: Path) -> Path | None:
    """The directory that `ledger.url` names by its path; None if it is an address."""
    return base / url if "://" not in url else None


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Missing(_line(error)) from error
    except OSError as error:
        raise StoreError(_line(error)) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name in a schema is no text
        raise Damaged(_line(error)) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def synchronise(directory: Path) -> None:
    """Makes a new or renamed file survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
