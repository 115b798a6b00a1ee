"""How replicas that are to stop finish what they carry.

Serve gives a replica 20 s and then kills it, streams and all. Here it may take as long as a request may; one that hangs
is unhealthy, and is killed at once rather than keep its GPU that long. `graceful_shutdown_timeout_s` in the YAML wins.
"""

from collections.abc import Mapping

GRACE_S = 3600.0
"""As long as a request may take by default (`timeouts.total_s`)."""

DEREGISTRATION_S = 5
"""How long a local replica that stops takes requests: until HAProxy has heard of it. Serve's own 30 s are for load
balancers (RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S)."""

KEEP_ALIVE_S = 4
"""How long a local connection may be idle: less than the above, since a HAProxy from before a change knows no newer
replica."""

SETTINGS: Mapping[str, str] = {"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1"}
"""For the environment of every node, before Ray starts."""
