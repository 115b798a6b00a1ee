"""One connection: how it parses the bytes that arrive, in any pieces."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.upstream.http.connection import PIECE, Connection, Disconnected, HttpError, Malformed

CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\nlink: early\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Two: a \r\nx-two: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\ndata: \r\n5;ext=1\r\n12345\r\n2\r\n\n\n\r\n0\r\nTrailer: late\r\n\r\n"
)
BODY = b"data: 12345\n\n"
WITH_LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Transport:
    """The other side of a protocol: records what is written, and whether reading is paused."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.largest = 0
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data
        self.largest = max(self.largest, len(data))

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def opened() -> tuple[Connection, Any]:
    connection, transport = Connection(asyncio.get_running_loop()), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def requesting() -> tuple[Connection, Any]:
    connection, transport = opened()
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")
    return connection, transport


async def whole(connection: Connection) -> bytes:
    await connection.wait_for_response()
    parts = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    return [part for a, b in pairwise([0, *sorted(points), len(data)]) if (part := data[a:b])]


async def exchanged(parts: list[bytes]) -> tuple[Connection, bytes]:
    """A response that arrives in these parts, while its reader is waiting or not."""
    connection, _ = requesting()
    reader = asyncio.create_task(whole(connection))
    for number, part in enumerate(parts):
        connection.data_received(part)
        if number % 2:
            await asyncio.sleep(0)
    return connection, await reader


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_any_pieces_make_the_same_response(points: list[int]) -> None:
    connection, body = asyncio.run(exchanged(cut(CHUNKED, points)))
    assert (connection.status, body) == (200, BODY)
    assert connection.headers == {
        "content-type": "text/event-stream",
        "x-two": "a, b",
        "transfer-encoding": "chunked",
    }
    assert connection.is_reusable


async def test_every_byte_alone_makes_the_same_response() -> None:
    connection, body = await exchanged([bytes([byte]) for byte in CHUNKED])
    assert (body, connection.is_reusable) == (BODY, True)


@pytest.mark.parametrize("response", [CHUNKED, WITH_LENGTH])
async def test_a_response_that_ends_anywhere_before_its_end_is_an_error(response: bytes) -> None:
    begin = response.index(b"HTTP/1.1 200")
    head = response.index(b"\r\n\r\n", begin) + 4
    for end in range(len(response)):
        connection, _ = requesting()
        if end:
            connection.data_received(response[:end])
        connection.connection_lost(None)
        with pytest.raises(Disconnected if end < head else Malformed):
            await whole(connection)


async def test_received_data_is_read_before_the_error() -> None:
    connection, _ = requesting()
    connection.data_received(WITH_LENGTH[:-2])
    connection.connection_lost(ConnectionResetError())
    await connection.wait_for_response()
    assert await connection.read() == b"hel"
    with pytest.raises(Malformed):
        await connection.read()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip"]
)
async def test_without_a_length_a_body_ends_with_the_connection(head: bytes) -> None:
    connection, _ = requesting()
    connection.data_received(head + b"\r\n\r\nsome")
    connection.data_received(b" more")
    connection.connection_lost(None)
    assert await whole(connection) == b"some more"
    assert not connection.is_reusable


async def test_without_a_length_a_reset_is_no_end() -> None:
    connection, _ = requesting()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nsome")
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(Malformed):
        await whole(connection)


@pytest.mark.parametrize("status", [204, 304])
async def test_responses_with_these_statuses_have_no_body(status: int) -> None:
    connection, body = await exchanged([b"HTTP/1.1 %d X\r\netag: a\r\n\r\n" % status])
    assert (connection.status, body, connection.is_reusable) == (status, b"", True)


async def test_a_switch_of_protocols_ends_the_connection() -> None:
    switched = b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI"
    connection, body = await exchanged([switched])
    assert (connection.status, body, connection.is_reusable) == (101, b"", False)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        WITH_LENGTH + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother",
        WITH_LENGTH + b"junk",
    ],
    ids=["close", "HTTP/1.0", "a second response", "junk"],
)
async def test_a_connection_is_not_used_again_after(head: bytes) -> None:
    connection, body = await exchanged([head])
    assert (body, connection.is_reusable) == (b"hello", False)


async def test_a_connection_serves_one_request_after_the_other() -> None:
    connection, transport = requesting()
    for body in (b"hello", b"later"):
        connection.data_received(WITH_LENGTH.replace(b"hello", body))
        assert await whole(connection) == body
        assert connection.is_reusable
        connection.send(b"next", b"")
        assert not connection.is_reusable
    assert bytes(transport.written) == b"POST / HTTP/1.1\r\n\r\n{}nextnext"


async def test_data_without_a_request_closes_the_connection() -> None:
    connection, transport = requesting()
    connection.data_received(WITH_LENGTH)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert transport.closed
    assert not connection.is_open
    with pytest.raises(Disconnected):
        connection.send(b"POST / HTTP/1.1\r\n\r\n", b"{}")


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno length\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello, and more",
        b"HTTP/1.1 200 OK\r\n" + b"x: %b\r\n" % (b"y" * 100) * 1000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: " + b"y" * 100_000,
    ],
    ids=lambda response: repr(response[:40]),
)
async def test_an_invalid_response_is_an_error_and_closes_the_connection(response: bytes) -> None:
    connection, transport = requesting()
    for part in cut(response, list(range(0, len(response), 1000))):
        connection.data_received(part)
    with pytest.raises(Malformed):
        await whole(connection)
    assert transport.closed


async def test_a_server_waits_for_a_slow_reader() -> None:
    connection, transport = requesting()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % 10_000_000)
    sent = 0
    while not transport.paused:
        connection.data_received(b"x" * 50_000)
        sent += 50_000
    await connection.wait_for_response()
    assert 100_000 <= sent <= 200_000
    assert len(await connection.read()) == sent
    assert not transport.paused


async def test_a_long_body_is_written_as_the_server_takes_it() -> None:
    connection, transport = opened()
    connection.pause_writing()
    body = bytes(range(256)) * 8000
    connection.send(b"head", body)
    assert transport.written == b"head"
    connection.resume_writing()
    assert transport.written == b"head" + body
    assert transport.largest < len(body) / 4


async def test_a_response_before_the_whole_body_is_sent_is_read_and_ends_the_connection() -> None:
    connection, transport = opened()
    connection.pause_writing()
    connection.send(b"head", b"x" * 1_000_000)
    connection.data_received(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
    assert await whole(connection) == b"{}"
    assert connection.status == 413
    assert not connection.is_reusable
    connection.close()
    connection.resume_writing()
    assert transport.written == b"head"


async def test_a_reader_that_is_cancelled_leaves_the_connection_as_it_is() -> None:
    connection, _ = requesting()
    reader = asyncio.create_task(connection.wait_for_response())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    connection.data_received(WITH_LENGTH)
    assert await whole(connection) == b"hello"


async def test_an_error_is_raised_for_every_reader() -> None:
    connection, _ = requesting()
    connection.connection_lost(OSError())
    for _ in range(2):
        with pytest.raises(HttpError):
            await connection.wait_for_response()


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Taker:
    """Takes parts at once, or, from the next one on, as slowly as `slowly` says."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.slowly: asyncio.Event | None = None
        self.fails: Exception | None = None

    def __call__(self, part: bytes) -> Awaitable[None] | None:
        if self.fails is not None:
            raise self.fails
        if self.slowly is None:
            self.parts.append(part)
            return None
        return self._later(part, self.slowly)

    async def _later(self, part: bytes, go: asyncio.Event) -> None:
        await go.wait()
        self.parts.append(part)


async def handed() -> tuple[Connection, Any, Taker, asyncio.Task[bytes]]:
    """A connection whose parts are handed over, after the first."""
    connection, transport = requesting()
    connection.data_received(HEAD + chunked(b"a"))
    taker = Taker()
    task = asyncio.create_task(connection.each(taker))
    await asyncio.sleep(0)
    assert taker.parts == [b"a"]
    return connection, transport, taker, task


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
def test_any_pieces_are_handed_over_in_order(points: list[int]) -> None:
    async def handed_over() -> bytes:
        connection, _ = requesting()
        taker = Taker()
        task = asyncio.create_task(connection.each(taker))
        for number, part in enumerate(cut(CHUNKED, points)):
            connection.data_received(part)
            if number % 2:
                await asyncio.sleep(0)
        return b"".join([*taker.parts, await task])

    assert asyncio.run(handed_over()) == BODY


async def test_a_part_is_taken_where_it_arrives_and_the_last_is_returned() -> None:
    connection, _, taker, task = await handed()
    connection.data_received(chunked(b"b"))
    assert taker.parts == [b"a", b"b"], "before any task had a turn"
    connection.data_received(chunked(b"c") + END)
    assert await task == b"c"
    assert taker.parts == [b"a", b"b"]
    assert connection.is_reusable


async def test_an_end_that_comes_alone_returns_nothing() -> None:
    connection, _, taker, task = await handed()
    connection.data_received(END)
    assert (await task, taker.parts) == (b"", [b"a"])


async def test_parts_wait_while_one_is_taken_slowly_and_then_the_server_does() -> None:
    connection, transport, taker, task = await handed()
    taker.slowly = asyncio.Event()
    connection.data_received(chunked(b"b"))
    for _ in range(4):
        connection.data_received(chunked(b"x" * 50_000))
        await asyncio.sleep(0)
    assert taker.parts == [b"a"]
    assert transport.paused
    taker.slowly.set()
    connection.data_received(chunked(b"c") + END)
    last = await task
    assert b"".join([*taker.parts, last]) == b"ab" + b"x" * 200_000 + b"c"
    assert not transport.paused


async def test_others_have_their_turn_while_much_is_taken() -> None:
    connection, _, taker, task = await handed()
    connection.data_received(chunked(b"x" * 100_000))
    assert list(map(len, taker.parts)) == [1, PIECE]
    connection.data_received(chunked(b"y") + END)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    last = await task
    assert b"".join([*taker.parts, last]) == b"a" + b"x" * 100_000 + b"y"
    assert max(map(len, [*taker.parts, last])) == PIECE
    assert turns >= 100_000 // PIECE
    assert connection.is_reusable


async def test_an_error_in_taking_a_part_is_raised_where_the_end_is_awaited() -> None:
    connection, _, taker, task = await handed()
    taker.fails = ValueError("unreadable")
    connection.data_received(chunked(b"b"))
    with pytest.raises(ValueError, match="unreadable"):
        await task
    assert not connection.is_reusable


async def test_a_connection_that_breaks_raises_after_its_parts() -> None:
    connection, _, taker, task = await handed()
    connection.data_received(chunked(b"b"))
    connection.connection_lost(None)
    with pytest.raises(Malformed):
        await task
    assert taker.parts == [b"a", b"b"]


async def test_a_filter_makes_of_each_part_but_the_last_what_is_taken() -> None:
    connection, _ = requesting()
    taker = Taker()
    task = asyncio.create_task(connection.each(taker, lambda part: part.removeprefix(b"a") * 2))
    connection.data_received(HEAD + chunked(b"a"))
    await asyncio.sleep(0)
    for part in (b"ab", b"a", b"c"):
        connection.data_received(chunked(part))
    connection.data_received(chunked(b"ad") + END)
    assert (taker.parts, await task) == ([b"bb", b"cc"], b"ad")


async def test_the_first_part_is_taken_where_it_arrives_if_none_is_there_yet() -> None:
    connection, _ = requesting()
    connection.data_received(HEAD)
    taker = Taker()
    task = asyncio.create_task(connection.each(taker))
    await asyncio.sleep(0)
    connection.data_received(chunked(b"a"))
    assert taker.parts == [b"a"], "before any task had a turn"
    connection.data_received(END)
    assert await task == b""


async def test_nothing_is_handed_over_after_a_cancellation() -> None:
    connection, _, taker, task = await handed()
    task.cancel()
    connection.data_received(chunked(b"b"))
    with pytest.raises(asyncio.CancelledError):
        await task
    connection.data_received(chunked(b"c"))
    assert taker.parts == [b"a"]


async def test_unread_data_is_returned_again() -> None:
    connection, _ = requesting()
    connection.data_received(HEAD + chunked(b"a"))
    connection.unread(await connection.read())
    connection.data_received(chunked(b"b") + END)
    assert await connection.each(Taker()) == b"ab"
