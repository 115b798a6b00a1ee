"""What a file would undo of what runs from this directory."""

from pathlib import Path

from app.config.base import ConfigError
from app.config.schema import parse
from app.config.serve_file import load
from app.config.superseding import superseded
from deployments.local import dashboard, launcher
from deployments.local.errors import LaunchError


def superseding_warnings(file: Path) -> list[str]:
    """What delivering the file does to running ramps. Nothing if it is invalid, nothing runs, or that is not known."""
    try:
        wanted = load(file)
        applied = dashboard.read(launcher.running()).router_config
        return superseded(parse(applied), wanted) if applied is not None else []
    except (ConfigError, LaunchError):
        return []
