"""The ingress: a real HAProxy with the configuration that Ray writes, as the script changes it."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

import psutil

from deployments.haproxy import SETTINGS, write_script
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until


class Replica(NamedTuple):
    """A server behind the ingress."""

    name: str
    host: str
    port: int


@dataclass(frozen=True)
class Ingress:
    """A running HAProxy."""

    process: subprocess.Popen[bytes]
    directory: Path
    port: int
    stats_port: int
    metrics_port: int

    def answers(self) -> bool:
        """Whether a replica is up."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            with suppress(OSError, HTTPException):
                connection.request("GET", "/-/healthz")
                return connection.getresponse().status == 200
            return False

    def connections(self) -> int:
        """HAProxy's own number of connections, of the `maxconn` that it takes."""
        return current_connections(self.directory / "admin.sock")

    def addresses(self, port: int) -> set[str]:
        """Where the process listens on the port."""
        open_ones = psutil.Process(self.process.pid).net_connections("inet")
        listened = (open_one.laddr for open_one in open_ones if open_one.status == psutil.CONN_LISTEN)
        return {address.ip for address in listened if address.port == port}


def told(admin: Path, command: str) -> str:
    """What the HAProxy with this admin socket answers to the command."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(admin))
        client.sendall(f"{command}\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


def current_connections(admin: Path) -> int:
    """CurrConns of the HAProxy with this admin socket."""
    info = told(admin, "show info")
    return int(re.search(r"^CurrConns: (\d+)$", info, re.MULTILINE)[1])  # type: ignore[index]


@contextmanager
def ingress(
    directory: Path,
    replicas: Sequence[Replica],
    application: str = "model",
    *,
    host: str = "127.0.0.1",
    variables: Mapping[str, str] | None = None,
    client_s: int = int(SETTINGS["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]),
    health: str = "/-/healthz",
) -> Iterator[Ingress]:
    """HAProxy in front of one application with these replicas, once one of them is up. `variables` are for the
    script; `client_s` is `timeout client`; `health` is the path that it asks replicas for."""
    directory.mkdir(exist_ok=True)
    port, stats_port, metrics_port = free_port(), free_port(), free_port()
    observed = (stats_port, metrics_port)
    path = _config(directory, replicas, application, (host, port), observed, client_s, health)
    log = directory / "haproxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [write_script(directory), "-db", "-f", path],
            env={**os.environ, **(variables or {})},
            stdout=output,
            stderr=output,
        )
    running = Ingress(process, directory, port, stats_port, metrics_port)
    try:
        wait_until(running.answers, log.read_text)
        yield running
        assert "runtime error" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def _config(
    directory: Path,
    replicas: Sequence[Replica],
    application: str,
    listens: tuple[str, int],
    observed: tuple[int, int],
    client_s: int,
    health: str,
) -> Path:
    """The configuration that Ray writes for the application, with Ray's own proxy behind its replicas."""
    from ray.serve._private.common import RequestProtocol
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, HAProxyManager, ServerConfig
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import TargetGroup

    settings = HAProxyConfig(
        http_options=HTTPOptions(host=listens[0], port=listens[1], keep_alive_timeout_s=120),
        stats_port=observed[0],
        metrics_port=observed[1],
        timeout_client_s=client_s,
        socket_path=str(directory / "admin.sock"),
        metrics_socket_path=str(directory / "metrics.sock"),
        server_state_base=str(directory),
        server_state_file=str(directory / "state"),
        has_received_routes=True,
        has_received_servers=True,
        nbthread=2,
        retry_on=SETTINGS["RAY_SERVE_HAPROXY_RETRY_ON"],
        retries=int(SETTINGS["RAY_SERVE_HAPROXY_RETRIES"]),
        bufsize=int(SETTINGS["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"]),
    )
    fallback = ServerConfig("serve_proxy", "127.0.0.1", free_port())
    manager = HAProxyManager.__ray_metadata__.modified_class
    group = TargetGroup(targets=[], route_prefix="/", protocol=RequestProtocol.HTTP, app_name=application)
    name = manager._generate_backend_name(manager, group)
    servers = [ServerConfig(*replica) for replica in replicas]
    backend = BackendConfig(
        name, "/", app_name=application, servers=servers, fallback_server=fallback, http_health_check_path=health
    )
    path = directory / "haproxy.cfg"
    HAProxyApi(settings, {name: backend}, config_file_path=str(path))._generate_config_file_internal()
    return path
