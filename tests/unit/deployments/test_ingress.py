"""What strangers can do to the ingress: a real HAProxy with the configuration of Ray and of the script."""

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from app.internal_api import ROUTER
from app.limits.bodies import CloseUnread
from deployments.haproxy import HEADERS_VARIABLE, METRICS_HOST_VARIABLE, PER_SOURCE_VARIABLE
from tests.support.ingress.flood import BROKEN, SLOW, End, broken, flood, kinds, slow
from tests.support.ingress.haproxy import Ingress, Replica, ingress
from tests.support.processes.servers import serve
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SOON = {HEADERS_VARIABLE: "3"}
"""Longer than an honest client on a busy machine takes between connecting and sending."""

STRANGER = "127.0.0.2"
"""An address of this machine whose connections count, other than those of 127.0.0.1."""


async def health(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def too_slow(request: Request) -> PlainTextResponse:
    """What the router does if a body does not arrive, only sooner."""
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(0.2):
            await request.body()
    return PlainTextResponse("too slow", 408)


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    routes = [Route("/v1/chat/completions", too_slow, methods=["POST"]), Route("/{rest:path}", health)]
    with serve(Starlette(routes=routes)) as url:
        yield Replica("a", "127.0.0.1", int(url.rpartition(":")[2]))


@pytest.fixture(scope="module")
def strict(replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingress]:
    """Headers must be there soon."""
    with ingress(tmp_path_factory.mktemp("strict"), [replica], ROUTER, variables=SOON) as running:
        yield running


def none_is_left(ingress: Ingress) -> None:
    def left() -> str:
        return f"{ingress.connections()} connections are left"

    wait_until(lambda: ingress.connections() == 0, left, within_s=2 * PATIENCE_S)


def status(port: int) -> int:
    """Of an honest request on a new connection."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/health", headers={"connection": "close"})
        return connection.getresponse().status


@contextmanager
def honest_client(port: int) -> Iterator[list[int]]:
    """A client that sends one request after the other meanwhile; the statuses of its answers."""
    statuses: list[int] = []
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            try:
                statuses.append(status(port))
            except OSError:
                statuses.append(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("end", ["closed", "reset", "half closed"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_connection_keeps_no_slot(strict: Ingress, name: str, end: End) -> None:
    async def five() -> None:
        await asyncio.gather(*(broken(strict.port, BROKEN[name], end) for _ in range(5)))

    asyncio.run(five())
    none_is_left(strict)


def test_a_byte_now_and_then_keeps_no_slot(strict: Ingress) -> None:
    """The server closes the connections, or `slow` would raise."""

    async def all_kinds() -> list[bytes]:
        return await asyncio.gather(*(slow(strict.port, *kind, every_s=0.5) for kind in SLOW.values()))

    answers = dict(zip(SLOW, asyncio.run(all_kinds()), strict=True))
    assert {name: b" 408 " in answer for name, answer in answers.items()} == dict.fromkeys(SLOW, True)
    none_is_left(strict)


CLIENT_S = 2

POST = b"POST /%b HTTP/1.1\r\nhost: a\r\n"
LENGTH, CHUNKED = b"content-length: 1000000000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "body after 404": (POST % b"nope" + LENGTH, b"x"),
    "chunks after 404": (POST % b"nope" + CHUNKED, b"1\r\nx\r\n"),
    "chunk's size after 404": (POST % b"nope" + CHUNKED, b"0"),
    "silence after 404": (POST % b"nope" + LENGTH, b""),
    "body after 408": (POST % b"v1/chat/completions" + LENGTH, b"x"),
    "chunk's size after 408": (POST % b"v1/chat/completions" + CHUNKED, b"0"),
    "body after HAProxy's own 404": (POST % b"-/routes" + LENGTH, b"x"),
}
"""Bodies that never end: what is sent at once, and then again and again."""


async def nothing_here(request: Request) -> PlainTextResponse:
    return PlainTextResponse("not found", 404)


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def silent_stream(request: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(2 * CLIENT_S)
        yield b"b"

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingress]:
    """An application that answers before it has read the body, behind an ingress with a short `timeout client`."""
    routes = [
        Route("/v1/chat/completions", too_slow, methods=["POST"]),
        Route("/length", length, methods=["POST"]),
        Route("/stream", silent_stream, methods=["POST"]),
        Route("/nope", nothing_here, methods=["POST"]),
        Route("/{rest:path}", health),
    ]
    with serve(CloseUnread(Starlette(routes=routes), linger_s=1)) as url:
        router = Replica("a", "127.0.0.1", int(url.rpartition(":")[2]))
        with ingress(tmp_path_factory.mktemp("patient"), [router], ROUTER, client_s=CLIENT_S) as running:
            yield running


@pytest.mark.parametrize("name", ENDLESS)
def test_a_body_that_never_ends_keeps_no_slot(patient: Ingress, name: str) -> None:
    """The server closes the connections, or `slow` would raise."""

    async def fifty() -> list[bytes]:
        return await asyncio.gather(*(slow(patient.port, *ENDLESS[name], every_s=0.3) for _ in range(50)))

    status = name.split()[-1].encode()
    for answer in asyncio.run(fifty()):
        assert answer == b"" or answer.startswith(b"HTTP/1.1 %b " % status), "nothing: the reset came first"
    none_is_left(patient)


def test_answers_that_are_never_read_keep_no_slot(patient: Ingress) -> None:
    connections = []
    for _ in range(5):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", patient.port))
        connection.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection.send(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
        connections.append(connection)
    none_is_left(patient)
    for connection in connections:
        connection.close()


def test_a_slow_upload_and_a_silent_stream_outlive_the_clients_timeout(patient: Ingress) -> None:
    parts = 5 * CLIENT_S

    async def upload() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", patient.port)
        writer.write(POST % b"length" + b"connection: close\r\ncontent-length: %d\r\n\r\n" % parts)
        for _ in range(parts):
            await asyncio.sleep(0.4)
            writer.write(b"x")
        received = await reader.read()
        writer.close()
        return received

    async def stream() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", patient.port)
        writer.write(POST % b"stream" + b"connection: close\r\ncontent-length: 1\r\n\r\nx")
        received = await reader.read()
        writer.close()
        return received

    async def both() -> tuple[bytes, bytes]:
        return await asyncio.gather(upload(), stream())

    uploaded, streamed = asyncio.run(both())
    assert uploaded.endswith(b"\r\n\r\n%d" % parts)
    assert streamed.endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


def test_a_client_that_sends_its_whole_body_first_sees_the_early_answer(patient: Ingress) -> None:
    for _ in range(10):
        with closing(HTTPConnection("127.0.0.1", patient.port, timeout=30)) as connection:
            connection.request("POST", "/nope", body=b"x" * 20_000_000)
            assert connection.getresponse().status == 404


def test_a_flood_leaves_an_honest_client_alone_and_no_connection_behind(strict: Ingress) -> None:
    with honest_client(strict.port) as statuses:
        asyncio.run(flood(strict.port, 10 * len(list(kinds())), 100, every_s=0.2, at_once=20))
    assert set(statuses) == {200}
    none_is_left(strict)


def test_a_process_that_is_replaced_ends_after_a_flood(replica: Replica, tmp_path: Path) -> None:
    with ingress(tmp_path / "old", [replica], ROUTER, variables=SOON) as running:
        asyncio.run(flood(running.port, len(list(kinds())), 5, every_s=0.2, at_once=5))
        running.process.send_signal(signal.SIGUSR1)  # as its successor does
        assert running.process.wait(60) == 0


def test_http_2_without_an_agreement_is_no_http(strict: Ingress) -> None:
    answer = asyncio.run(broken(strict.port, BROKEN["HTTP/2"], "half closed"))
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("target", "answered"),
    [
        ("http://a/health", 200),
        ("http://A/health", 200),
        ("http://a:80/health", 200),
        ("http://b/health", 400),
        ("http://a:81/health", 400),
        ("http://a.b/health", 400),
        ("https://b/health", 400),
        ("ftp://b/health", 400),
    ],
)
def test_a_target_with_another_host_than_the_header_is_refused(strict: Ingress, target: str, answered: int) -> None:
    """The router reads the header alone, which must not decide about a request for another host."""
    request = f"GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        connection.sendall(request)
        assert connection.recv(4096).startswith(b"HTTP/1.1 %d " % answered)


def next_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Its status and body, in however many parts it comes."""
    response = HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"], ids=["first", "second"])
@pytest.mark.parametrize("call", [b"GET /health", b"GET /v1/realtime", b"POST /v1/chat/completions"])
def test_a_websocket_is_refused_at_once(strict: Ingress, call: bytes, before: bytes) -> None:
    """HAProxy waits for the answer of a router that has served the connection before, and there is none."""
    upgrade = b" HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: WebSocket\r\nsec-websocket-version: 13\r\n"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as connection:
        if before:
            connection.sendall(before)
            assert next_answer(connection)[0] == 200
        connection.sendall(call + upgrade + b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        status, body = next_answer(connection)
    assert status == 404
    assert b"This server has no WebSockets" in body
    none_is_left(strict)


def opened(port: int, source: str, count: int) -> tuple[int, list[socket.socket]]:
    """The number of connections from this address that the ingress refused, and the others, each after a request."""
    refused, kept = 0, []
    for _ in range(count):
        connection = socket.socket()
        connection.bind((source, 0))
        connection.settimeout(30)
        try:
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            answered = connection.recv(4096).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            answered = False
        if answered:
            kept.append(connection)
        else:
            refused += 1
            connection.close()
    return refused, kept


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_one_address_has_a_bounded_number_of_connections_and_this_machine_has_not(
    replica: Replica, tmp_path: Path, cleanup: ExitStack
) -> None:
    with ingress(tmp_path / "bounded", [replica], ROUTER, variables={PER_SOURCE_VARIABLE: "20"}) as running:

        def refused(source: str, count: int) -> int:
            number, kept = opened(running.port, source, count)
            for connection in kept:
                cleanup.enter_context(closing(connection))
            return number

        assert refused(STRANGER, 30) == 10
        assert refused("127.0.0.3", 20) == 0, "another address has its own"
        assert refused("127.0.0.1", 40) == 0
        cleanup.close()
        wait_until(lambda: refused(STRANGER, 1) == 0, lambda: "closed connections count")


def configured(ingress: Ingress) -> Sequence[str]:
    return [line.strip() for line in (ingress.directory / "haproxy.cfg").read_text().splitlines()]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_only_the_public_port_is_public(replica: Replica, tmp_path: Path, host: str) -> None:
    with ingress(tmp_path / "closed", [replica], ROUTER, host=host) as running:
        assert running.addresses(running.port) == {host}
        assert running.addresses(running.metrics_port) == running.addresses(running.stats_port) == {"127.0.0.1"}
        assert (running.directory / "admin.sock").stat().st_mode & 0o777 == 0o600
        assert "tcp-request connection reject if { sc0_conn_cur gt 2048 } !{ src 127.0.0.1 ::1 }" in configured(running)
        assert "timeout http-request 10s" in configured(running)


def test_a_cluster_may_open_the_metrics_alone(replica: Replica, tmp_path: Path) -> None:
    with ingress(tmp_path / "open", [replica], ROUTER, variables={METRICS_HOST_VARIABLE: "*"}) as running:
        assert running.addresses(running.metrics_port) == {"0.0.0.0"}
        assert running.addresses(running.stats_port) == {"127.0.0.1"}


class Dying:
    """A server that reads whole requests and closes each connection after a `head`, or without an answer."""

    def __init__(self, head: bytes = b"") -> None:
        self.requests: list[bytes] = []
        self._head = head

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /-/healthz"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
            else:
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                self.requests.append(head)
                writer.write(self._head)
                await writer.drain()
        writer.close()


@contextmanager
def dying(number: int, head: bytes = b"") -> Iterator[tuple[Dying, Sequence[Replica]]]:
    """Replicas that die of every request, after a `head` if there is one."""
    server, loop = Dying(head), asyncio.new_event_loop()
    listening = [loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0)) for _ in range(number)]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        ports = [server.sockets[0].getsockname()[1] for server in listening]
        yield server, [Replica(f"r{place}", "127.0.0.1", port) for place, port in enumerate(ports)]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for listener in listening:
            listener.close()
        loop.close()


@pytest.mark.parametrize(
    ("header", "size", "sent"),
    [(b"", 100, 2), (b"content-encoding: gzip\r\n", 100, 1), (b"", 200_000, 1)],
    ids=["small", "compressed", "more than HAProxy keeps"],
)
def test_what_is_sent_to_a_second_router_has_at_most_64_kib_even_decoded(
    tmp_path: Path, header: bytes, size: int, sent: int
) -> None:
    with dying(3) as (server, replicas), ingress(tmp_path / "dying", replicas, ROUTER) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n%bcontent-length: %d\r\n\r\n"
            client.sendall(head % (header, size) + b"x" * size)
            assert client.recv(4096).startswith(b"HTTP/1.1 502 ")
        assert len(server.requests) == sent


def test_a_request_whose_head_a_replica_has_sent_is_sent_to_no_other(tmp_path: Path) -> None:
    """So a request that kills its replica kills no second one before the router knows (`HEAD_FIRST_HEADER`)."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with dying(3, head) as (server, replicas), ingress(tmp_path / "dying", replicas, "model") as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as client:
            client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            assert client.recv(4096) == b"", "the end of the connection, not of the answer"
        assert len(server.requests) == 1
