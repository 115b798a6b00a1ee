"""The client against servers that speak in raw bytes.

Which connections are reused, and how long idle ones are kept.

A request's head.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.internal_api import SILENT_S
from app.upstream.http import client as pool
from app.upstream.http.client import HttpClient, Origin, Pool, Response, place
from app.upstream.http.connection import Connection, ConnectTimedOut, Disconnected, Malformed, NotConnected
from tests.support.processes.certificates import certificate_for, server_context
from tests.support.processes.keepalive import keepalive_timers
from tests.support.processes.raw_server import Server, serving

WITHIN_S = 20.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
LONG = bytes(range(256)) * 80_000
"""20 MB."""


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient()
    yield client
    client.close()
    await asyncio.sleep(0.01)  # the servers notice the close


async def post(client: HttpClient, url: str, body: bytes = b"{}") -> Response:
    return await client.post(url, {"content-type": "application/json"}, body, WITHIN_S)


async def whole(response: Response) -> bytes:
    parts = []
    try:
        while part := await response.read():
            parts.append(part)
    finally:
        response.close()
    return b"".join(parts)


async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A well-behaved server."""
    while True:
        await server.request(reader)
        writer.write(OK)


async def answer_once(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that closes a connection without announcing it."""
    await server.request(reader)
    writer.write(OK)


async def end_the_second(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that closes a connection when its second request arrives, without answering it."""
    await server.request(reader)
    writer.write(OK)
    await server.request(reader)


async def test_a_response_without_a_body_yet_is_there_for_those_who_wait_for_its_head(client: HttpClient) -> None:
    goes_on = asyncio.Event()

    async def slow(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.request(reader)
            writer.write(OK[:-2])
            await goes_on.wait()
            writer.write(OK[-2:])

    async with serving(slow) as server:
        response = await client.post(server.url, {"content-type": "application/json"}, b"{}", WITHIN_S, at_head=True)
        assert response.status == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(client, server.url), 0.1)
        goes_on.set()
        assert await whole(response) == b"{}"
        assert await whole(await post(client, server.url)) == b"{}", "the connection is as good as new"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_requests_one_after_the_other_share_a_connection(client: HttpClient, host: str) -> None:
    async with serving(answer, host=host) as server:
        for number in range(3):
            response = await post(client, f"{server.url}/{number}")
            assert (response.status, await whole(response)) == (200, b"{}")
    assert server.requests == [b"POST /0", b"POST /1", b"POST /2"]
    assert server.connections == 1


async def test_requests_at_once_have_a_connection_each_and_leave_them_to_the_next(client: HttpClient) -> None:
    async with serving(answer) as server:
        for _ in range(2):
            responses = await asyncio.gather(*(post(client, server.url) for _ in range(5)))
            assert [await whole(response) for response in responses] == [b"{}"] * 5
        assert server.connections == 5


async def test_a_connection_fails_when_the_other_machine_is_silent(client: HttpClient) -> None:
    async with serving(answer) as server:
        await whole(await post(client, server.url))
        due_s = keepalive_timers(os.getpid())[int(server.url.rpartition(":")[2])]
        assert due_s is not None, "no keepalive"
        assert due_s <= SILENT_S / 2


async def test_a_connection_that_the_server_closes_is_not_used_again(client: HttpClient) -> None:
    async with serving(answer_once) as server:
        for _ in range(3):
            assert await whole(await post(client, server.url)) == b"{}"
            await server.ended.wait()
            await asyncio.sleep(0.02)
        assert server.connections == 3


async def test_a_post_on_a_connection_that_ends_meanwhile_is_sent_once(client: HttpClient) -> None:
    async with serving(end_the_second) as server:
        await whole(await post(client, server.url))
        with pytest.raises(Disconnected):
            await post(client, server.url)
    assert len(server.requests) == 2


async def test_a_get_on_a_connection_that_ends_meanwhile_is_sent_again(client: HttpClient) -> None:
    async with serving(end_the_second) as server:
        for _ in range(2):
            assert await whole(await client.get(server.url, {}, WITHIN_S)) == b"{}"
    assert server.requests == [b"GET /"] * 3


async def test_a_response_that_is_closed_early_ends_its_connection(client: HttpClient) -> None:
    async def stream(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert await reader.read() == b"", "until the client closes"

    async with serving(stream) as server:
        response = await post(client, server.url)
        assert await response.read() == b"x"
        response.close()
        async with asyncio.timeout(WITHIN_S):
            await server.ended.wait()


async def test_a_cancelled_request_ends_its_connection(client: HttpClient) -> None:
    async def hang(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        arrived.set()
        assert await reader.read() == b"", "until the client closes"

    arrived = asyncio.Event()
    async with serving(hang) as server:
        request = asyncio.create_task(post(client, server.url))
        await arrived.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(WITHIN_S):
            await server.ended.wait()


async def test_a_response_that_breaks_off_is_malformed(client: HttpClient) -> None:
    async def break_off(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(OK[:-1])

    async with serving(break_off) as server:
        response = await post(client, server.url)
        with pytest.raises(Malformed):
            await whole(response)


async def test_long_bodies_go_both_ways_past_slow_readers(client: HttpClient) -> None:
    async def echo(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 100_000):
            writer.write(body[start : start + 100_000])
            await writer.drain()

    async with serving(echo) as server:
        response = await post(client, server.url, LONG)
        parts = [await response.read()]
        await asyncio.sleep(0.05)
        while part := await response.read():
            parts.append(part)
        response.close()
        assert b"".join(parts) == LONG
        assert max(map(len, parts)) < 1_000_000


async def test_an_answer_before_the_whole_body_is_sent_is_taken(client: HttpClient) -> None:
    async def refuse(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.replace(b"200 OK", b"413 Too Large"))
        await writer.drain()
        await over.wait()

    over = asyncio.Event()
    async with serving(refuse) as server:
        response = await post(client, server.url, LONG)
        assert (response.status, await whole(response)) == (413, b"{}")
        over.set()


async def test_a_server_that_cannot_be_reached(client: HttpClient) -> None:
    async with serving(answer) as server:
        pass
    with pytest.raises(NotConnected):
        await post(client, server.url)
    with pytest.raises(NotConnected):
        await post(client, "http://no-such-name.invalid/")


async def test_a_connection_that_takes_too_long() -> None:
    client = HttpClient()
    with pytest.raises(ConnectTimedOut):
        await client.post("http://127.0.0.1:1", {}, b"", 0.0)
    client.close()


async def test_redirects_that_keep_the_request_are_followed(client: HttpClient) -> None:
    async def redirect(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.request(reader)
            path = server.requests[-1].split()[1]
            where = {b"/": b"308", b"/round": b"307", b"/get": b"303"}.get(path)
            to = b"/round" if path == b"/round" else b"/there"
            moved = b"HTTP/1.1 %b Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (where or b"", to)
            writer.write(moved if where else OK)

    async with serving(redirect) as server:
        assert await whole(await post(client, server.url)) == b"{}"
        assert server.requests == [b"POST /", b"POST /there"]
        assert (await post(client, f"{server.url}/get")).status == 303
        with pytest.raises(Malformed):
            await post(client, f"{server.url}/round")


async def test_another_server_gets_no_credentials(client: HttpClient) -> None:
    async def note(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)

    async def send_there(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 308 Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % other.url.encode())

    heads: list[bytes] = []
    async with serving(note) as other, serving(send_there) as server:
        secrets = {"authorization": "Bearer secret", "x-switchyard-key": "secret", "x": "y"}
        assert await whole(await client.get(server.url, secrets, WITHIN_S)) == b"{}"
    assert [head.count(b"secret") for head in heads] == [2, 0]
    assert b"x: y" in heads[1]


@pytest.fixture
def no_authorities() -> Iterator[None]:
    pool.tls_context.cache_clear()
    yield
    pool.tls_context.cache_clear()


@pytest.mark.usefixtures("no_authorities")
async def test_tls_verifies_the_servers_name(
    client: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificate_for("127.0.0.1", tmp_path)
    async with serving(answer, context=server_context(certificate, key)) as server:
        monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
        with pytest.raises(NotConnected):
            await post(client, server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        pool.tls_context.cache_clear()
        for _ in range(2):
            assert await whole(await post(client, server.url, LONG[:600_000])) == b"{}"
        with pytest.raises(NotConnected):
            await post(client, server.url.replace("127.0.0.1", "localhost"))
    assert server.requests == [b"POST /"] * 2


async def test_a_client_that_is_closed_ends_what_is_under_way(client: HttpClient) -> None:
    async def hang(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        arrived.set()
        await reader.read()

    arrived = asyncio.Event()
    async with serving(hang) as server:
        request = asyncio.create_task(post(client, server.url))
        await arrived.wait()
        client.close()
        with pytest.raises(Disconnected):
            await request
        await server.ended.wait()


async def answer_pool(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
    async with serving(answer_pool) as server:
        origin = place(server.url).origin
        connections = [await used(pool, origin) for _ in range(3)]
        for connection in connections:
            pool.release(origin, connection)
        assert [pool.idle(origin) for _ in range(4)] == [*reversed(connections), None]
        assert pool.idle(Origin(False, "elsewhere", 80)) is None
        pool.close()


async def test_a_connection_that_waits_too_long_is_closed() -> None:
    pool = Pool(keep_alive_s=0.001)
    async with serving(answer_pool) as server:
        origin = place(server.url).origin
        pool.release(origin, await used(pool, origin))
        async with asyncio.timeout(WITHIN_S):
            await server.ended.wait()
        assert pool.idle(origin) is None


async def test_a_closed_pool_keeps_and_makes_no_connections() -> None:
    pool = Pool()
    async with serving(answer_pool) as server:
        origin = place(server.url).origin
        busy = await used(pool, origin)
        pool.release(origin, await used(pool, origin))
        pool.close()
        pool.release(origin, busy)
        assert pool.idle(origin) is None
        assert not busy.is_open
        with pytest.raises(NotConnected):
            await pool.connected(origin, WITHIN_S)


def test_a_head_has_the_urls_parts_and_the_requests_headers() -> None:
    head = place("http://engine:8000/v1/chat").head("POST", {"x-request-id": "7", "x": "é"}, 12)
    assert head.decode() == (
        "POST /v1/chat HTTP/1.1\r\nHost: engine:8000\r\nAccept: */*\r\nContent-Length: 12\r\n"
        "x-request-id: 7\r\nx: é\r\n\r\n"
    )


def test_a_request_without_a_body_has_no_length() -> None:
    assert place("https://engine").head("GET", {}, None) == b"GET / HTTP/1.1\r\nHost: engine\r\nAccept: */*\r\n\r\n"


@pytest.mark.parametrize(
    ("url", "origin", "path", "host"),
    [
        ("http://[::1]:81/a", Origin(False, "::1", 81), "/a", "[::1]:81"),
        ("https://Engine/a%2Fb%20c?x=%20y", Origin(True, "engine", 443), "/a%2Fb%20c?x=%20y", "engine"),
        ("http://bücher.org/ü z", Origin(False, "xn--bcher-kva.org", 80), "/%C3%BC%20z", "xn--bcher-kva.org"),
    ],
    ids=["IPv6", "escaped", "not ASCII"],
)
def test_a_url_names_where_to_connect_and_what_to_ask_for(url: str, origin: Origin, path: str, host: str) -> None:
    connection = place(url)
    assert (connection.origin, connection.path) == (origin, path)
    assert f"Host: {host}\r\n" in connection.fixed


def test_a_name_and_password_in_the_url_are_sent() -> None:
    assert "Authorization: Basic dTpwIHc=\r\n" in place("http://u:p%20w@engine/").fixed


@pytest.mark.parametrize("url", ["/v1/chat", "ftp://engine/", "http://", "http://engine:x/"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  yarl's messages vary
        place(url)


@pytest.mark.parametrize("text", ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "\r\n\r\nGET /"])
def test_no_header_ends_its_line(text: str) -> None:
    at = place("http://engine/")
    for headers in ({"x": text}, {text: "x"}, {"first": "1", "x": text, "last": "2"}):
        with pytest.raises(ValueError, match="line break or a null byte"):
            at.head("POST", headers, 0)
