"""The router alone, on uvicorn, in front of deployments that have a `url`: no Ray, no engine."""

import gc
from pathlib import Path

import uvicorn

from app.config.serve_file import load
from app.config.urls import is_loopback
from app.server.application import Router
from app.telemetry.logs import log_to_stderr
from app.upstream.target import RuntimeEnvironment


def run(config: Path, host: str, port: int, serve_url: str) -> None:
    """Serves `config` until SIGINT or SIGTERM. Raises ConfigError before listening.

    `serve_url`: the Serve ingress, for deployments that have an `app`.
    """
    loaded = load(config)
    log_to_stderr()
    router = Router(RuntimeEnvironment.from_environment(serve_url, loopback=is_loopback(host)))
    router.reconfigure(loaded)
    # What is here now stays: no collection needs to look at it again. Ray Serve does the same in its replicas.
    gc.collect()
    gc.freeze()
    uvicorn.run(router.app, host=host, port=port, log_level="warning", access_log=False)
