"""Requests to replicas that fail, and where there is none: sent once more, or through the ingress."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from app.config.schema import Timeouts
from app.errors import Incomplete, Unanswered, Unreachable, UpstreamError
from app.internal_api import INTERNAL_KEY_HEADER
from app.telemetry.logs import Lack
from app.upstream.balancer import Address, Balancer, Placement
from app.upstream.client import Upstream
from app.upstream.target import Target
from tests.support.processes.servers import free_port

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWER = HEAD + b"content-length: 2\r\n\r\n{}"
CUT = HEAD + b"content-length: 9\r\n\r\n{"
NOTHING = b""


class Servers:
    """Servers that answer each request with the same bytes, and close the connection."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.calls: list[str] = []
        """The names of those that were called."""

    async def start(self, name: str, answer: bytes) -> str:
        """Its origin."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            self.calls.append(name)
            writer.write(answer)
            await writer.drain()
            writer.close()

        port = free_port()
        await self._stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", port))
        return f"http://127.0.0.1:{port}"


@asynccontextmanager
async def application(
    *answers: bytes | None,
) -> AsyncIterator[tuple[Servers, Balancer, Callable[..., asyncio.Task[bytes]]]]:
    """The servers, `ingress` and one for each of the answers (None: it refuses connections); how to call them."""
    async with AsyncExitStack() as stack:
        servers, balancer = Servers(stack), Balancer()
        addresses = [
            Address(f"{number}", await servers.start(f"{number}", answer) if answer is not None else refusing(), "")
            for number, answer in enumerate(answers)
        ]
        balancer.update({"blue": addresses})
        target = Target("blue", await servers.start("ingress", ANSWER), "m", {INTERNAL_KEY_HEADER: "key"}, app="blue")
        upstream = await stack.enter_async_context(Upstream(balancer))

        def call(waits: bool = True) -> asyncio.Task[bytes]:
            called = upstream.unary(
                target, "/x", {}, request_id="1", timeouts=Timeouts(), placement=Placement(waits=waits)
            )
            return asyncio.create_task(called)

        yield servers, balancer, call


def refusing() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("failing", [None, NOTHING], ids=["refuses connections", "closes them without an answer"])
async def test_a_request_that_a_replica_does_not_answer_goes_to_another_one_which_gets_the_next_ones_too(
    failing: bytes | None,
) -> None:
    async with application(failing, ANSWER) as (servers, _, call):
        for _ in range(8):
            assert await call() == b"{}"
        assert servers.calls.count("0") <= 1
        assert servers.calls.count("1") == 8


async def test_a_replica_that_breaks_its_answer_off_gets_no_more_requests_and_nobody_gets_this_one() -> None:
    async with application(CUT, CUT, CUT) as (servers, _, call):
        with pytest.raises(Incomplete):
            await call()
        assert len(servers.calls) == 1
        with pytest.raises(Incomplete):
            await call()
        assert len(set(servers.calls)) == 2


async def test_no_more_than_two_replicas_get_a_request_that_is_not_answered() -> None:
    async with application(NOTHING, NOTHING, NOTHING) as (servers, _, call):
        with pytest.raises(Unanswered):
            await call()
        assert len(set(servers.calls)) == len(servers.calls) == 2


@pytest.mark.parametrize(("answer", "error"), [(NOTHING, Unanswered), (None, Unreachable)], ids=["closes", "refuses"])
async def test_where_another_deployment_takes_the_request_it_does_not_wait(
    answer: bytes | None, error: type[UpstreamError]
) -> None:
    async with application(answer) as (servers, balancer, call):
        with pytest.raises(error):
            await call(waits=False)
        balancer.update({})
        with pytest.raises(Unreachable):
            await call(waits=False)
        assert "ingress" not in servers.calls


async def test_otherwise_the_ingress_has_it_wait_unless_a_replica_may_have_died_of_it() -> None:
    async with application(None) as (servers, _, call):
        assert await call() == b"{}"
        assert servers.calls == ["ingress"]
    async with application(NOTHING) as (servers, balancer, call):
        with pytest.raises(Unanswered):
            await call()
        balancer.update({"blue": []})
        assert await call() == b"{}"
        assert servers.calls == ["0", "ingress"]


async def test_a_request_without_a_replica_waits_for_one_from_its_way_to_the_ingress_on() -> None:
    lacks: list[Lack] = []
    async with AsyncExitStack() as stack:
        servers, balancer = Servers(stack), Balancer()
        target = Target("blue", await servers.start("ingress", ANSWER), "m", {INTERNAL_KEY_HEADER: "key"}, app="blue")
        upstream = await stack.enter_async_context(Upstream(balancer))
        addresses = [Address("1", await servers.start("1", ANSWER), "")]
        for count in range(2):
            balancer.update({"blue": addresses[:count]})
            placement = Placement(lacks=lacks.append)
            await upstream.unary(target, "/x", {}, request_id="1", timeouts=Timeouts(), placement=placement)
    assert servers.calls == ["ingress", "1"]
    (lack,) = lacks
    assert lack.until is not None
    assert lack.since < lack.until


async def test_a_check_is_serves_own_of_the_replica() -> None:
    async with AsyncExitStack() as stack:
        servers = Servers(stack)
        upstream = await stack.enter_async_context(Upstream())
        assert await upstream.is_healthy(await servers.start("well", ANSWER))
        draining = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 8\r\n\r\nDRAINING"
        assert not await upstream.is_healthy(await servers.start("draining", draining))
        assert not await upstream.is_healthy(refusing())
