"""Calls functions of the console's scripts that need no browser, with the Node of the lock."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.clients.node import run_script


class PageError(Exception):
    """The function raised an error with this message."""


def call_all(calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
    """The result of each (function, arguments), in one run of Node; a PageError where a function raised."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "calls.json"
        file.write_text(json.dumps(calls))
        return [result if ok else PageError(result) for ok, result in run_script("page_modules.mjs", str(file))]


def call(name: str, *arguments: Any) -> Any:
    """The result of one function. Raises PageError."""
    (result,) = call_all([(name, arguments)])
    if isinstance(result, PageError):
        raise result
    return result
