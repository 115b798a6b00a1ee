"""The output of a local run: messages to stderr, on a terminal with a live display, and the "ready" line to stdout.

Ray and Serve write to sys.stdout and sys.stderr from separate threads. These are redirected to a file, so
everything here uses the process's original streams.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.status import Status


def report(message: str) -> None:
    """Prints `message` to stderr."""
    _write(sys.__stderr__, message)


def announce(message: str) -> None:
    """Prints `message` to stdout: the line that scripts wait for."""
    _write(sys.__stdout__, message)


def _write(stream: TextIO | None, message: str) -> None:
    if stream is not None:
        with contextlib.suppress(OSError):  # the terminal may be closed
            stream.write(message + "\n")
            stream.flush()


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Redirects sys.stdout and sys.stderr to `log`."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


class StartDisplay:
    """The state of every application while it starts: a spinner on a terminal, else a line for each change."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.__stderr__
        self._started = time.monotonic()
        self._status: Status | None = None
        self._last = ""

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            from rich.console import Console

            self._status = Console(file=self._stream).status("Starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, message: str) -> None:
        """Prints `message` as a line that stays, above the spinner if there is one."""
        if self._status is not None:
            self._status.console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            _write(self._stream, message)

    def update(self, states: Mapping[str, str]) -> None:
        """Shows `states`, application name to state."""
        if self._status is not None:
            elapsed = int(time.monotonic() - self._started)
            width = max((len(name) for name in states), default=0)
            lines = [f"  {name:<{width}}  {state}" for name, state in states.items()]
            self._status.update("\n".join([f"Starting ({elapsed} s)", *lines]))
            return
        waiting = [name for name, state in states.items() if state != "RUNNING"]
        line = f"Waiting for: {', '.join(waiting)}"
        if waiting and line != self._last:
            _write(self._stream, line)
            self._last = line
