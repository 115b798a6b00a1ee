"""Serve's list of replicas, as routers get it."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from app.upstream.balancer import Address

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def group(app: str, *ips: str, protocol: str = "HTTP") -> Any:
    from ray.serve._private.common import RequestProtocol
    from ray.serve.schema import Target, TargetGroup

    targets = [Target(ip=ip, port=30000 + at, instance_id="", name=f"{app}#{at}") for at, ip in enumerate(ips)]
    prefix = f"/deployments/{app}"
    return TargetGroup(targets=targets, route_prefix=prefix, protocol=RequestProtocol(protocol), app_name=app)


def test_a_replica_has_the_address_of_its_node_and_its_own_port() -> None:
    from deployments.replicas import listed

    groups = [group("blue", "10.0.0.1", "fd00::1"), group("green"), group("blue", "x", protocol="gRPC")]
    prefix = "/deployments/blue"
    assert listed(groups) == {
        "blue": [
            Address("blue#0", "http://10.0.0.1:30000", prefix),
            Address("blue#1", "http://[fd00::1]:30001", prefix),
        ],
        "green": [],
    }


async def test_every_change_is_told_also_after_the_controller_was_away() -> None:
    from ray.serve._private.long_poll import LongPollNamespace, LongPollState, UpdatedObject

    from deployments.replicas import watch

    key = LongPollNamespace.TARGET_GROUPS
    answers: list[Any] = [
        {key: UpdatedObject([group("blue", "a")], 7, 0.0)},
        LongPollState.TIME_OUT,
        ActorUnavailableError("away", b"0" * 16),
        {key: UpdatedObject([group("blue", "b")], 3, 0.0)},
    ]
    known: list[int] = []

    async def listen(snapshots: Mapping[Any, int]) -> Any:
        known.append(snapshots[key])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    told: list[Sequence[Address]] = []
    async with asyncio.timeout(30):
        async for applications in watch(SimpleNamespace(listen_for_change=SimpleNamespace(remote=listen))):
            told.append(applications["blue"])
            if len(told) == 2:
                break
    assert [[each.origin for each in blue] for blue in told] == [["http://a:30000"], ["http://b:30000"]]
    assert known == [-1, 7, 7, 7]
