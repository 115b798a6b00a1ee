"""The environment of a local run: the settings of Ray, Serve, HAProxy and vLLM.

Ray reads most of it when it is imported, so it is set before that.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from app.exposures.identity import kept_variable
from app.internal_api import (
    INTERNAL_KEY_VARIABLE,
    LEDGER_VARIABLE,
    LOOPBACK_VARIABLE,
    MODELS_VARIABLE,
    UNIT_SECRET_VARIABLE,
)
from app.upstream.target import ledger_base
from deployments import draining, haproxy
from deployments.local.processes import (
    HOST,
    MARKER,
    REPLICA_PORTS,
    ROOT,
    RUN_DIRECTORY,
    LaunchError,
    Ports,
    Run,
    home,
    models_directory,
)

TOKEN = "ray_token"
"""The file with Ray's token, in the run's directory, which only the user who started the run can read."""

DEFAULTS: Mapping[str, str] = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",  # at its 0.1 s, an idle controller takes 6 % of a core
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",  # one carries far more than a laptop's engines give; a second takes their core
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(draining.DEREGISTRATION_S),
    **haproxy.SETTINGS,
    **draining.SETTINGS,
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # its 5 s kill a proxy that a busy laptop is still starting
    "RAY_worker_register_timeout_seconds": "300",  # on a busy laptop, vLLM's imports alone may take Ray's 60 s
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on loopback; with an address it would take another interface
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" pins every engine to the same core
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads would spin on the cores that others need
    "VLLM_LOGGING_LEVEL": "INFO",
}
"""The environment of a local run; variables that are already set win."""

REQUIRED: Mapping[str, tuple[str, str]] = {
    "RAY_AUTH_MODE": ("token", "whoever reaches one of Ray's ports could run code here"),
    "RAY_SERVE_ENABLE_HA_PROXY": ("1", "the public port would lack HAProxy's limits and show Serve's own routes"),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": ("0", "Ray would leave the loopback interface"),
}
"""Variables whose other values, including an empty one, would open what a local run keeps closed: the value, and what
any other would do."""


def require_closed() -> None:
    """Raises LaunchError for the first variable of this process with another value than the required one."""
    for name, (wanted, otherwise) in REQUIRED.items():
        if (value := os.environ.get(name, wanted)).lower() != wanted:
            raise LaunchError(f"{name} is '{value}', and not '{wanted}': {otherwise}; run `unset {name}` first")


def set_environment(run: Run, ports: Ports, *, loopback: bool, ledger_url: str, from_hub: bool = False) -> None:
    """Puts everything that Ray, Serve, HAProxy, vLLM and the applications read into this process's environment.

    `loopback`: whether the application listens on that interface alone. `ledger_url`: the configuration's, whose
    directory keeps the units' secret from run to run; the internal key is another one in each. `from_hub`: whether the
    configuration names a model hub's id; without one, nothing asks a hub.
    """
    if from_hub:
        os.environ.setdefault("HF_HUB_OFFLINE", "0")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(MODELS_VARIABLE, str(models_directory()))
    os.environ.setdefault(LEDGER_VARIABLE, os.environ.get(RUN_DIRECTORY) or str(home()))
    if not os.environ.get(INTERNAL_KEY_VARIABLE):
        os.environ[INTERNAL_KEY_VARIABLE] = secrets.token_urlsafe(32)
        if not os.environ.get(UNIT_SECRET_VARIABLE):
            os.environ[UNIT_SECRET_VARIABLE] = kept_variable(ledger_base(), ledger_url)
    token = Path(run.directory) / TOKEN  # `switchyard deploy` in another terminal reads it, too
    token.write_text(secrets.token_hex(32))
    os.environ["RAY_AUTH_MODE"] = "token"
    if not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    path = os.environ.get("PYTHONPATH")
    no_proxy = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    proxy = Path(run.directory)  # no longer path: Ray adds 57 characters, and HAProxy takes 97 for a socket
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
        # Ray's defaults are the same for all runs: a second run would point Prometheus to the first one's.
        "DASHBOARD_METRIC_PORT": str(ports.dashboard_metrics),
        "AUTOSCALER_METRIC_PORT": str(ports.autoscaler_metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.fallback_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.replicas),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.replicas + REPLICA_PORTS - 1),
    }
