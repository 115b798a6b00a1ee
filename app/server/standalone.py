"""The router alone, on uvicorn, in front of deployments that have a `url`: no Ray, no engine."""

import gc
from pathlib import Path

import uvicorn

from app.config.schema import Config
from app.config.serve_file import load
from app.config.urls import is_loopback
from app.ledger.controller_client import ControllerClient
from app.server.application import Router
from app.telemetry.logs import log_to_stderr
from app.upstream.target import RuntimeEnvironment


def run(config: Path, host: str, port: int, serve_url: str) -> None:
    """Serves `config` until SIGINT or SIGTERM. Raises ConfigError before listening.

    `serve_url`: the Serve ingress, for deployments that have an `app`.
    """
    loaded = load(config)
    log_to_stderr()
    environment = RuntimeEnvironment.from_environment(serve_url, loopback=is_loopback(host))
    router = Router(environment, controller=_controller(loaded, environment.ledger_base))
    router.reconfigure(loaded)
    # What is here now stays: no collection needs to look at it again. Ray Serve does the same in its replicas.
    gc.collect()
    gc.freeze()
    uvicorn.run(router.app, host=host, port=port, log_level="warning", access_log=False)


def _controller(config: Config, ledger_base: Path) -> ControllerClient | None:
    """The controller of experiments in this process; None if nothing is recorded."""
    if not config.experiments and all(endpoint.ledger != "always" for endpoint in config.endpoints.values()):
        return None
    # Imported here: a router without experiments needs neither numpy nor pyarrow.
    from app.experiments.host import host_controller

    async def read_configuration() -> Config:
        return config

    return host_controller(read_configuration, ledger_base)
