"""An endpoint's traffic split: read it, plan a change, make the change and wait until every router has it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.config.base import ConfigError
from app.config.schema import parse
from app.control_plane import with_traffic
from deployments.cli.errors import CommandError, ExitCode
from deployments.cli.router_client import RouterClient
from deployments.cli.table import table
from deployments.local.readiness import DELIVERY_S

POLL_S = 0.5

Shares = Mapping[str, int]
"""Deployment name to percentage."""


@dataclass(frozen=True)
class Change:
    """The split of `endpoint` before and after. Both have the same deployments, 0 for those without traffic."""

    endpoint: str
    before: Shares
    after: Shares

    def table(self) -> str:
        """The change for a terminal."""
        return _table(self.endpoint, {name: f"{self.before[name]} % → {share} %" for name, share in self.after.items()})


def split_table(endpoint: str, shares: Shares) -> str:
    """A split for a terminal."""
    return _table(endpoint, {name: f"{share} %" for name, share in shares.items()})


def _table(endpoint: str, cells: Mapping[str, str]) -> str:
    return table([endpoint, ""], [[f"  {name}", cell] for name, cell in cells.items()])


def parse_shares(arguments: Sequence[str]) -> dict[str, int]:
    """`["blue=90", "green=10%"]` as a mapping. Raises CommandError unless the shares are whole and sum to 100."""
    shares: dict[str, int] = {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        number = text.removesuffix("%")
        if not name or not separator or not (number.isascii() and number.isdigit()) or int(number) > 100:
            message = f"'{argument}': expected NAME=SHARE with a whole percentage from 0 to 100, such as blue=90"
            raise CommandError(message, ExitCode.USAGE)
        if name in shares:
            raise CommandError(f"'{name}' has two shares; remove one", ExitCode.USAGE)
        shares[name] = int(number)
    if (total := sum(shares.values())) != 100:
        fix = f"add {100 - total}" if total < 100 else f"take away {total - 100}"
        raise CommandError(f"The shares sum to {total}, they must sum to 100: {fix}", ExitCode.USAGE)
    return shares


def current(client: RouterClient, endpoint: str) -> dict[str, int]:
    """The split that is in force. Raises CommandError with the known endpoints for an unknown one."""
    known = client.endpoints()
    if endpoint not in known:
        raise CommandError(f"There is no endpoint '{endpoint}'; known: {', '.join(known) or 'none'}")
    routes = client.endpoint(endpoint)["config"]["traffic_config"]["routes"]
    return {route["served_entity_name"]: route["traffic_percentage"] for route in routes}


def plan(endpoint: str, before: Shares, wanted: Shares) -> Change:
    """The change from `before` to `wanted`: a deployment that `wanted` leaves out gets 0."""
    names = dict.fromkeys([*before, *wanted], 0)
    return Change(endpoint, {**names, **before}, {**names, **wanted})


def check(client: RouterClient, change: Change, config: Mapping[str, object] | None) -> None:
    """Raises CommandError if the router would reject the change. `config`: its whole configuration, if it is known.

    Without it only the deployments that some endpoint has are known.
    """
    if config is not None:
        try:
            parse(with_traffic(config, change.endpoint, change.after))
        except (ConfigError, KeyError) as error:
            raise CommandError(f"The router would reject this: {error}") from None
        return
    entities = [item for name in client.endpoints() for item in client.endpoint(name)["config"]["served_entities"]]
    known = dict.fromkeys(item["name"] for item in entities)
    if unknown := [name for name in change.after if name not in known]:
        raise CommandError(f"No endpoint has a deployment '{unknown[0]}'; known: {', '.join(known)}")


def delivered(client: RouterClient, change: Change) -> Change:
    """Waits for a change that was made, and returns it as it is in force once every router replica has it. Raises
    CommandError.
    """
    deadline = time.monotonic() + DELIVERY_S
    while (state := client.endpoint(change.endpoint)["state"]["config_update"]) != "NOT_UPDATING":
        if state == "UPDATE_FAILED":
            raise CommandError("The routers rejected the change and keep the old split; see their logs")
        if time.monotonic() > deadline:
            late = f"Not every router has the change after {DELIVERY_S:.0f} s"
            raise CommandError(f"{late}. Check with: {client.command('status')}", ExitCode.UNREACHABLE)
        time.sleep(POLL_S)
    return plan(change.endpoint, change.before, current(client, change.endpoint))
