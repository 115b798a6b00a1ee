"""Which connections are reused, and how long idle ones are kept."""

import asyncio

import pytest

from app.upstream.http.client import Origin, Pool, place
from app.upstream.http.connection import Connection, NotConnected
from tests.support.processes.raw_server import Server, serving

WITHIN_S = 20.0


async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def used(pool: Pool, origin: Origin) -> Connection:
    """A connection that has just served a request."""
    connection = await pool.connected(origin, WITHIN_S)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
    await connection.wait_for_response()
    return connection


async def test_the_connection_that_was_used_last_is_the_next() -> None:
    pool = Pool()
    async with serving(answer) as server:
        origin = place(server.url).origin
        connections = [await used(pool, origin) for _ in range(3)]
        for connection in connections:
            pool.release(origin, connection)
        assert [pool.idle(origin) for _ in range(4)] == [*reversed(connections), None]
        assert pool.idle(Origin(False, "elsewhere", 80)) is None
        pool.close()


async def test_a_connection_that_waits_too_long_is_closed() -> None:
    pool = Pool(keep_alive_s=0.001)
    async with serving(answer) as server:
        origin = place(server.url).origin
        pool.release(origin, await used(pool, origin))
        async with asyncio.timeout(WITHIN_S):
            await server.ended.wait()
        assert pool.idle(origin) is None


async def test_a_closed_pool_keeps_and_makes_no_connections() -> None:
    pool = Pool()
    async with serving(answer) as server:
        origin = place(server.url).origin
        busy = await used(pool, origin)
        pool.release(origin, await used(pool, origin))
        pool.close()
        pool.release(origin, busy)
        assert pool.idle(origin) is None
        assert not busy.is_open
        with pytest.raises(NotConnected):
            await pool.connected(origin, WITHIN_S)
