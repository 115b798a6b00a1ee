"""The ports of a local run: free ones that no other run takes before this one listens on them."""

import socket
from dataclasses import dataclass

HOST = "127.0.0.1"

REPLICA_PORTS = 990
"""Serve does not use a replica's port again for an hour and 30 s, as long as an old HAProxy may know it
(RAY_SERVE_PORT_QUARANTINE_S). That is a restart every 3.7 s, quicker than any engine starts: a crash loop does not
keep other replicas from starting."""

_REPLICA_RANGES = range(20000, 32000, 1000)
"""The first of a run's ports: those of its replicas, then its other ones. They end below the ports that Linux gives to
outgoing connections (32768), which could take one before the run listens on it."""


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


_claims: list[int] = []
"""The descriptors of reserved ports, open for the lifetime of this process."""


def free_ports(taken: int) -> Ports:
    """Ports that are free now, other than `taken`, and that no other run takes before this one listens on them."""
    dashboard = 8265 if taken != 8265 and is_free(8265) and claim(8265) else 0
    replicas = next((it for it in _REPLICA_RANGES if is_free(it) and claim(it)), _REPLICA_RANGES[0])
    others = range(replicas + REPLICA_PORTS, replicas + _REPLICA_RANGES.step)
    free = [it for it in others if it != taken and is_free(it)]
    return Ports(dashboard or free[0], free[1], free[2], free[3], free[4], free[5], free[6], replicas)


def claim(port: int) -> bool:
    """Reserves the port for the lifetime of this process; returns whether that succeeded. Runs that start at the same
    moment all find the port free, seconds before they listen; only one can bind the name of an abstract socket."""
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0switchyard-port-{port}")
    except OSError:
        taken.close()
        return False
    _claims.append(taken.detach())
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
