"""The ingress of a node that has just started."""

import asyncio

import pytest

from app.config.schema import Timeouts
from app.errors import Unavailable, Unreachable
from app.internal_api import INTERNAL_KEY_HEADER
from app.upstream.client import Upstream
from app.upstream.target import Target
from tests.support.processes.servers import free_port

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


def application(port: int) -> Target:
    return Target("blue", f"http://127.0.0.1:{port}", "m", {INTERNAL_KEY_HEADER: "key"})


async def test_an_application_is_waited_for_while_the_ingress_does_not_listen() -> None:
    port = free_port()
    async with Upstream() as upstream:
        call = upstream.unary(application(port), "/x", {}, request_id="1", timeouts=Timeouts(connect_s=30))
        calls = asyncio.create_task(call)
        await asyncio.sleep(0.15)
        assert not calls.done()
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            assert await calls == b"{}"


async def test_an_application_is_not_waited_for_longer_than_a_connection_may_take() -> None:
    async with Upstream() as upstream:
        with pytest.raises(Unavailable):
            await upstream.unary(application(free_port()), "/x", {}, request_id="1", timeouts=Timeouts(connect_s=0.05))


async def test_external_deployments_are_not_waited_for() -> None:
    target = Target("blue", f"http://127.0.0.1:{free_port()}", "m", {})
    async with Upstream() as upstream:
        with pytest.raises(Unreachable):
            await upstream.unary(target, "/x", {}, request_id="1", timeouts=Timeouts(connect_s=600))
