"""Keys and replicas: real HAProxy processes, with the configuration that Ray writes, in front of small servers."""

import asyncio
import http.client
import math
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from app.internal_api import AFFINITY_HEADER, ROUTER
from tests.support.ingress.haproxy import Ingress, Replica, ingress
from tests.support.processes.servers import free_port, serve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KEYS = [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(1, 201)]


AMPLE = 16
"""A bound that leaves room while a previous connection is still ending."""


@contextmanager
def opened(ingress: Ingress, path: str, header: str | None) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", ingress.port, timeout=30)) as connection:
        connection.request("GET", path, headers={} if header is None else {AFFINITY_HEADER: header})
        with connection.getresponse() as response:
            yield response


def replica(ingress: Ingress, header: str | None) -> str:
    """The name of the replica that answers."""
    with opened(ingress, "/name", header) as response:
        assert response.status == 200
        assert response.getheader("x-seen-key") == "none", "the key is for the ingress"
        return response.read().decode()


def homes(ingress: Ingress) -> dict[str, str]:
    return {key: replica(ingress, f"{key} {AMPLE}") for key in KEYS}


def application(name: str) -> Starlette:
    """Answers with its name: at once, or in a stream that lasts until the client disconnects."""

    async def whole(request: Request) -> Response:
        return PlainTextResponse(name, headers={"x-seen-key": request.headers.get(AFFINITY_HEADER, "none")})

    async def lasting(request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            yield name
            await asyncio.sleep(3600)

        return StreamingResponse(stream())

    return Starlette(routes=[Route("/lasting", lasting), Route("/{rest:path}", whole)])


@pytest.fixture(scope="module")
def replicas() -> Iterator[Sequence[Replica]]:
    with ExitStack() as servers:
        urls = {name: servers.enter_context(serve(application(name))) for name in ("a", "b", "c", "d", "e")}
        yield [Replica(name, "127.0.0.1", int(url.rpartition(":")[2])) for name, url in urls.items()]


@pytest.fixture(scope="module")
def four(replicas: Sequence[Replica], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingress]:
    with ingress(tmp_path_factory.mktemp("four"), replicas[:4]) as running:
        yield running


def test_a_key_keeps_its_replica_and_keys_are_dealt_out(four: Ingress) -> None:
    first = homes(four)
    assert homes(four) == first
    shares = Counter(first.values())
    assert shares.keys() == {"a", "b", "c", "d"}
    assert min(shares.values()) > len(KEYS) / 4 / 3


def test_every_node_computes_the_same_and_a_new_replica_takes_only_its_share(
    four: Ingress, replicas: Sequence[Replica], tmp_path: Path
) -> None:
    before = homes(four)
    elsewhere = [Replica(replica.name, "localhost", replica.port) for replica in reversed(replicas[:4])]
    with ingress(tmp_path / "node", elsewhere) as other:
        assert homes(other) == before
    with ingress(tmp_path / "more", replicas) as larger:
        after = homes(larger)
    moved = {key for key in KEYS if after[key] != before[key]}
    assert {after[key] for key in moved} == {"e"}
    assert 0 < len(moved) <= len(KEYS) * (1 / 5 + 0.1)


def under_way(four: Ingress, key: str, bound: str, number: int, stack: ExitStack) -> list[str]:
    """The replicas that served that many requests with the key, in order."""
    answers = []
    for _ in range(number):
        response = stack.enter_context(opened(four, "/lasting", f"{key} {bound}"))
        answers.append(response.read(1).decode())
    return answers


def room(requests: int, bound: float) -> int:
    """The number of `requests` that one of four replicas may have; once all are full, the least busy gets more."""
    mean = requests / 4
    return max(2, math.ceil(mean), math.floor(mean + bound * math.sqrt(mean)))


@pytest.mark.parametrize("bound", [0.5, 2])
def test_a_replica_takes_a_key_only_as_far_above_the_mean_as_the_request_says(
    replicas: Sequence[Replica], tmp_path: Path, bound: float
) -> None:
    with ingress(tmp_path / "own", replicas[:4]) as alone, ExitStack() as stack:
        home = replica(alone, f"{KEYS[0]} {AMPLE}")
        took: Counter[str] = Counter()
        order: list[str] = []
        for number, name in enumerate(under_way(alone, KEYS[0], str(bound), 24, stack), start=1):
            took[name] += 1
            assert took[name] <= room(number + 1, bound)  # the previous connection may not have ended yet
            order += [name] if name not in order else []
        assert order[0] == home
        assert max(took.values()) == took[home]
        # The overflow goes to the key's next replica, while that has room.
        assert took[order[1]] >= max((took[name] for name in order[2:]), default=0)
        assert max(took.values()) > 24 / 4, "with a bound of this size it is not least-connections"


@pytest.mark.parametrize("header", ["", "x", "0123 2", f"{'0' * 17} 2", f"{KEYS[0]} many", f"{KEYS[0]} 2 2", "0x12 -1"])
def test_without_a_usable_key_requests_go_round(four: Ingress, header: str) -> None:
    assert len({replica(four, header) for _ in range(8)}) > 1


def test_a_key_that_a_client_sends_does_not_choose_the_routers_replica(
    replicas: Sequence[Replica], tmp_path: Path
) -> None:
    with ingress(tmp_path / "router", replicas[:4], ROUTER) as routers:
        assert len({replica(routers, f"{KEYS[0]} {AMPLE}") for _ in range(8)}) > 1


@contextmanager
def broken() -> Iterator[int]:
    """Accepts connections and closes them without an answer, like a replica whose process is being killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("how", ["refuses connections", "closes them without an answer"])
def test_where_a_keys_replica_fails_another_one_answers(
    four: Ingress, replicas: Sequence[Replica], tmp_path: Path, how: str
) -> None:
    before = homes(four)
    with ExitStack() as stack:
        port = free_port() if how == "refuses connections" else stack.enter_context(broken())
        failing = [replica._replace(port=port) if replica.name == "a" else replica for replica in replicas[:4]]
        after = homes(stack.enter_context(ingress(tmp_path / "failing", failing)))
    assert "a" not in after.values()
    assert {key: name for key, name in after.items() if before[key] != "a"} == {
        key: name for key, name in before.items() if name != "a"
    }
