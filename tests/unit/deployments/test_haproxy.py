"""The script that replaces HAProxy's binary: real HAProxy processes on loopback, in front of small servers."""

import asyncio
import http.client
import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route as HTTPRoute
from starlette.types import Receive, Scope, Send

from app.dialects.base import Dialect, Reply, Request, Route
from app.dialects.openai.dialect import OpenAI
from app.dialects.registry import DIALECTS
from app.internal_api import NO_ROUTE_HEADER, NO_SERVER_HEADER, SILENT_S
from app.server.asgi import HTTP10
from deployments.haproxy import (
    CHECKS_OF_DOWN_PER_S,
    CHECKS_PER_S,
    CLIENT_SILENT_S,
    RELOADS_PER_NODE_S,
    ROUTER_BACKEND,
    SETTINGS,
    cluster_settings,
    write_script,
)
from deployments.no_router import ERROR, PAGE
from tests.support.clients.node import run_script
from tests.support.engine.fake_engine import RawServer
from tests.support.processes.keepalive import keepalive_timers
from tests.support.processes.servers import free_port, serve
from tests.support.waiting import wait_until

CONFIG = """global
    maxconn 100
    stats socket {directory}/admin.sock mode 600 level admin expose-fd listeners
defaults
    mode http
    timeout connect 1s
    timeout client 30s
    timeout server 30s
    timeout http-keep-alive {keep_alive}s
    option idle-close-on-response
    retry-on conn-failure empty-response
    retries 1
    errorfile 503 {directory}/500.http
frontend http_frontend
    bind 127.0.0.1:{port}
    acl routes path -i /-/routes
    http-request return status 200 content-type text/plain string "every deployment" if routes
    acl healthcheck path -i /-/healthz
    http-request return status 200 content-type text/plain string "success" if healthcheck
    {drained}
    http-request set-header x-client-port %[src_port]
    use_backend {backend} if {{ path_beg {prefix} }}
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \\'%[path]\\' not found. Ping /-/routes."
backend {backend}
    # Enable HTTP connection reuse for better performance
    http-reuse always
    server replica 127.0.0.1:{replica} {check}
    {fallback}
"""


DRAINED = "# Override: force health checks to fail (used by drain/disable)"
"""Ray's line in the configuration of an ingress that it removes."""


class Proxy:
    """HAProxy's processes, each of which replaces the previous one."""

    def __init__(self, directory: Path) -> None:
        self.port, self._directory = free_port(), directory
        self._script = write_script(directory)
        self.processes: list[subprocess.Popen[bytes]] = []
        (directory / "500.http").write_text("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")

    def start(
        self,
        replica: int,
        keep_alive: int = 120,
        *,
        drained: bool = False,
        backend: str = ROUTER_BACKEND,
        prefix: str = "/v1",
        check: str = "check inter 100ms fall 1",
        fallback: str = "",
    ) -> None:
        config = self._directory / "with space.cfg"
        fields = {"directory": self._directory, "port": self.port, "replica": replica, "keep_alive": keep_alive}
        fields |= {"backend": backend, "prefix": prefix, "check": check, "fallback": fallback}
        config.write_text(CONFIG.format(**fields, drained=DRAINED if drained else ""))
        last = self.processes[-1:]
        replaced = [
            argument for old in last for argument in ("-sf", str(old.pid), "-x", f"{self._directory}/admin.sock")
        ]
        arguments = [str(self._script), "-db", "-f", str(config), *replaced]
        self.processes.append(subprocess.Popen(arguments))
        self.wait(200, "/-/healthz")
        for old in last:
            self.wait_until_stopping(old)

    def wait_until_stopping(self, process: subprocess.Popen[bytes]) -> None:
        """Returns when the process no longer listens, which may take a while after its signal."""

        def stopping() -> bool:
            try:
                connections = psutil.Process(process.pid).net_connections("tcp4")
            except psutil.NoSuchProcess:
                return True
            return not [connection for connection in connections if connection.status == psutil.CONN_LISTEN]

        wait_until(stopping, lambda: "the replaced HAProxy still listens")

    def wait(self, status: int, path: str) -> None:
        def answers() -> bool:
            with suppress(OSError):
                return self.get(path)[0] == status
            return False

        wait_until(answers, lambda: f"HAProxy does not answer {status} at {path}")

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], bytes]:
        connection = self.connection()
        try:
            return answer(connection, path, headers)
        finally:
            connection.close()


def answer(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], bytes]:
    connection.request("GET", path, headers=dict(headers or {}))
    response = connection.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


@contextmanager
def proxy(directory: Path) -> Iterator[Proxy]:
    started = Proxy(directory)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.wait()


def replica(name: str) -> Starlette:
    """Answers with its name and the request's id, or streams its name."""

    async def whole(request: HTTPRequest) -> PlainTextResponse:
        seen = {"x-seen-id": request.headers.get("x-request-id", ""), "x-seen-port": request.headers["x-client-port"]}
        seen["x-seen-sources"] = ", ".join(request.headers.getlist("x-forwarded-for"))
        return PlainTextResponse(name, headers=seen)

    async def stream(request: HTTPRequest) -> StreamingResponse:
        return StreamingResponse(iter([f"data: {name}\n\n"]), media_type="text/event-stream")

    return Starlette(routes=[HTTPRoute("/v1/whole", whole), HTTPRoute("/v1/stream", stream)])


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_an_error_of_haproxy_is_in_openais_form_with_the_clients_id(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        running.start(replica=free_port(), backend="http-blue")
        status, headers, body = running.get("/v1/whole", {"x-request-id": "mine-1"})
        assert (status, headers["content-type"], headers["x-request-id"]) == (503, "application/json", "mine-1")
        assert (headers[NO_SERVER_HEADER], headers["retry-after"]) == ("1", "2")
        assert headers["x-content-type-options"] == "nosniff"
        error = json.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("server_error", "service_unavailable")
        running.start(replica=free_port())
        status, headers, body = running.get("/nowhere", {"x-request-id": "mine-2"})
        assert (status, headers["x-request-id"], headers[NO_ROUTE_HEADER]) == (404, "mine-2", "1")
        assert b"routes" not in body


def expected(method: str, path: str, candidates: Sequence[tuple[Dialect, Route]], query: dict[str, str]) -> Reply:
    """The router's own error for that call, before it is configured."""
    request = Request(method, path, query=query, id='mine-"\\%"')
    claimed = [(dialect, route) for dialect, route in candidates if dialect.claims(route, request)]
    dialect, route = [*claimed, candidates[-1]][0]
    return dialect.render_error(ERROR, route.operation, request)


def check_answers_for_a_router(running: Proxy) -> None:
    """Every route of every dialect, other paths, and Azure's query."""
    calls: dict[tuple[str, str], list[tuple[Dialect, Route]]] = {}
    for dialect in DIALECTS:
        for route in dialect.routes:
            calls.setdefault((route.method, route.path), []).append((dialect, route))
    openais = (OpenAI(), Route("GET", "/", "none"))
    calls |= {
        ("GET", path): [openais]
        for path in ("/", "/health", "/ready", "/ui/sign-in", "/deployments/blue/health", "/nope")
    }
    with closing(running.connection()) as connection:
        for (method, path), candidates in calls.items():
            called = re.sub(r"\{[^}]+\}", "a-name", path)
            for query in ({}, {"api-version": "2024-05-01-preview"}):
                wanted = expected(method, called, candidates, query)
                where = called + ("?api-version=2024-05-01-preview" if query else "")
                connection.request(method, where, headers={"x-request-id": 'mine-"\\%"'})
                response = connection.getresponse()
                assert (response.status, response.read()) == (503, wanted.body), (method, where)
                assert response.getheader("content-type") == wanted.media_type
                assert (response.getheader("retry-after"), response.getheader(NO_ROUTE_HEADER)) == ("2", "1")
                for name, value in wanted.headers.items():
                    assert response.getheader(name) == value
        for path in ("/ui", "/docs", "/ui/"):
            connection.request("GET", path)
            response = connection.getresponse()
            assert (response.status, response.getheader("content-type")) == (503, "text/html; charset=utf-8")
            assert response.read().decode() == PAGE, "for a browser, which shows it and tries again"


def test_before_there_is_a_router_every_call_gets_the_routers_own_503(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        running.start(replica=free_port(), backend="http-blue", prefix="/elsewhere")
        check_answers_for_a_router(running)


def test_while_no_router_takes_requests_every_call_gets_the_routers_own_503(tmp_path: Path) -> None:
    """Its replicas have ended, but HAProxy still knows the application."""
    with proxy(tmp_path) as running:
        running.start(replica=free_port(), prefix="/")
        running.wait(503, "/v1/models")
        wait_until(lambda: NO_ROUTE_HEADER in running.get("/v1/models")[1], lambda: "the check has not failed yet")
        check_answers_for_a_router(running)


def test_a_router_that_no_check_has_missed_yet_leaves_browsers_the_page(tmp_path: Path) -> None:
    """It has just died: HAProxy cannot connect, and takes it for a server that is up."""
    with proxy(tmp_path) as running:
        running.start(replica=free_port(), prefix="/", check="")
        for path in ("/ui", "/docs", "/ui/"):
            status, headers, body = running.get(path)
            assert (status, headers["content-type"], headers["retry-after"]) == (503, "text/html; charset=utf-8", "2")
            assert body.decode() == PAGE.replace("\n", "")
        for path in ("/v1/models", "/ui/static/js/main.js", "/api/overview"):
            status, headers, body = running.get(path)
            assert (status, headers["content-type"]) == (503, "application/json")
            assert json.loads(body)["error"]["message"] == "No router is available at the moment"


async def test_a_browser_whose_request_a_dying_router_has_taken_gets_the_page(tmp_path: Path) -> None:
    async with RawServer(b"") as url:
        with proxy(tmp_path) as running:
            await asyncio.to_thread(running.start, port_of(url), prefix="/", check="")
            status, headers, body = await asyncio.to_thread(running.get, "/ui")
        assert (status, headers["content-type"]) == (502, "text/html; charset=utf-8")
        assert body.decode() == PAGE.replace("\n", "")


def test_browsers_get_the_page_while_serves_proxy_holds_the_requests_of_programs(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("held")) as url:
        running.start(free_port(), prefix="/", fallback=f"server fallback 127.0.0.1:{port_of(url)} check backup")
        wait_until(lambda: running.get("/v1/whole")[2] == b"held", lambda: "the check has not failed yet")
        status, headers, body = running.get("/ui")
        assert (status, headers["content-type"], body.decode()) == (503, "text/html; charset=utf-8", PAGE)
        running.start(port_of(url), prefix="/", fallback="server fallback 127.0.0.1:1 check backup")
        assert running.get("/ui")[0] == 404, "the application's own: here it has none"


def test_serves_404_for_an_application_that_is_being_deleted_is_the_routers_own_503(tmp_path: Path) -> None:
    async def serves(request: HTTPRequest) -> PlainTextResponse:
        path = request.url.path
        return PlainTextResponse(f"Path '{path}' not found. Ping http://.../-/routes for available routes.", 404)

    fallback = Starlette(routes=[HTTPRoute("/{path:path}", serves, methods=["GET", "POST", "DELETE", "PUT"])])
    with proxy(tmp_path) as running, serve(fallback) as url:
        running.start(port_of(url), prefix="/")
        check_answers_for_a_router(running)


def test_other_404s_pass_unchanged(tmp_path: Path) -> None:
    async def own(request: HTTPRequest) -> PlainTextResponse:
        return PlainTextResponse("no such thing", 404)

    with proxy(tmp_path) as running, serve(Starlette(routes=[HTTPRoute("/{path:path}", own)])) as url:
        running.start(port_of(url))
        status, headers, body = running.get("/v1/anything")
        assert (status, body, NO_ROUTE_HEADER in headers) == (404, b"no such thing", False)


NOT_HTTP = [
    b"hello\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET / HTTP/1.0\r\ncontent-length: 1\r\n\r\na",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
]


def test_bytes_that_are_not_http_get_a_status_and_the_connection_is_closed(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url:
        running.start(port_of(url))
        for sent in NOT_HTTP:
            with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
                connection.sendall(sent)
                answered = b"".join(iter(lambda: connection.recv(4096), b""))
            assert re.match(rb"HTTP/1.1 (400|413|422) ", answered), (sent, answered)


@pytest.mark.parametrize("given", [None, "with space", "x" * 129])
def test_an_unusable_request_id_is_replaced_for_the_client_and_the_router(tmp_path: Path, given: str | None) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url:
        running.start(port_of(url))
        headers = {} if given is None else {"x-request-id": given}
        new = running.get("/v1/whole", headers)[1]["x-seen-id"]
        assert re.fullmatch(r"[0-9a-f-]{36}", new)
        assert running.get("/v1/whole", {"x-request-id": "mine"})[1]["x-seen-id"] == "mine"


def test_the_last_address_that_the_router_sees_is_the_clients_own(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("a")) as url:
        running.start(replica=port_of(url))
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10, source_address=("127.0.0.7", 0))
        with closing(connection):
            _, headers, _ = answer(connection, "/v1/whole", {"x-forwarded-for": "203.0.113.9, 203.0.113.8"})
        assert headers["x-seen-sources"] == "203.0.113.9, 203.0.113.8, 127.0.0.7"


def test_a_request_that_a_replaced_process_hands_over_has_its_clients_address_last(tmp_path: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", 0, timeout=10, source_address=("127.0.0.7", 0))
    with proxy(tmp_path) as running, serve(replica("a")) as url, closing(connection):
        running.start(port_of(url))
        connection.port = running.port
        answer(connection, "/v1/whole")
        running.start(port_of(url))
        forged = {"x-forwarded-for": "203.0.113.9", "x-switchyard-handed-over": "forged"}
        assert answer(connection, "/v1/whole", forged)[1]["x-seen-sources"] == "203.0.113.9, 127.0.0.7"
    secret = tmp_path / "handover"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert len(secret.read_text()) == 32


def test_a_client_cannot_pass_for_a_replaced_process(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("a")) as url:
        running.start(port_of(url))
        for forged in ("", "1", "true", "${SWITCHYARD_INGRESS_HANDOVER}"):
            headers = {"x-forwarded-for": "203.0.113.9", "x-switchyard-handed-over": forged}
            assert running.get("/v1/whole", headers)[1]["x-seen-sources"] == "203.0.113.9, 127.0.0.1"


def test_serves_own_routes_are_closed_however_they_are_written(tmp_path: Path) -> None:
    with proxy(tmp_path) as running:
        running.start(replica=free_port())
        for path in ("/-/routes", "/-/ROUTES", "/%2D/routes", "//-/routes", "/-%2Froutes", "/-"):
            status, headers, body = running.get(path)
            assert (status, headers["content-type"]) == (404, "application/json"), path
            assert "x-request-id" in headers
            assert json.loads(body)["error"]["message"] == "No such route"
        assert running.get("/-/healthz")[0] == 200, "this machine's own probes"


@pytest.mark.parametrize("before", ["/v1/whole", "/v1/stream"])
def test_an_idle_connection_outlives_every_replica_that_its_process_knows(tmp_path: Path, before: str) -> None:
    with proxy(tmp_path) as running, serve(replica("green")) as green, ExitStack() as connections:
        with serve(replica("blue")) as blue:
            running.start(port_of(blue))
            kept = [connections.enter_context(closing(running.connection())) for _ in range(3)]
            for connection in kept:
                assert b"blue" in answer(connection, before)[2]
                assert connection.sock is not None, "it is kept, also after a stream"
            running.start(port_of(green))
        running.start(port_of(green))
        for connection in kept:
            status, headers, body = answer(connection, "/v1/whole", {"x-request-id": "mine"})
            assert (status, body, headers["x-seen-id"]) == (200, b"green", "mine")
            assert headers["connection"] == "close"
            assert "keep-alive" not in headers
        for old in running.processes[:-1]:
            assert old.wait(30) == 0, "a process without connections ends"


def test_a_stream_on_a_kept_connection_passes_through_the_old_process(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("green")) as green, closing(running.connection()) as kept:
        with serve(replica("blue")) as blue:
            running.start(port_of(blue))
            answer(kept, "/v1/whole")
            running.start(port_of(green))
        assert answer(kept, "/v1/stream")[2] == b"data: green\n\n"


def test_answers_announce_a_little_less_than_the_idle_time(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url:
        running.start(port_of(url))
        for path in ("/v1/whole", "/v1/stream"):
            assert running.get(path)[1]["keep-alive"] == "timeout=115"
        running.start(port_of(url), keep_alive=4)
        assert running.get("/v1/whole")[1]["keep-alive"] == "timeout=1"


def test_silent_connections_are_probed_with_tcp_keepalive(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url, closing(running.connection()) as kept:
        running.start(port_of(url))
        answer(kept, "/v1/whole")
        timers = keepalive_timers(running.processes[0].pid)
        for port, silent_s in ((kept.sock.getsockname()[1], CLIENT_SILENT_S), (port_of(url), SILENT_S)):
            due_s = timers[port]
            assert due_s is not None, "no keepalive"
            assert due_s <= silent_s / 2


def test_nodes_fetch_keeps_its_connection_for_longer_than_its_own_four_seconds(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url:
        running.start(port_of(url))
        printed = run_script("keep_alive.mjs", f"http://127.0.0.1:{running.port}/v1/whole", "x-seen-port")
    assert printed["first"] == printed["after_5_s"]


@pytest.mark.parametrize("header", [b"", b"connection: keep-alive\r\n"])
def test_an_http_1_0_client_gets_a_stream_with_its_length(tmp_path: Path, header: bytes) -> None:
    """HAProxy passes the version on, so the router knows that the client cannot read chunks."""

    async def router(scope: Scope, receive: Receive, send: Send) -> None:
        await HTTP10(replica("blue"))(scope, receive, send)

    with proxy(tmp_path) as running, serve(router) as url:
        running.start(port_of(url))
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
            connection.sendall(b"GET /v1/stream HTTP/1.0\r\n" + header + b"\r\n")
            response = http.client.HTTPResponse(connection)
            response.begin()
            content = response.read()
    assert (response.getheader("transfer-encoding"), content) == (None, b"data: blue\n\n")
    assert response.getheader("content-length") == str(len(content))


def test_an_ingress_that_is_taken_away_is_not_healthy_and_serves_until_then(tmp_path: Path) -> None:
    with proxy(tmp_path) as running, serve(replica("blue")) as url:
        running.start(port_of(url))
        assert running.get("/health")[0] == 404, "the application's own: here it has none"
        running.start(port_of(url), drained=True)
        status, _, body = running.get("/health")
        assert (status, json.loads(body)["error"]["code"]) == (503, "service_unavailable")
        assert running.get("/v1/whole")[0] == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("drained", [False, True])
def test_the_rules_fit_the_configuration_that_ray_writes(tmp_path: Path, drained: bool) -> None:
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

    options = HTTPOptions(host="0.0.0.0", port=free_port(), keep_alive_timeout_s=120)
    settings = HAProxyConfig(
        http_options=options,
        socket_path=str(tmp_path / "admin.sock"),
        server_state_base=str(tmp_path),
        server_state_file=str(tmp_path / "state"),
        has_received_routes=True,
        has_received_servers=True,
        pass_health_checks=not drained,
    )
    replica, proxy = ServerConfig("replica", "127.0.0.1", 1), ServerConfig("fallback", "127.0.0.1", 2)
    backend = BackendConfig(ROUTER_BACKEND, "/", app_name="router", servers=[replica], fallback_server=proxy)
    path = tmp_path / "haproxy.cfg"
    HAProxyApi(settings, {ROUTER_BACKEND: backend}, config_file_path=str(path))._generate_config_file_internal()
    done = subprocess.run([write_script(tmp_path), "-c", "-f", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = path.read_text()
    assert "errorfile" not in written
    assert '-/routes for available routes."\n' not in written, "what Serve answers itself"
    assert written.count("if { path /health }") == drained
    assert written.count(DRAINED) == drained
    for line in (
        "http-after-response set-header keep-alive timeout=115 unless { stopping }",
        "use_backend successor if { stopping }",
        f"server public 127.0.0.1:{options.port}",
        "acl this_machine src 127.0.0.0/8 ::1",
        f"on-error mark-down tcp-ut {SILENT_S}s",
        f"check backup tcp-ut {SILENT_S}s",
        "option disable-h2-upgrade",
        "acl router_up srv_is_up(replica)",
    ):
        assert written.count(line) == 1, line


def test_small_clusters_have_rays_own_settings() -> None:
    assert (
        cluster_settings(1)
        == cluster_settings(10)
        == {
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "5s",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_FASTINTER": "250ms",
            "RAY_SERVE_HAPROXY_HEALTH_CHECK_DOWNINTER": "250ms",
            "RAY_SERVE_HAPROXY_BROADCAST_COALESCE_S": "0.1",
        }
    )


@pytest.mark.parametrize("nodes", [1, 25, 26, 50, 51, 564, 5000])
def test_checks_and_reloads_are_bounded_however_large_the_cluster_is(nodes: int) -> None:
    settings = {name.removeprefix("RAY_SERVE_HAPROXY_"): value for name, value in cluster_settings(nodes).items()}
    assert nodes / int(settings["HEALTH_CHECK_INTER"].removesuffix("s")) <= CHECKS_PER_S
    for name in ("HEALTH_CHECK_FASTINTER", "HEALTH_CHECK_DOWNINTER"):
        assert 1000 * nodes / int(settings[name].removesuffix("ms")) <= CHECKS_OF_DOWN_PER_S
    assert float(settings["BROADCAST_COALESCE_S"]) >= nodes * RELOADS_PER_NODE_S


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ray_still_reads_the_settings() -> None:
    from ray.serve._private import constants

    for name in {**SETTINGS, **cluster_settings(1)}:
        assert hasattr(constants, name)
