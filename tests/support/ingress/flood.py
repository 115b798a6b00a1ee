"""Connections without a whole request, as port scanners, probes and attackers make them: broken ones and slow ones.

python -m tests.support.ingress.flood PORT BROKEN SLOW      sends that many, and ends once the server has closed all
"""

import asyncio
import itertools
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Literal, get_args

GET = b"GET /health HTTP/1.1\r\nhost: a\r\n"

BROKEN: Mapping[str, bytes] = {
    "nothing": b"",
    "TLS hello": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(160)),
    "no protocol": b"hello\r\n\r\n",
    "binary": bytes(range(256)) * 4,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "half a request line": b"GET /hea",
    "half a header": b"POST / HTTP/1.1\r\nHost: x\r\nX-a: ",
    "no colon": b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    "another host": b"GET http://b/health HTTP/1.1\r\nhost: a\r\n\r\n",
    "large headers": GET + b"x-large: " + b"x" * 100_000 + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "a body that HTTP/1.0 forbids": b"GET / HTTP/1.0\r\ncontent-length: 1\r\n\r\na",
    "unknown coding": b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "half a body": b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{",
    "half a chunk": b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n64\r\n{",
    "a second half": GET + b"\r\n" + b"GET /hea",
}
"""What is sent, by its name."""

End = Literal["closed", "reset", "half closed"]
"""How the client ends the connection. Half closed: it sends no more, and waits until the server closes it."""

SLOW: Mapping[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "request line": (b"GET /", b"a"),
    "header": (GET + b"x-slow: ", b"a"),
    "headers": (GET, b"a: b\r\n"),
    "second request": (GET + b"\r\nGET /", b"a"),
}
"""What is sent at once, and then again and again, without ever completing a request; by its name."""

_SOURCES = [f"127.0.0.{number}" for number in range(2, 10)]
"""Connections from 127.0.0.1 would count as those of the machine itself."""

_PATIENCE_S = 120.0


@asynccontextmanager
async def _connection(port: int, source: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def broken(port: int, content: bytes, end: End, source: str = "127.0.0.1") -> bytes:
    """Sends the content and ends the connection. Returns what the server sent, if the client waits for it."""
    received = b""
    async with asyncio.timeout(_PATIENCE_S):
        with suppress(OSError):  # the server was quicker
            async with _connection(port, source) as (reader, writer):
                writer.write(content)
                await writer.drain()
                if end == "half closed":
                    writer.write_eof()
                    received = await reader.read()
                if end == "reset":
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.close()
                await writer.wait_closed()
    return received


async def slow(port: int, first: bytes, again: bytes, every_s: float, source: str = "127.0.0.1") -> bytes:
    """Sends a part every now and then until the server closes the connection, and returns what that sent.

    Raises TimeoutError if the server keeps the connection.
    """
    received = bytearray()
    async with asyncio.timeout(_PATIENCE_S):
        with suppress(ConnectionError):
            async with _connection(port, source) as (reader, writer):
                writer.write(first)
                while not reader.at_eof():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(every_s):
                            received += await reader.read(65536)
                    writer.write(again)
    return bytes(received)


def kinds() -> Iterator[tuple[bytes, End]]:
    """Every broken content with every end."""
    yield from itertools.product(BROKEN.values(), get_args(End))


async def flood(port: int, count: int, slow_count: int, *, every_s: float, at_once: int, pause_s: float = 0.0) -> None:
    """Sends broken connections of every kind, some at once, and slow ones meanwhile, from several addresses."""
    sources, dripping = itertools.cycle(_SOURCES), itertools.cycle(SLOW.values())
    slowly = [slow(port, *next(dripping), every_s, next(sources)) for _ in range(slow_count)]
    waiting = iter(list(itertools.islice(itertools.cycle(kinds()), count)))

    async def work() -> None:
        for content, end in waiting:
            await broken(port, content, end, next(sources))
            await asyncio.sleep(pause_s)

    await asyncio.gather(*slowly, *(work() for _ in range(at_once)))


if __name__ == "__main__":
    asyncio.run(flood(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), every_s=2.0, at_once=50, pause_s=0.1))
