"""The environment of a local run: the settings of Ray, Serve, HAProxy and vLLM, and the ports they listen on.

Ray reads most of it when it is imported, so it is set before that.
"""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.internal_api import INTERNAL_KEY_VARIABLE, LEDGER_VARIABLE, LOOPBACK_VARIABLE, MODELS_VARIABLE
from deployments import draining, haproxy
from deployments.local.directories import ROOT, home, models_directory
from deployments.local.processes import MARKER, RUN_DIRECTORY, Run

HOST = "127.0.0.1"

REPLICA_PORTS = 990
"""Serve does not use a replica's port again for an hour and 30 s, as long as an old HAProxy may know it
(RAY_SERVE_PORT_QUARANTINE_S). That is a restart every 3.7 s, quicker than any engine starts: a crash loop does not
keep other replicas from starting."""

_REPLICA_RANGES = range(20000, 32000, 1000)
"""Where a run's ports begin: those of its replicas, then its other ones. They end below the ports that Linux gives to
outgoing connections (32768), which could take one before the run listens on it."""

TOKEN = "ray_token"
"""The file with Ray's token, in the run's directory, which only its user can read."""

DEFAULTS: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",  # one carries far more than a laptop's engines give; a second takes their core
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(draining.DEREGISTRATION_S),
    **haproxy.SETTINGS,
    **draining.SETTINGS,
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # its 5 s kill a proxy that a busy laptop is still starting
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on loopback; with an address it would take another interface
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" pins every engine to the same core
    "VLLM_LOGGING_LEVEL": "INFO",
}
"""The environment of a local run; variables that are already set win."""


@dataclass(frozen=True)
class Ports:
    """Every port of a run besides the public one. Two runs on a machine must not share any."""

    dashboard: int
    dashboard_metrics: int
    autoscaler_metrics: int
    stats: int
    metrics: int
    fallback_http: int
    fallback_grpc: int
    replicas: int


def set_environment(run: Run, ports: Ports, *, loopback: bool) -> None:
    """Puts everything that Ray, Serve, HAProxy, vLLM and the applications read into this process's environment.

    `loopback`: whether the application listens on that interface alone.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(INTERNAL_KEY_VARIABLE, secrets.token_urlsafe(32))
    os.environ.setdefault(MODELS_VARIABLE, str(models_directory()))
    os.environ.setdefault(LEDGER_VARIABLE, os.environ.get(RUN_DIRECTORY) or str(home()))
    (Path(run.directory) / TOKEN).write_text(secrets.token_hex(32))
    authenticate(run)
    path = os.environ.get("PYTHONPATH")
    no_proxy = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    proxy = Path(run.directory)  # no deeper: Ray adds 57 characters, and HAProxy takes 97 for a socket
    os.environ |= {
        MARKER: run.run_id,
        LOOPBACK_VARIABLE: "1" if loopback else "0",
        "SPT_NOENV": "1",  # or a process that sets its title overwrites the marker in /proc/<pid>/environ
        "NO_PROXY": f"{no_proxy},{HOST}" if no_proxy else HOST,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy.write_script(proxy)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
        # Ray's own are the same for all runs, and a second run then names the first one's to Prometheus.
        "DASHBOARD_METRIC_PORT": str(ports.dashboard_metrics),
        "AUTOSCALER_METRIC_PORT": str(ports.autoscaler_metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.fallback_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.replicas),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.replicas + REPLICA_PORTS - 1),
    }


def authenticate(run: Run) -> None:
    """Makes Ray use the run's token, which `switchyard deploy` in another terminal can read."""
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(run.directory) / TOKEN)}


_claims: list[socket.socket] = []
"""What this process holds for its run; it ends with the process."""


def free_ports(taken: int) -> Ports:
    """Ports that are free now, other than `taken`, and that no other run takes before this one listens on them."""
    dashboard = 8265 if taken != 8265 and is_free(8265) and _claim(8265) else 0
    replicas = next((it for it in _REPLICA_RANGES if is_free(it) and _claim(it)), _REPLICA_RANGES[0])
    others = range(replicas + REPLICA_PORTS, replicas + _REPLICA_RANGES.step)
    free = [it for it in others if it != taken and is_free(it)]
    return Ports(dashboard or free[0], free[1], free[2], free[3], free[4], free[5], free[6], replicas)


def _claim(port: int) -> bool:
    """Whether this run gets the port. Runs that start at the same moment find it free alike, seconds before they
    listen; the name of an abstract socket is one process's."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0switchyard-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def is_free(port: int) -> bool:
    """Whether `port` is free on every interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
