"""A ledger's directory in memory that fails, or in which the process dies, at any operation."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pyarrow as pa

from app.experiments.storage.store import Damaged, File, Missing, StoreError


class Death(BaseException):
    """The process is killed."""


class Disk:
    """The surviving state: whole files. `fails`: every operation fails. `dies_after`: the number of operations that
    still succeed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.now = 0.0
        self.fails = False
        self.is_read_only = False
        self.dies_after: int | None = None

    def write(self, path: str, data: bytes) -> None:
        self._operation(is_change=True)
        self.files[path], self.times[path] = data, self.now
        self._operation()  # it may die, or report a failure, after the fact

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        self._operation()
        if path not in self.files:
            raise Missing(path)
        try:
            yield BytesIO(self.files[path])
        except pa.ArrowInvalid as error:
            raise Damaged(str(error)) from error

    def list(self, folder: str) -> list[File]:
        self._operation()
        return [File(path, self.times[path]) for path in sorted(self.files) if path.startswith(f"{folder}/")]

    def delete(self, path: str) -> None:
        self._operation(is_change=True)
        self.files.pop(path, None)
        self._operation()

    def _operation(self, *, is_change: bool = False) -> None:
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise Death
        if self.fails or (self.is_read_only and is_change):
            raise StoreError("No space left on device")
