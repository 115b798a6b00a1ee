"""Running ramps that a change of the traffic would undo, be it by a delivered file or by hand."""

import json
from pathlib import Path

from app.config.base import ConfigError
from app.config.loading import load, superseded
from app.config.schema import parse
from deployments.cli.errors import CommandError
from deployments.cli.router_client import RouterClient
from deployments.local import dashboard, processes
from deployments.local.errors import LaunchError


def superseding_warnings(file: Path) -> list[str]:
    """Warnings about running ramps that delivering the file would undo. Empty if it is invalid, or if nothing runs."""
    try:
        wanted = load(file)
        applied = dashboard.read(processes.running()).router_config
        return superseded(parse(applied), wanted) if applied is not None else []
    except (ConfigError, LaunchError):
        return []


def ramps_of(client: RouterClient, endpoint: str) -> list[str]:
    """The experiments whose ramp moves the endpoint's traffic now, and pauses after a change by anyone else.

    Empty if the controller does not answer: traffic can be moved without it.
    """
    try:
        found = json.loads(client.ask("GET", "/experiments"))["experiments"]
    except CommandError:
        return []
    return [it["experiment"] for it in found if it["endpoint"] == endpoint and _moves(it["acting"])]


def _moves(acting: dict[str, object] | None) -> bool:
    if acting is None or acting["state"] != "running":
        return False
    return acting["step"] is not None or acting["next_share"] is not None
