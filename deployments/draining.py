"""How long a stopping replica drains. Serve does it: a replica that stops takes no new requests and finishes its own.

Others see it, too: HAProxy (`haproxy.DRAINED`), the fleet's metrics (`app.server.fleet.Replica.is_draining`), and the
replica, which hands its streams over (`engine.server.hand_over_when_stopped`).

Serve gives a replica 20 s and then kills it with its streams. Here it has as long as a request may take; one that hangs
is unhealthy and is killed at once, so that it does not keep its GPU that long. The YAML's
`graceful_shutdown_timeout_s` takes precedence.
"""

from collections.abc import Mapping
from typing import Any

GRACE_S = 3600.0
"""The time that a request may take by default (`timeouts.total_s`)."""

DEREGISTRATION_S = 5
"""The time for which a stopping local replica still accepts requests, until HAProxy has been updated. Serve's own 30 s
are for load balancers (RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S).
"""

SETTINGS: Mapping[str, str] = {
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # Results of Serve's tasks up to this size stay with its controller. Ray's 100 KB put them on the node of the task,
    # which then does not end after its drain as long as the controller refers to them.
    "RAY_max_direct_call_object_size": "1048576",
}
"""Variables for the environment of every node, before Ray starts."""


def own_replica() -> Any:
    """Serve's part of this process, of which Ray 2.60 publishes little; None elsewhere."""
    import ray

    actors = getattr(ray._private.worker.global_worker, "actors", {}).values()
    return next((replica for actor in actors if (replica := getattr(actor, "_replica_impl", None))), None)


def is_stopped() -> bool:
    """Whether Serve stops this replica."""
    return bool(getattr(own_replica(), "_shutting_down", False))
