"""The environment of every Ray node of a cluster, and names that the chart and the checks share.

`k8s/chart/templates/_helpers.tpl` and the table in docs/reference/environment.md have the same variables, and tests
compare. `make serve` has its own for one machine (`deployments.local.environment`).
"""

from collections.abc import Mapping

from app.internal_api import AWAIT_WEIGHTS_VARIABLE, LEDGER_VARIABLE, MODELS_VARIABLE
from deployments import draining, haproxy
from deployments.kubernetes.demands import ACCELERATOR

MODELS = "/models"
"""The path of the weights' volume in a cluster's pods."""

SIZE = "switchyard-size"
"""The ConfigMap with the settings that depend on the number of nodes, of a release with the name `switchyard`."""


def group_of(resource: str) -> str:
    """The group of nodes that declares a Ray resource: `gpu-l4` accelerator_type:L4, any other the one of its name."""
    if resource.startswith(ACCELERATOR):
        return f"gpu-{resource.removeprefix(ACCELERATOR).lower()}"
    return resource


DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""The time in which a node that gets SIGTERM lets its replicas finish. Ray's own 30 s cut streams."""

SUCCESSOR_S = 540
"""The time in which another replica should run elsewhere. Serve stops a replica on such a node once the rest of the
drain is no longer than its `graceful_shutdown_timeout_s`, or when its successor runs: without a longer drain at once,
and a deployment with one replica would serve nobody until then. It is shorter than the head's drain: in a cluster that
is deleted, where nothing can start, Serve still tells replicas to stop.
"""

WORKER_DRAIN_S = int(draining.GRACE_S) + SUCCESSOR_S
HEAD_DRAIN_S = 600
"""The head's own processes are never idle, so it always takes this long. Raylets survive that long without it."""

STOP_S = 60
"""The margin by which a pod's grace period is longer than its drain: meanwhile Ray stops its processes."""

CODE = "/app"
"""The path of this repository in the image."""

EVERY_NODE: Mapping[str, str] = {
    "PYTHONPATH": CODE,
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_BINARY_PATH": f"{CODE}/bin/haproxy",
    "RAY_SERVE_HAPROXY_NBTHREAD": "2",  # as many as a router's pod has CPUs
    **haproxy.SETTINGS,
    haproxy.METRICS_HOST_VARIABLE: haproxy.EVERY_INTERFACE,  # for the routers; policies close it to others
    **draining.SETTINGS,
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    MODELS_VARIABLE: MODELS,
    AWAIT_WEIGHTS_VARIABLE: "1",
    LEDGER_VARIABLE: "/var/lib/switchyard",
}
"""Before Ray starts, the same on all nodes; the secrets and `DRAIN` come on top."""
