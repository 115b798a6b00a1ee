"""Calls of deployments: the handling of each response, and of missing ones."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace

import pytest

from app.config.schema import Timeouts
from app.engine.errors import ENGINE_DIED
from app.errors import (
    AtCapacity,
    Broken,
    Incomplete,
    Queued,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unanswered,
    Unreachable,
)
from app.exchange.stream import DeliveredStream
from app.internal_api import CONTINUATION_HEADER, CONTINUATION_MARKED
from app.upstream.client import Upstream, incomplete
from app.upstream.target import Target
from tests.support.processes.raw_server import Server, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from ray.serve.exceptions import BackPressureError

TIMEOUTS = Timeouts()
STREAMED = "/v1/chat/completions"
EVENT = b'data: {"choices":[]}\n\n'
REJECTION = b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}'


def head(status: int, media_type: str, length: int, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {media_type}", f"content-length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(status: int, body: bytes, *more: str, media_type: str | None = None) -> bytes:
    if media_type is None:
        media_type = "text/event-stream" if body.startswith(b"data:") else "application/json"
    return head(status, media_type, len(body), *more) + body


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        yield upstream


def target(url: str) -> Target:
    return Target("green", url, "m", {"authorization": "Bearer key"})


async def called(upstream: Upstream, url: str, *, stream: bool = False, timeouts: Timeouts = TIMEOUTS) -> bytes:
    if not stream:
        return await upstream.unary(target(url), "/v1/x", {"a": 1}, request_id="1", timeouts=timeouts)
    opened = upstream.stream(target(url), STREAMED, {"a": 1}, request_id="1", timeouts=timeouts)
    with closing(opened) as chunks:
        await chunks.begin()
        return b"".join([chunk async for chunk in chunks])


async def answered(upstream: Upstream, response: bytes, *, stream: bool = False) -> bytes:
    """The result of a call whose server sends `response` and closes the connection."""

    async def answer(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        writer.write(response)

    async with serving(answer) as server:
        return await called(upstream, server.url, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_whole_response_comes(upstream: Upstream, stream: bool) -> None:
    body = EVENT * 3 if stream else b'{"a":1}'
    assert await answered(upstream, whole(200, body), stream=stream) == body


async def test_the_request_has_the_targets_model_and_key(upstream: Upstream) -> None:
    async def note(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"}"))
        writer.write(whole(200, b"{}"))

    requests: list[bytes] = []
    async with serving(note) as server:
        context = {"traceparent": "00-a"}
        body = {"model": "green", "a": 1}
        await upstream.unary(target(server.url), "/v1/x", body, request_id="7", timeouts=TIMEOUTS, context=context)
    lines, _, sent = requests[0].decode().partition("\r\n\r\n")
    assert sent == '{"model":"m","a":1}'
    assert {
        "POST /v1/x HTTP/1.1",
        "authorization: Bearer key",
        "traceparent: 00-a",
        "content-type: application/json",
        "x-request-id: 7",
        "Content-Length: 19",
    } <= set(lines.split("\r\n"))


def test_an_application_s_answer_that_breaks_off_is_the_end_of_its_engine() -> None:
    elsewhere = target("http://localhost")
    assert incomplete(replace(elsewhere, app="green")).message == ENGINE_DIED
    assert incomplete(elsewhere).message == "Deployment 'green' ended its response before it was complete"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (b"", Unanswered, "is not available"),
        (b"HTTP/1.1 200 OK\r\n", Unanswered, "is not available"),
        (b"SSH-2.0-OpenSSH\r\n", Incomplete, "before it was complete"),
        (whole(401, b"{}"), Broken, "rejected the router's credentials"),
        (whole(400, REJECTION), Rejected, "too long"),
        (whole(400, REJECTION)[:-1], Incomplete, "before it was complete"),
        (whole(500, b"{}"), Broken, "failed while serving"),
        (whole(502, b"<html>", media_type="text/html"), Unanswered, "is not available"),
        (whole(503, b"{}"), AtCapacity, "at capacity"),
        (whole(503, b"Request dropped due to backpressure", media_type="text/plain"), AtCapacity, "at capacity"),
        (whole(503, str(BackPressureError(1, 1)).encode(), media_type="text/plain"), Queued, "at capacity"),
        (whole(503, b"{}", "x-switchyard-no-server: 1"), Unreachable, "is not available"),
    ],
)
async def test_other_responses_are_errors(
    upstream: Upstream, response: bytes, kind: type[SwitchyardError], words: str, stream: bool
) -> None:
    with pytest.raises(SwitchyardError, match=words) as raised:
        await answered(upstream, response, stream=stream)
    assert type(raised.value) is kind


async def test_a_refusal_in_pieces_is_read_to_its_end(upstream: Upstream) -> None:
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in REJECTION) + b"0\r\n\r\n"
    chunked = b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with pytest.raises(Rejected, match="too long"):
        await answered(upstream, chunked + pieces)


async def test_a_stream_that_begins_with_an_error_is_one(upstream: Upstream) -> None:
    with pytest.raises(Rejected, match="too long"):
        await answered(upstream, whole(200, b"data: " + REJECTION + b"\n\n"), stream=True)


async def test_an_empty_stream_is_an_error(upstream: Upstream) -> None:
    with pytest.raises(Incomplete, match="before it was complete"):
        await answered(upstream, whole(200, b"", media_type="text/event-stream"), stream=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_that_breaks_off_is_incomplete(upstream: Upstream, stream: bool) -> None:
    body = EVENT + b"x" if stream else b'{"a":1}'
    with pytest.raises(Incomplete, match="before it was complete"):
        await answered(upstream, whole(200, body)[:-1], stream=stream)


async def test_json_that_ends_in_order_but_too_early_is_an_error(upstream: Upstream) -> None:
    with pytest.raises(Incomplete):
        await answered(upstream, whole(200, b'{"a":'))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deployment_that_cannot_be_reached(upstream: Upstream, stream: bool) -> None:
    nowhere = "http://127.0.0.1:1"
    with pytest.raises(Unreachable):
        await called(upstream, nowhere, stream=stream)
    with pytest.raises(TimedOut, match="connecting"):
        await called(upstream, nowhere, stream=stream, timeouts=Timeouts(connect_s=1e-9))
    assert not await upstream.probe(target(nowhere), 5)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deployment_that_does_not_answer(upstream: Upstream, stream: bool) -> None:
    async def hang(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(hang) as server:
        with pytest.raises(TimedOut, match="did not respond"):
            await called(upstream, server.url, stream=stream, timeouts=Timeouts(first_byte_s=0.02))


async def test_a_successor_has_begun_with_its_first_token_which_may_have_no_event_yet(upstream: Upstream) -> None:
    """A tool's arguments may be silent for long."""
    parts = [b":t \n\n", b":t 17\n\n", EVENT + b":t 18\n\n"]

    async def stream(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        marked = f"{CONTINUATION_HEADER}: {CONTINUATION_MARKED}\r\n".encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        writer.write(head + marked + b"\r\n")
        for part in parts[:2]:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await begun.wait()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(parts[2]), parts[2]))

    groups, begun = DeliveredStream([16]), asyncio.Event()
    async with serving(stream) as server:
        opened = upstream.stream(
            target(server.url), STREAMED, {}, request_id="1", timeouts=Timeouts(first_byte_s=5), groups=groups
        )
        with closing(opened) as chunks:
            await chunks.begin(events=False)
            assert list(groups.tokens) == [16, 17]
            begun.set()
            assert [chunk async for chunk in chunks] == [EVENT]
    assert list(groups.tokens) == [16, 17, 18]


async def test_a_stream_that_is_left_early_ends_the_engines_work(upstream: Upstream) -> None:
    async def stream(server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.request(reader)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        assert await reader.read() == b"", "until the router closes"

    async with serving(stream) as server:
        opened = upstream.stream(target(server.url), STREAMED, {}, request_id="1", timeouts=TIMEOUTS)
        with closing(opened) as chunks:
            await chunks.begin()
            assert await anext(chunks) == EVENT
        await server.ended.wait()
