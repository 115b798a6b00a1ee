"""Keys and replicas: real HAProxy processes, with the configuration that Ray writes, in front of small servers."""

import asyncio
import http.client
import math
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from app.internal_api import AFFINITY_HEADER, ROUTER
from deployments.haproxy import write_script
from tests.support.processes.servers import free_port, serve
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KEYS = [f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" for number in range(1, 201)]


AMPLE = 16
"""A bound that leaves room while a previous connection is still ending."""


class Replica(NamedTuple):
    name: str
    host: str
    port: int


def config(directory: Path, port: int, replicas: Sequence[Replica], application: str) -> Path:
    """The configuration that Ray writes for one application with these replicas, and its own proxy behind them."""
    from ray.serve._private.common import RequestProtocol
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, HAProxyManager, ServerConfig
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import TargetGroup

    directory.mkdir(exist_ok=True)
    settings = HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=port, keep_alive_timeout_s=120),
        stats_port=free_port(),
        metrics_port=free_port(),
        socket_path=str(directory / "admin.sock"),
        server_state_base=str(directory),
        server_state_file=str(directory / "state"),
        nbthread=2,
        retry_on="conn-failure empty-response",
        retries=1,
    )
    servers = [ServerConfig(*replica) for replica in replicas]
    fallback = ServerConfig("serve_proxy", "127.0.0.1", free_port())
    manager = HAProxyManager.__ray_metadata__.modified_class
    group = TargetGroup(targets=[], route_prefix="/", protocol=RequestProtocol.HTTP, app_name=application)
    name = manager._generate_backend_name(manager, group)
    backend = BackendConfig(name, "/", app_name=application, servers=servers, fallback_server=fallback)
    path = directory / "haproxy.cfg"
    HAProxyApi(settings, {name: backend}, config_file_path=str(path))._generate_config_file_internal()
    return path


class Ingress:
    """A running HAProxy."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextmanager
    def open(self, path: str, header: str | None) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", path, headers={} if header is None else {AFFINITY_HEADER: header})
            with connection.getresponse() as response:
                yield response

    def replica(self, header: str | None) -> str:
        """The name of the replica that answers."""
        with self.open("/name", header) as response:
            assert response.status == 200
            assert response.getheader("x-seen-key") == "none", "the key is for the ingress"
            return response.read().decode()

    def answers(self) -> bool:
        with suppress(OSError):
            return bool(self.replica(None))
        return False

    def homes(self) -> dict[str, str]:
        return {key: self.replica(f"{key} {AMPLE}") for key in KEYS}


@contextmanager
def ingress(directory: Path, replicas: Sequence[Replica], application: str = "model") -> Iterator[Ingress]:
    running = Ingress(free_port())
    path = config(directory, running.port, replicas, application)
    log = directory / "haproxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen([write_script(directory), "-db", "-f", path], stdout=output, stderr=output)
    try:
        wait_until(running.answers, log.read_text)
        yield running
        assert "runtime error" not in log.read_text()
    finally:
        process.kill()
        process.wait()


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
    homes = four.homes()
    assert four.homes() == homes
    shares = Counter(homes.values())
    assert shares.keys() == {"a", "b", "c", "d"}
    assert min(shares.values()) > len(KEYS) / 4 / 3


def test_every_node_computes_the_same_and_a_new_replica_takes_only_its_share(
    four: Ingress, replicas: Sequence[Replica], tmp_path: Path
) -> None:
    before = four.homes()
    elsewhere = [Replica(it.name, "localhost", it.port) for it in reversed(replicas[:4])]
    with ingress(tmp_path / "node", elsewhere) as other:
        assert other.homes() == before
    with ingress(tmp_path / "more", replicas) as larger:
        after = larger.homes()
    moved = {key for key in KEYS if after[key] != before[key]}
    assert {after[key] for key in moved} == {"e"}
    assert 0 < len(moved) <= len(KEYS) * (1 / 5 + 0.1)


def under_way(four: Ingress, key: str, bound: str, number: int, opened: ExitStack) -> list[str]:
    """The replicas that served that many requests with the key, in order."""
    found = []
    for _ in range(number):
        response = opened.enter_context(four.open("/lasting", f"{key} {bound}"))
        found.append(response.read(1).decode())
    return found


def room(requests: int, bound: float) -> int:
    """The number of `requests` that one of four replicas may have; once all are full, the least busy gets more."""
    mean = requests / 4
    return max(2, math.ceil(mean), math.floor(mean + bound * math.sqrt(mean)))


@pytest.mark.parametrize("bound", [0.5, 2])
def test_a_replica_takes_a_key_only_as_far_above_the_mean_as_the_request_says(
    replicas: Sequence[Replica], tmp_path: Path, bound: float
) -> None:
    with ingress(tmp_path / "own", replicas[:4]) as alone, ExitStack() as opened:
        home = alone.replica(f"{KEYS[0]} {AMPLE}")
        took: Counter[str] = Counter()
        order: list[str] = []
        for number, name in enumerate(under_way(alone, KEYS[0], str(bound), 24, opened), start=1):
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
    assert len({four.replica(header) for _ in range(8)}) > 1


def test_a_key_that_a_client_sends_does_not_choose_the_routers_replica(
    replicas: Sequence[Replica], tmp_path: Path
) -> None:
    with ingress(tmp_path / "router", replicas[:4], ROUTER) as routers:
        assert len({routers.replica(f"{KEYS[0]} {AMPLE}") for _ in range(8)}) > 1


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
    before = four.homes()
    with ExitStack() as stack:
        port = free_port() if how == "refuses connections" else stack.enter_context(broken())
        failing = [it._replace(port=port) if it.name == "a" else it for it in replicas[:4]]
        after = stack.enter_context(ingress(tmp_path / "failing", failing)).homes()
    assert "a" not in after.values()
    assert {key: name for key, name in after.items() if before[key] != "a"} == {
        key: name for key, name in before.items() if name != "a"
    }
