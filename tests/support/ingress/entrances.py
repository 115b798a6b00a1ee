"""What stands between clients and a cluster's routers: real proxies with TLS, configured as a controller of the chart's
objects configures them.

Sources, read in 2026: Istio's listeners set no `stream_idle_timeout`; Envoy Gateway's leave Envoy's five minutes, and
its routes take both timeouts from `timeouts.request`, where 0 is none.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from deployments.kubernetes.chart import objects, render
from tests.support.processes.certificates import certificate_for
from tests.support.processes.project import ROOT
from tests.support.processes.servers import free_port
from tests.support.waiting import wait_until

HOST = "llm.example.com"

_NGINX = """
daemon off;
pid {directory}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        location / {{
            proxy_pass http://127.0.0.1:{behind};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            {directives}
        }}
    }}
}}
"""

NGINX = ("proxy_read_timeout 3600s;", "proxy_buffering off;", "proxy_next_upstream off;")
"""What docs/operate/cluster.md asks of an Ingress controller, in nginx's words."""

ENVOYS: Mapping[str, Mapping[str, Any]] = {"istio": {"stream_idle_timeout": "0s"}, "envoy-gateway": {}}
"""What the implementations of the Gateway API set in Envoy's connection manager."""


@contextmanager
def nginx(behind: int, directory: Path) -> Iterator[str]:
    """nginx in front of a loopback port, as an Ingress controller has it; yields its URL."""
    program = os.environ.get("NGINX") or shutil.which("nginx") or ROOT / ".tools/nginx"
    certificate, key = certificate_for("127.0.0.1", directory)
    port, config = free_port(), directory / "nginx.conf"
    config.write_text(
        _NGINX.format(
            directory=directory,
            port=port,
            behind=behind,
            certificate=certificate,
            key=key,
            directives=" ".join(NGINX),
        )
    )
    with _running([program, "-p", directory, "-c", config], port, directory / "nginx.log", certificate) as url:
        yield url


@contextmanager
def envoy(implementation: str, behind: int, directory: Path) -> Iterator[str]:
    """Envoy in front of a loopback port, as this implementation of the Gateway API has it; yields its URL."""
    certificate, key = certificate_for("127.0.0.1", directory)
    port, config = free_port(), directory / "envoy.json"
    config.write_text(json.dumps(_bootstrap(ENVOYS[implementation], port, behind, certificate, key)))
    program = next((ROOT / ".clients/proxies").glob("lib/*/site-packages/envoy/_bin/envoy"))
    command = [program, "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l", "warning"]
    with _running(command, port, directory / "envoy.log", certificate) as url:
        yield url


def _timeouts() -> dict[str, str]:
    """Of Envoy's route, from the chart's HTTPRoute."""
    values = {"host": HOST, "entrance": {"kind": "gateway"}}
    (route,) = [each for each in objects(render(values, name="s", namespace="s")) if each["kind"] == "HTTPRoute"]
    (rule,) = route["spec"]["rules"]
    request = rule["timeouts"]["request"]
    assert request == rule["timeouts"]["backendRequest"] == "0s"
    return {"timeout": request, "idle_timeout": request}


def _bootstrap(manager: Mapping[str, Any], port: int, behind: int, certificate: Path, key: Path) -> dict[str, Any]:
    types = "type.googleapis.com/envoy.extensions"
    tls = {
        "name": "tls",
        "typed_config": {
            "@type": f"{types}.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "tls_certificates": [
                    {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
                ]
            },
        },
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "routers", **_timeouts()}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    filters = [
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"},
        }
    ]
    http = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "entrance",
        "http_filters": filters,
        "route_config": {"virtual_hosts": hosts},
        **manager,
    }
    chain = {
        "transport_socket": tls,
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": http}],
    }
    endpoint = {"endpoint": {"address": _address(behind)}}
    cluster = {
        "name": "routers",
        "load_assignment": {"cluster_name": "routers", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    listener = {"name": "https", "address": _address(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@contextmanager
def _running(command: list[Any], port: int, log: Path, certificate: Path) -> Iterator[str]:
    url = f"https://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/health", verify=str(certificate)).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, log.read_text)
        yield url
    finally:
        process.terminate()
        process.wait(30)
