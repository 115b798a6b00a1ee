"""The control plane: where the configuration of all routers is stored, and how an endpoint's traffic is changed there.

The seam has two calls: read the applied configuration, and compare-and-set it as a whole. What a traffic change is, and
when it is rejected, is decided here for every control plane; `deployments.control_plane` is Ray Serve's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from app.config.base import ConfigError
from app.config.schema import Config, parse
from app.errors import BadRequest, Conflict


class Delivery(Enum):
    """How far the applied configuration has come."""

    DELIVERING = auto()
    """Routers are loading it; another change is rejected until they have it."""
    UNSETTLED = auto()
    """It is unknown whether every router has it: replicas come and go, or the control plane does not answer."""
    SETTLED = auto()
    """Every router has it."""
    FAILED = auto()
    """Routers rejected it; the previous one stays in force."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What the control plane stores: the routers' configuration as plain data, and since when (Unix time, ms).

    `created_ms`: since when each endpoint has been declared, whatever has changed in it since.
    """

    config: Any
    delivery: Delivery
    since_ms: int
    created_ms: Mapping[str, int] = field(default_factory=dict)

    def parsed(self) -> Config | None:
        """The configuration; None if it is invalid, so that every router rejects it."""
        try:
            return parse(self.config)
        except ConfigError:
            return None


class ControlPlane(Protocol):
    """The seam. Both calls raise UpstreamError if the control plane does not answer."""

    async def applied(self) -> Applied: ...

    async def replace(self, expected: Any, wanted: Any) -> None:
        """Applies `wanted` (plain data) in place of `expected`, atomically.

        Raises Conflict and changes nothing if something other than `expected` is applied or a change is being
        delivered.
        """


CHANGED_MEANWHILE = "The configuration has changed in the meantime; read the endpoint again"
BEING_DELIVERED = "An update of the configuration is in progress; wait until it is complete"


async def change_traffic(
    control: ControlPlane, name: str, *, seen: Mapping[str, int], wanted: Mapping[str, int]
) -> None:
    """Gives the endpoint `name` the traffic `wanted`, deployment to percentage, if it still has the traffic `seen`.

    A repeated change does nothing. Raises Conflict if the traffic has changed since or an update is in progress, and
    BadRequest if the configuration would be invalid with it; nothing is changed then.
    """
    applied = await control.applied()
    if (config := applied.parsed()) is None:
        raise Conflict("The last applied configuration is invalid and not in use: apply a valid one")
    endpoint = config.endpoints.get(name)
    if endpoint is not None and endpoint.traffic == wanted:
        return
    if applied.delivery is Delivery.DELIVERING:
        raise Conflict(BEING_DELIVERED)
    if endpoint is None or endpoint.traffic != seen:
        raise Conflict(CHANGED_MEANWHILE)
    changed = with_traffic(applied.config, name, wanted)
    try:
        parse(changed)
    except ConfigError as error:
        raise BadRequest(f"The configuration would be invalid: {error}", param="traffic_config") from None
    await control.replace(applied.config, changed)


def with_traffic(config: Mapping[str, Any], name: str, traffic: Mapping[str, int]) -> dict[str, Any]:
    """A copy of a router's plain configuration that differs in one endpoint's traffic."""
    endpoints = config["endpoints"]
    return {**config, "endpoints": {**endpoints, name: {**endpoints[name], "traffic": dict(traffic)}}}


def delivery_seen(applied: Applied, before: Config, after: Config) -> Delivery:
    """The delivery of `applied`, corrected by what the calling router serves itself.

    `before` and `after` are the router's configurations before and after it read `applied`. A router that received a
    configuration and serves another one has rejected it.
    """
    if applied.delivery is not Delivery.SETTLED or applied.parsed() == after:
        return applied.delivery
    return Delivery.FAILED if before is after else Delivery.UNSETTLED
