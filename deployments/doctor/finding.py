"""The result of a check.

An installation as the checks see it: its configuration, its environment, and what runs.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError
from app.config.loading import load, load_document, port_of
from app.config.schema import Config
from deployments.invocation import DEFAULT_FILE
from deployments.kubernetes.demands import Demand, demands
from deployments.local import accelerator, dashboard, processes
from deployments.local.processes import LaunchError


class Level(StrEnum):
    """`PROBLEM`: something fails, or will. `WARNING`: it works, but badly. `OK`: checked, nothing to do."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `area`: the subject of the check. `fix`: the remedy; empty for `OK`."""

    level: Level
    area: str
    message: str
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding for `--json`."""
        return asdict(self)


def ok(area: str, message: str) -> Finding:
    """A check that passed."""
    return Finding(Level.OK, area, message)


def warning(area: str, message: str, fix: str) -> Finding:
    """Something works, but badly."""
    return Finding(Level.WARNING, area, message, fix)


def problem(area: str, message: str, fix: str) -> Finding:
    """Something fails, or will."""
    return Finding(Level.PROBLEM, area, message, fix)


CLUSTER_LOGS = Path("/tmp/ray/session_latest/logs")
"""The directory in which Ray keeps the logs of a node that `ray start` started."""

DASHBOARD_PORT = 8265

DEPLOYED = "the deployed configuration"
"""The source of a configuration that Serve returned."""


@dataclass(frozen=True)
class Installation:
    """One installation. `source`: the configuration's file, or `DEPLOYED`; empty if there is no configuration.
    `document`: its content. `config`: the router's part, if it is valid. `run`: the running application, if there is
    one. `on_cluster`: this is a pod of a Kubernetes cluster."""

    source: str
    document: Mapping[str, Any]
    problems: Sequence[str] = ()
    config: Config | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    on_cluster: bool = False
    run: processes.Run | None = None
    logs: Path | None = None

    @property
    def applications(self) -> list[Mapping[str, Any]]:
        """The applications of the configuration."""
        applications = self.document.get("applications")
        return (
            [application for application in applications if isinstance(application, dict)]
            if isinstance(applications, list)
            else []
        )

    @property
    def demands(self) -> list[Demand]:
        """The demands of all applications."""
        return [demand for application in self.applications for demand in self.demands_of(application)]

    @staticmethod
    def demands_of(application: Mapping[str, Any]) -> list[Demand]:
        """The demands of one application; empty if it is malformed, which is one of `problems`."""
        try:
            return demands({"applications": [application]})
        except (AttributeError, KeyError, TypeError, ValueError):
            return []

    @property
    def port(self) -> int:
        """The public port."""
        if self.run is not None:
            return self.run.port
        return port_of(self.document)


def installation(
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    cluster_logs: Path = CLUSTER_LOGS,
    dashboard_port: int = DASHBOARD_PORT,
) -> Installation:
    """The installation of this directory or, in a pod, of this node.

    The configuration is that of `file`, by default serve_config.yaml. An image has no such file: then it is the one
    that Serve has deployed.
    """
    on_cluster = "KUBERNETES_SERVICE_HOST" in environment
    run = processes.record(processes.run_directory())
    logs = Path(run.directory) / "ray/session_latest/logs" if run is not None else None
    if run is None and on_cluster and cluster_logs.exists():
        run = processes.Run(
            pid=0, run_id="", port=8000, dashboard=_dashboard(environment, dashboard_port), directory=""
        )
        logs = cluster_logs
    file = file or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    document = _document(file) if file is not None else _deployed(run)
    source = str(file) if file is not None else DEPLOYED if document else ""
    config, problems = None, list[str]()
    try:
        if source:
            config = load(file) if file is not None else load_document(document)
    except ConfigError as error:
        problems = error.problems
    if not on_cluster and accelerator.is_cuda_build():
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # malformed: one of `problems`
            document, _ = accelerator.on_gpus(document)
    return Installation(source, document, problems, config, environment, on_cluster, run, logs)


def _dashboard(environment: Mapping[str, str], port: int) -> str:
    """Ray's dashboard on the head, whose address KubeRay gives to every pod."""
    host = environment.get("RAY_ADDRESS", "").rpartition(":")[0]
    return f"http://{host or '127.0.0.1'}:{port}"


def _document(file: Path) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


def _deployed(run: processes.Run | None) -> Mapping[str, Any]:
    """The applications that Serve has deployed; empty if nothing runs, or if Serve does not answer, which is a separate
    finding.
    """
    try:
        return dashboard.deployed(run) if run is not None else {}
    except LaunchError:
        return {}
