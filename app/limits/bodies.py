"""What the bodies of all requests together may cost: the memory that they and their whole answers hold, and the threads
that read them.

Parsing holds the interpreter's lock, so more threads would be no faster. There are two, so that a body of megabytes
does not delay those of kilobytes; between two steps of a thread the event loop serves other requests.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from app.errors import LimitExceeded, Unavailable

LONG_BODY = 16 * 1024
"""Bytes. Shorter bodies are parsed on the event loop: they take milliseconds at most."""

_VERY_LONG_BODY = 256 * 1024

BYTES_PER_VALUE = 40
"""The memory of a JSON value of `json_size.weight`: between a number's and a checked object's."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Bodies:
    """The bodies of the requests that are under way in this process."""

    def __init__(self) -> None:
        self.held = 0
        self.held_by: dict[str, int] = {}
        self._long, self._very_long = (ThreadPoolExecutor(1, f"{name}-bodies") for name in ("long", "very-long"))
        self._trimming: threading.Timer | None = None

    async def work(
        self, size: int, function: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
    ) -> _Result:
        """The result of a function of a body of `size` bytes, called in a thread if the body is long."""
        if size <= LONG_BODY:
            return function(*args, **kwargs)
        pool = self._long if size <= _VERY_LONG_BODY else self._very_long
        return await asyncio.wrap_future(pool.submit(function, *args, **kwargs))

    def freed(self, size: int) -> None:
        """A request that held `size` bytes is over: soon its memory goes back to the system, if it was much.

        The C library keeps what lies between pieces that live longer: 30 MiB after 4,000 messages of 31 MiB.
        """
        if size > _VERY_LONG_BODY and (self._trimming is None or self._trimming.finished.is_set()):
            self._trimming = threading.Timer(_TRIM_AFTER_S, _trim)
            self._trimming.daemon = True
            self._trimming.start()


_TRIM_AFTER_S = 0.5


def _trim() -> None:
    """glibc's malloc_trim(3), which lets other threads run. Other C libraries have no such call."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Room:
    """The memory that one request holds. It is taken piece by piece, and given back at once.

    Several requests of one `holder`, a caller's id, hold half of the memory at most; those without one have no share.
    """

    __slots__ = ("_bodies", "_limit", "_taken", "holder")

    def __init__(self, bodies: Bodies, limit: int) -> None:
        """`limit`: the bytes of all requests together."""
        self._bodies, self._limit, self._taken = bodies, limit, 0
        self.holder = ""

    def take(self, size: int) -> None:
        """Takes `size` bytes. Raises Unavailable if there are not as many, LimitExceeded above the holder's half."""
        bodies = self._bodies
        if bodies.held + size > self._limit:
            raise Unavailable("The bodies of the requests under way take all the memory set aside", retry_after=1)
        if self.holder:
            before = bodies.held_by.get(self.holder, 0)
            if before > self._taken and before + size > self._limit // 2:
                message = "The bodies of the caller's requests under way take half of the memory set aside for all"
                raise LimitExceeded(message, retry_after=1)
            bodies.held_by[self.holder] = before + size
        bodies.held += size
        self._taken += size

    def take_answer(self, size: int) -> None:
        """Takes the memory of an answer of `size` bytes, until its client has read it: a quarter, for it is held once,
        and a body several times. Raises LimitExceeded: no other deployment should make the answer again.
        """
        try:
            self.take(size // 4)
        except Unavailable as error:
            message = "Answers that clients have not read yet take all the memory set aside"
            raise LimitExceeded(message, retry_after=1) from error

    def give_back(self) -> None:
        """Gives back what was taken."""
        bodies = self._bodies
        bodies.held -= self._taken
        bodies.freed(self._taken)
        if self.holder and self._taken:
            left = bodies.held_by[self.holder] - self._taken
            if left:
                bodies.held_by[self.holder] = left
            else:
                del bodies.held_by[self.holder]
        self._taken = 0

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
