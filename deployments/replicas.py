"""Tells a router the replicas of every application, and their ports: Serve's own list, as Serve's HAProxy gets it.

Serve's controller answers a long poll at each change. It lists a replica once that is ready, and lists it no more
before that is told to stop; a stopping one takes requests for another `RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S`.
While the controller is away, the last list remains.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError
from ray.serve._private.common import RequestProtocol
from ray.serve._private.long_poll import LongPollNamespace, LongPollState
from ray.serve.schema import TargetGroup

from app.upstream.balancer import Address

AGAIN_S = 1.0
"""The pause after a call that has failed."""


async def watch(controller: Any) -> AsyncIterator[Mapping[str, Sequence[Address]]]:
    """A `Watch`, by Serve's controller. Not Ray's own client, which ends with the first call that fails."""
    known = {LongPollNamespace.TARGET_GROUPS: -1}
    while True:
        try:
            changed = await controller.listen_for_change.remote(known)
        except RayError:
            await asyncio.sleep(AGAIN_S)
            continue
        if changed is LongPollState.TIME_OUT or LongPollNamespace.TARGET_GROUPS not in changed:
            continue
        update = changed[LongPollNamespace.TARGET_GROUPS]
        known[LongPollNamespace.TARGET_GROUPS] = update.snapshot_id
        yield listed(update.object_snapshot)


def listed(groups: Sequence[TargetGroup]) -> Mapping[str, Sequence[Address]]:
    """The replicas in Serve's target groups."""
    return {
        group.app_name: [
            Address(target.name, f"http://{_host(target.ip)}:{target.port}", group.route_prefix)
            for target in group.targets
        ]
        for group in groups
        if group.protocol == RequestProtocol.HTTP
    }


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
