"""The router alone, on uvicorn, in front of deployments that have a `url`: no Ray, no engine."""

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from app.config.base import is_loopback
from app.config.loading import load
from app.config.schema import Config
from app.internal_api import KEEP_ALIVE_MARGIN_S, KEEP_ALIVE_S
from app.server.application import Router
from app.server.http_protocol import PROTOCOL
from app.telemetry.logs import log_to_stderr
from app.upstream.target import RuntimeEnvironment

if TYPE_CHECKING:
    from app.experiments.host import ControllerHost


SEND_EVERY_S = 0.5
"""The interval at which exposures go to the controller here, and to disk: what a killed process loses is younger than
twice that. It costs little, since no network lies between the two.
"""


def run(config: Path, host: str, port: int, serve_url: str) -> None:
    """Serves `config` until SIGINT or SIGTERM. Raises ConfigError before listening.

    `serve_url`: the Serve ingress, for deployments that have an `app`.
    """
    loaded = load(config)
    log_to_stderr()
    environment = RuntimeEnvironment.from_environment(serve_url, loopback=is_loopback(host))
    controller = _controller(loaded, environment.ledger_base)
    router = Router(
        environment, controller=controller, recordings=controller, exports=controller, send_every_s=SEND_EVERY_S
    )
    router.reconfigure(loaded)
    # The present objects stay: no collection needs to look at them again. Ray Serve does the same in its replicas.
    gc.collect()
    gc.freeze()
    proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
    uvicorn.run(
        router.app,
        host=host,
        port=port,
        http=PROTOCOL,
        log_level="warning",
        access_log=False,
        # By default uvicorn believes every program on this machine that names another address as its own.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE_S,
        headers=[("keep-alive", f"timeout={KEEP_ALIVE_S - KEEP_ALIVE_MARGIN_S}")],
    )


def _controller(config: Config, ledger_base: Path) -> "ControllerHost | None":
    """The controller of experiments in this process; None if nothing is recorded and no keys are issued."""
    recorded = (
        endpoint for endpoint in config.endpoints.values() if endpoint.ledger == "always" or endpoint.record is not None
    )
    if not config.experiments and not any(recorded) and not config.access.issue_keys:
        return None
    # Imported here: a router without experiments needs neither numpy nor pyarrow.
    from app.experiments.host import host_controller

    async def read_configuration() -> Config:
        return config

    return host_controller(read_configuration, ledger_base, is_alone=True)
