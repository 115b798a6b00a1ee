"""A server in front of an engine that breaks off some of the answers in every way that a server can."""

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import aiohttp

Way = Literal["reset", "stall", "half a character", "truncated chunk"]
WAYS: tuple[Way, ...] = get_args(Way)
EVERY = 8
"""One in this many answers breaks: within the retry budget, and never so many in a row that the breaker opens."""


@dataclass
class BreakingServer:
    """Forwards requests to `engine` (a base URL) with `headers`. `broken` counts broken answers by kind, streams
    separately."""

    engine: str
    headers: Mapping[str, str]
    broken: Counter[tuple[Way, bool]] = field(default_factory=Counter)
    _asked: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with one request."""
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, aiohttp.ClientError):
            pass  # the router closed the connection
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, _, rest = (await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")
        method, path, _ = request.split(" ")
        lines = (line.partition(":") for line in rest.lower().splitlines() if line)
        sent = {name: value.strip() for name, _, value in lines}
        body = await reader.readexactly(int(sent.get("content-length", 0)))
        way = self._way(method)
        async with (
            aiohttp.ClientSession(headers={"content-type": "application/json", **self.headers}) as session,
            session.request(method, self.engine + path, data=body) as answer,
        ):
            kind = answer.headers.get("content-type", "application/json")
            head = f"HTTP/1.1 {answer.status} x\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n"
            writer.write(head.encode() + b"connection: close\r\n\r\n")
            answered = answer.content.iter_any()
            if way is None:
                async for part in answered:
                    await _chunk(writer, part)
                await _end(writer)
            else:
                await self._begin(writer, answered)
                self.broken[way, "event-stream" in kind] += 1
                await _break(way, reader, writer)

    def _way(self, method: str) -> Way | None:
        if method != "POST":
            return None
        self._asked += 1
        return None if self._asked % EVERY else WAYS[self._asked // EVERY % len(WAYS)]

    async def _begin(self, writer: asyncio.StreamWriter, answered: AsyncIterator[bytes]) -> None:
        """Sends only the first bytes of the answer, up to a random place."""
        left = self._random.randrange(1, 600)
        async for part in answered:
            await _chunk(writer, part[:left])
            left -= len(part)
            if left <= 0:
                return


async def _chunk(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
    await writer.drain()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _break(way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    match way:
        case "stall":
            await reader.read()
        case "half a character":
            await _chunk(writer, "日".encode()[:2])
            await _end(writer)
        case "truncated chunk":
            writer.write(b"400\r\ndata: {")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        case "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@contextmanager
def breaking(engine: str, headers: Mapping[str, str]) -> Iterator[tuple[BreakingServer, str]]:
    """A running server, and its base URL."""
    server, loop = BreakingServer(engine, headers), asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    host, port = listening.sockets[0].getsockname()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server, f"http://{host}:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
