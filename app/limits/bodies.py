"""What the bodies of all requests together may cost: the memory that they and their whole answers hold, and the threads
that read them.

Parsing holds the interpreter's lock, so more threads would be no faster. There are two, so that a body of megabytes
does not delay those of kilobytes; between two steps of a thread the event loop serves other requests.

Requests that were answered before their bodies had arrived: `CloseUnread` closes their connections.
"""

import asyncio
import ctypes
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.aio import within
from app.errors import AtCapacity, LimitExceeded
from app.long_json import LONG_BODY

_VERY_LONG_BODY = 256 * 1024

BYTES_PER_VALUE = 40
"""The memory of a JSON value of `long_json.weight`: between a number's and a checked object's."""

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Bodies:
    """The bodies of the requests that are under way in this process."""

    def __init__(self) -> None:
        self.held = self._most_held = 0
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

    def take(self, size: int) -> None:
        """Counts the memory as held."""
        self.held += size
        self._most_held = max(self._most_held, self.held)

    def give_back(self, size: int) -> None:
        """Counts it as free. Soon it goes back to the system, if much less is held than before: the C library keeps
        what lies between pieces that live longer, such as 30 MiB after 150 bodies of 220 kB at once.
        """
        self.held -= size
        if self._most_held - self.held > _MUCH and (self._trimming is None or self._trimming.finished.is_set()):
            self._most_held = self.held
            self._trimming = threading.Timer(_TRIM_AFTER_S, _trim)
            self._trimming.daemon = True
            self._trimming.start()


_MUCH = 4 * 1024 * 1024
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
        """Takes `size` bytes. Raises AtCapacity if there are not as many, LimitExceeded above the holder's half."""
        bodies = self._bodies
        if bodies.held + size > self._limit:
            raise AtCapacity("The bodies of the requests under way take all the memory set aside", retry_after=1)
        if self.holder:
            before = bodies.held_by.get(self.holder, 0)
            if before > self._taken and before + size > self._limit // 2:
                message = "The bodies of the caller's requests under way take half of the memory set aside for all"
                raise LimitExceeded(message, retry_after=1)
            bodies.held_by[self.holder] = before + size
        bodies.take(size)
        self._taken += size

    def take_answer(self, size: int) -> None:
        """Takes the memory of an answer of `size` bytes, until its client has read it: a quarter, for it is held once,
        and a body several times. Raises LimitExceeded: no other deployment should make the answer again.
        """
        try:
            self.take(size // 4)
        except AtCapacity as error:
            message = "Answers that clients have not read yet take all the memory set aside"
            raise LimitExceeded(message, retry_after=1) from error

    def give_back(self) -> None:
        """Gives back what was taken."""
        bodies = self._bodies
        bodies.give_back(self._taken)
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


# A server that keeps such a connection reads the rest of the body first, however slowly that comes: whoever announces a
# gigabyte and sends a byte now and then would keep the connection, and its slot in the ingress, for good. A server that
# closes it at once resets the connection of a client that is still sending, which may then not see the answer. So the
# answer announces the end of the connection, and the rest of the body may arrive within `LINGER_S`.

LINGER_S = 5.0
"""Seconds after an answer in which the rest of the request's body is read and dropped."""

MOST_LINGERING = 100
"""Requests that linger at a time, in one application. Serve counts each as ongoing; further ones end at once."""


class CloseUnread:
    """Answers a request whose body has not been read with `connection: close`, and ends it soon."""

    def __init__(self, app: ASGIApp, *, linger_s: float = LINGER_S) -> None:
        self._app, self._linger_s = app, linger_s
        self._lingering = 0

    # A coroutine function: from this uvicorn recognises the version of ASGI.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _announces_body(scope):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        await self._app(scope, exchange.receive, exchange.send)
        if exchange.is_held:
            await self._linger(exchange)
            await send({"type": "http.response.body"})

    async def _linger(self, exchange: "_Exchange") -> None:
        if self._lingering >= MOST_LINGERING:
            return
        self._lingering += 1
        try:
            with suppress(TimeoutError), within(self._linger_s):
                while not exchange.is_read:
                    await exchange.receive()
        finally:
            self._lingering -= 1


class _Exchange:
    """A request with a body. While that is not read, the answer's end is held back: the server would close."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.is_read = self.is_held = False

    def receive(self) -> Awaitable[Message]:
        return self._receive() if self.is_read else self._part()

    async def _part(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):  # the body's end, or the client's
            self.is_read = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        if self.is_read:  # nearly always
            return self._send(message)
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif not message.get("more_body", False):
            self.is_held = True
            message = {**message, "more_body": True}
        return self._send(message)


def _announces_body(scope: Scope) -> bool:
    for name, value in scope["headers"]:  # of two lengths the server may have taken either one
        if (name == b"content-length" and value != b"0") or name == b"transfer-encoding":
            return True
    return False
