"""What is examined: the configuration, the environment, and the run there is."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError
from app.config.schema import Config
from app.config.serve_file import load
from deployments.kubernetes.demands import Demand, demands
from deployments.local import processes

CLUSTER_LOGS = Path("/tmp/ray/session_latest/logs")
"""Where Ray keeps the logs of a node that `ray start` began."""

DASHBOARD = "http://127.0.0.1:8265"
"""Ray's dashboard, seen from the head."""


@dataclass(frozen=True)
class Installation:
    """`document` is the configuration as it is written, `config` the router's part if that is valid. `run`: what runs
    here, None if nothing does. `on_cluster`: this is a node of a cluster, which Ray was started on before."""

    file: Path
    document: Mapping[str, Any]
    problems: Sequence[str] = ()
    config: Config | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    on_cluster: bool = False
    run: processes.Run | None = None
    logs: Path | None = None

    @property
    def applications(self) -> list[Mapping[str, Any]]:
        """Those of the configuration."""
        found = self.document.get("applications")
        return [it for it in found if isinstance(it, dict)] if isinstance(found, list) else []

    @property
    def demands(self) -> list[Demand]:
        """Of all applications."""
        return [demand for application in self.applications for demand in self.demands_of(application)]

    @staticmethod
    def demands_of(application: Mapping[str, Any]) -> list[Demand]:
        """What Ray must find for one; nothing where it is malformed, which `problems` says."""
        try:
            return demands({"applications": [application]})
        except (AttributeError, KeyError, TypeError, ValueError):
            return []

    @property
    def port(self) -> int:
        """The public port."""
        if self.run is not None:
            return self.run.port
        return int((self.document.get("http_options") or {}).get("port") or 8000)


def installation(file: Path, environment: Mapping[str, str] = os.environ) -> Installation:
    """The one of this directory or, in a pod, of this node."""
    on_cluster = "KUBERNETES_SERVICE_HOST" in environment
    run = processes.record(processes.run_directory())
    logs = Path(run.directory) / "ray/session_latest/logs" if run is not None else None
    if run is None and on_cluster and CLUSTER_LOGS.exists():
        run = processes.Run(pid=0, run_id="", port=8000, dashboard=DASHBOARD, directory="")
        logs = CLUSTER_LOGS
    config, problems = None, list[str]()
    try:
        config = load(file)
    except ConfigError as error:
        problems = error.problems
    return Installation(file, _document(file), problems, config, environment, on_cluster, run, logs)


def _document(file: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
