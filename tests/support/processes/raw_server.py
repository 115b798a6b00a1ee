"""Servers in this process that speak in raw bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[["Server", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Serves each connection with `serve`. `connections` and `requests` record what it has received."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.connections = 0
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(self, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.set()
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The body of the next request."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.partition(b" HTTP/1.1")[0])
        length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        return await reader.readexactly(int(length or 0))


@asynccontextmanager
async def serving(
    serve: Serve, *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    server = Server(serve)
    listener = await asyncio.start_server(server.serve, host, 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http{'s' if context else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        yield server
    finally:
        listener.close()


@asynccontextmanager
async def tls_in_front_of(port: int, context: ssl.SSLContext) -> AsyncIterator[Server]:
    """Terminates TLS for what listens on `port` of this machine."""

    async def pipe(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()

    async with serving(pipe, context=context) as server:
        yield server


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
