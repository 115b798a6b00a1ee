"""The output of a local run: messages to stderr, on a terminal with a live display, and the "ready" line to stdout.

Ray and Serve write to sys.stdout and sys.stderr from separate threads. These are redirected to a file, so
everything here uses the process's original streams.
"""

import contextlib
import sys
import threading
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


EVERY_S = 10.0
"""The longest silence of a start without a terminal."""


class StartDisplay:
    """What a start is doing, and for how long: a spinner on a terminal, else a line for each step and, while one lasts,
    another every `every_s` seconds. Its methods may be called from several threads."""

    def __init__(self, stream: TextIO | None = None, every_s: float = EVERY_S) -> None:
        self._stream = stream or sys.__stderr__
        self._every_s = every_s
        self._started = self._said_at = time.monotonic()
        self._status: Status | None = None
        self._step, self._details = "Starting", ""
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._stream is not None and self._stream.isatty():
            from rich.console import Console

            self._status = Console(file=self._stream).status(self._step)
            self._status.start()
        self._ticking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticking.join()
        if self._status is not None:
            self._status.stop()

    def step(self, what: str) -> None:
        """Begins a step, such as "Starting Ray"."""
        self._show(what)

    def say(self, message: str) -> None:
        """Prints `message` as a line that stays, above the spinner if there is one."""
        with self._lock:
            if self._status is not None:
                self._status.console.print(message, markup=False, highlight=False, soft_wrap=True)
            else:
                self._write(message)

    def update(self, states: Mapping[str, str]) -> None:
        """Shows `states`, application name to state: the step is to wait for those that do not run."""
        width = max((len(name) for name in states), default=0)
        details = "".join(f"\n  {name:<{width}}  {state}" for name, state in states.items())
        if waiting := [name for name, state in states.items() if state != "RUNNING"]:
            self._show(f"Waiting for: {', '.join(waiting)}", details)

    def _show(self, step: str, details: str = "") -> None:
        with self._lock:
            is_new, self._step, self._details = step != self._step, step, details
            if self._status is not None:
                self._spin()
            elif is_new:
                self._write(step)

    def _tick(self) -> None:
        while not self._ended.wait(min(1.0, self._every_s)):
            with self._lock:
                if self._status is not None:
                    self._spin()
                elif time.monotonic() - self._said_at >= self._every_s:
                    self._write(f"{self._step} ({self._elapsed()} s so far)")

    def _spin(self) -> None:
        assert self._status is not None
        self._status.update(f"{self._step} ({self._elapsed()} s){self._details}")

    def _elapsed(self) -> int:
        return int(time.monotonic() - self._started)

    def _write(self, line: str) -> None:
        self._said_at = time.monotonic()
        _write(self._stream, line)
