"""The controller of experiments as a Serve application: stores what routers record, and judges it.

One replica. It reads the routers' configuration from the control plane, as they serve it, moves traffic there as
experiments decide, ends expired temporary plans, and serves routers at /deployments/experiments, behind the internal
key. While a replica is replaced there may be two for a moment: batches are taken once all the same. Routers keep what
is not durable, so that nothing is lost with a replica.
"""

import os
import time
from functools import partial

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp

from app.config.schema import Config
from app.control_plane import restore_expired
from app.experiments.host import host_controller
from app.internal_api import ROUTER, ROUTER_DEPLOYMENT
from app.internal_keys import Purpose, accepted
from app.server.experiments_host import experiments_app
from app.server.models import replica_starts
from app.telemetry.logs import log_to_stderr
from app.upstream.target import ledger_base
from deployments.control_plane import ServeControl
from deployments.engine.internal_key import InternalKeyMiddleware
from deployments.fleet import ServeFleet

CPUS = 0.2
"""Logical CPUs. 20,000 requests a second take a sixth of a core."""

GRACE_S = 60.0
"""The grace period at the end: pending rows are written within its first seconds."""


class ExperimentsArgs(BaseModel):
    """`args` of the application: none; its settings are in the router's `user_config`."""

    model_config = ConfigDict(extra="forbid")


@serve.ingress()
class ExperimentsDeployment:
    """Hosts the controller in a replica."""

    def __init__(self) -> None:
        log_to_stderr()
        control = ServeControl(ROUTER, ROUTER_DEPLOYMENT)

        async def read_configuration() -> Config | None:
            return await restore_expired(control, time.time())

        new_starts = partial(replica_starts, ServeFleet(control.call, None))
        self._host = host_controller(read_configuration, ledger_base(), control, new_starts)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that the replica serves."""
        return InternalKeyMiddleware(experiments_app(self._host), keys=accepted(os.environ, Purpose.CONTROLLER))


def build(args: ExperimentsArgs) -> Application:
    """The controller's application, as `import_path` in the Serve configuration names it."""
    deployment = serve.deployment(
        name="Experiments",
        num_replicas=1,
        max_ongoing_requests=100,
        graceful_shutdown_timeout_s=GRACE_S,
        ray_actor_options={"num_cpus": CPUS},
        logging_config={"enable_access_log": False},
    )
    return deployment(ExperimentsDeployment).bind()
