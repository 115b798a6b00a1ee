"""Stops: a deployment gets no more traffic of an endpoint, and another one gets its share. Pure functions.

A stop only takes traffic away, so that it may be applied early, late or twice. Keys that draw the stopped deployment go
to its control; no other key moves.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

NO_STOPS: Mapping[str, str] = {}


class Stop(Protocol):
    """The fields that are used of `ledger.acknowledgement.Stop`."""

    @property
    def endpoint(self) -> str: ...
    @property
    def deployment(self) -> str: ...
    @property
    def control(self) -> str: ...


def stops_of(endpoint: str, traffic: Mapping[str, int], stops: Iterable[Stop]) -> Mapping[str, str]:
    """The endpoint's stopped deployments, each with the one that gets its share.

    Ignores a stop whose deployment or control is not in the traffic, and one whose control is stopped, too.
    """
    found = {
        it.deployment: it.control
        for it in stops
        if it.endpoint == endpoint and it.deployment in traffic and it.control in traffic
    }
    return {deployment: control for deployment, control in found.items() if control not in found}


def moved_on(stops: Mapping[str, str], further: Mapping[str, str]) -> dict[str, str]:
    """Combines both moves: the deployment of conversations that were moved by `stops` and then by `further`."""
    return {**{name: further.get(to, to) for name, to in stops.items()}, **further}


def with_share(traffic: Mapping[str, int], stops: Mapping[str, str]) -> Mapping[str, str]:
    """The stops that change something, because their deployment has a share."""
    return {deployment: control for deployment, control in stops.items() if traffic.get(deployment, 0) > 0}


def effective(traffic: Mapping[str, int], stops: Mapping[str, str]) -> dict[str, int]:
    """The percentages that are in force."""
    weights = dict(traffic)
    for deployment, control in with_share(traffic, stops).items():
        weights[control] = weights.get(control, 0) + weights[deployment]
        weights[deployment] = 0
    return weights
