"""The router's server writes what uvicorn writes, byte by byte, with less work, and starts requests a few at a time."""

import asyncio
from functools import partial
from itertools import chain, count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.server.http_protocol import STARTS_AT_ONCE, PlainCycle, Starts

PLAIN = st.sampled_from([b"content-type", b"x-request-id", b"date", b"cache-control"])
NAMES = PLAIN | st.sampled_from([b"Content-Type", b"x y", b"connection", b"content-length", b"transfer-encoding", b""])
VALUES = st.sampled_from([b"", b"text", b"close", b"chunked", b"5", b"a\tb", b"\xe9"]) | st.binary(max_size=3)
HEADERS = st.lists(st.tuples(PLAIN, VALUES), max_size=4) | st.lists(st.tuples(NAMES, VALUES), max_size=3)
LENGTHS = st.lists(st.tuples(st.just(b"content-length"), st.sampled_from([b"0", b"1", b"2", b"3"])), min_size=1)
BODIES = st.lists(st.tuples(st.binary(max_size=20), st.sampled_from([True, True, True, False])), max_size=5)
SHORT_BODIES = st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=3)


class Wire:
    """The transport of one connection: what was written, and None where it was closed."""

    def __init__(self) -> None:
        self.written: list[bytes | None] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.written.append(None)

    def is_closing(self) -> bool:
        return None in self.written

    def resume_reading(self) -> None:
        raise AssertionError("reading is not paused")


def cycle_of(kind: type[RequestResponseCycle], wire: Wire, method: str, *, keep_alive: bool) -> RequestResponseCycle:
    return kind(
        scope={"method": method},  # type: ignore[typeddict-item]
        transport=wire,  # type: ignore[arg-type]
        flow=FlowControl(wire),  # type: ignore[arg-type]
        logger=None,  # type: ignore[arg-type]
        access_logger=None,  # type: ignore[arg-type]
        access_log=False,
        default_headers=[(b"server", b"switchyard")],
        message_event=asyncio.Event(),
        expect_100_continue=True,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


async def sent(kind: type[RequestResponseCycle], messages: list[Any], method: str, *, keep_alive: bool) -> list[Any]:
    """What reaches the wire, the error that ends it, and what is left of the response."""
    wire = Wire()
    cycle = cycle_of(kind, wire, method, keep_alive=keep_alive)
    error = ""
    try:
        for message in messages:
            await cycle.send(message)
    except (RuntimeError, ValueError) as raised:
        error = str(raised)
    await asyncio.sleep(0)  # a head that no chunk followed
    closed = wire.written.count(None)
    whole = b"".join(part for part in wire.written if part is not None)
    return [whole, closed, error, cycle.response_started, cycle.response_complete, cycle.waiting_for_100_continue]


METHODS, STATUSES = st.sampled_from(["POST", "POST", "POST", "HEAD"]), st.sampled_from([200, 200, 204, 304, 503])


@given(METHODS, STATUSES, HEADERS | LENGTHS, BODIES | SHORT_BODIES, st.booleans())
def test_a_response_is_uvicorns_byte_by_byte(
    method: str, status: int, headers: list[tuple[bytes, bytes]], bodies: list[tuple[bytes, bool]], keep_alive: bool
) -> None:
    messages: list[Any] = [{"type": "http.response.start", "status": status, "headers": headers}]
    messages += [{"type": "http.response.body", "body": body, "more_body": more} for body, more in bodies]

    async def both() -> tuple[list[Any], list[Any]]:
        ours = await sent(PlainCycle, messages, method, keep_alive=keep_alive)
        return ours, await sent(RequestResponseCycle, messages, method, keep_alive=keep_alive)

    ours, theirs = asyncio.run(both())
    assert ours == theirs


async def test_the_head_is_written_with_the_first_chunk_or_once_the_event_loop_is_free() -> None:
    start: Any = {"type": "http.response.start", "status": 200, "headers": []}
    chunk: Any = {"type": "http.response.body", "body": b"a", "more_body": True}
    for follows_at_once in (True, False):
        cycle = cycle_of(PlainCycle, wire := Wire(), "POST", keep_alive=True)
        await cycle.send(start)
        assert wire.written == []
        if not follows_at_once:
            await asyncio.sleep(0)
        await cycle.send(chunk)
        await asyncio.sleep(0)
        assert len(wire.written) == (1 if follows_at_once else 2)
        assert b"".join(part for part in wire.written if part).endswith(b"\r\n\r\n1\r\na\r\n")


async def test_a_whole_answer_is_written_at_once() -> None:
    cycle = cycle_of(PlainCycle, wire := Wire(), "POST", keep_alive=False)
    await cycle.send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await cycle.send({"type": "http.response.body", "body": b"ab"})
    head = b"HTTP/1.1 200 OK\r\nserver: switchyard\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    assert wire.written == [head + b"ab", None]


async def test_a_chunk_waits_while_the_client_does_not_read_and_is_dropped_once_it_has_left() -> None:
    wire = Wire()
    cycle = cycle_of(PlainCycle, wire, "POST", keep_alive=True)
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(0)
    cycle.flow.pause_writing()
    chunk: Any = {"type": "http.response.body", "body": b"a", "more_body": True}
    waiting = asyncio.ensure_future(cycle.send(chunk))
    await asyncio.sleep(0)
    assert len(wire.written) == 1, "the head"
    cycle.flow.resume_writing()
    await waiting
    assert wire.written[1:] == [b"1\r\na\r\n"]
    cycle.disconnected = True
    await cycle.send(chunk)
    assert len(wire.written) == 2


@given(arriving=st.lists(st.integers(0, 3 * STARTS_AT_ONCE), max_size=8))
def test_requests_start_in_order_and_a_few_in_a_turn(arriving: list[int]) -> None:
    """`arriving`: how many come in each turn of the event loop."""

    async def started() -> list[list[int]]:
        starts, numbers = Starts(), count()
        turns: list[list[int]] = [[]]

        def start(number: int) -> None:
            turns[-1].append(number)

        for arrivals in arriving + [0] * sum(arriving):
            for _ in range(arrivals):
                starts.add(partial(start, next(numbers)))
            await asyncio.sleep(0)
            turns.append([])
        return turns

    turns = asyncio.run(started())
    assert list(chain(*turns)) == list(range(sum(arriving)))
    assert max(map(len, turns)) <= 2 * STARTS_AT_ONCE  # the rest of the arrivals' turn, and the next one's
