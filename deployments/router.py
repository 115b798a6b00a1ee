"""The router as a Serve deployment: a thin host for `app.server.application.Router`.

Its configuration is the deployment's `user_config`, which Serve delivers to every replica on each change, without a
restart. An invalid one leaves the previous one in force.

A replica cannot see where Serve listens. So the router assumes that every machine can reach it, and rejects a
configuration without authentication, unless the environment states that Serve listens on the loopback interface
(SWITCHYARD_LOOPBACK=1, set by the local launcher).
"""

import logging
import os
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.constants import RAY_SERVE_ENABLE_HA_PROXY, RAY_SERVE_HAPROXY_METRICS_PORT
from ray.serve.context import _get_global_client
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from app.config.base import ConfigError
from app.exchange.response import REQUEST_ID_HEADER
from app.internal_api import LOOPBACK_VARIABLE, ROUTER_DEPLOYMENT
from app.server.application import Router
from app.server.fleet import PreparedMetrics
from app.server.http_protocol import PROTOCOL
from app.telemetry.logs import event, log_to_stderr
from app.upstream.balancer import Balancer
from app.upstream.controller_client import HttpController
from app.upstream.target import RuntimeEnvironment
from deployments.control_plane import ServeControl
from deployments.draining import GRACE_S, is_stopped
from deployments.fleet import ServeFleet
from deployments.replicas import watch

_log = logging.getLogger("switchyard")

MAX_ONGOING_REQUESTS = 1000
"""Ongoing requests per replica, unless the YAML sets another limit. Serve's own default is 5: a request here mostly
waits for a model.
"""


class RouterArgs(BaseModel):
    """`args` of the application: none; the configuration is `user_config`."""

    model_config = ConfigDict(extra="forbid")


@serve.ingress()
class RouterDeployment:
    """Hosts the router in a replica."""

    def __init__(self) -> None:
        log_to_stderr()
        HTTP_PROTOCOLS["auto"] = PROTOCOL  # Serve, which starts the server after this, lets none be named
        replica = serve.get_replica_context()
        environment = RuntimeEnvironment.from_environment(
            _serve_url(),
            loopback=os.environ.get(LOOPBACK_VARIABLE) == "1",
            several_routers=_has_siblings(replica._deployment_config),
            behind_ingress=True,
        )
        controller = HttpController(environment)
        control = ServeControl(replica.app_name, replica.deployment)
        self._router = Router(
            environment,
            control=control,
            fleet=ServeFleet(control.call, RAY_SERVE_HAPROXY_METRICS_PORT if RAY_SERVE_ENABLE_HA_PROXY else None),
            replica=replica.replica_tag,
            is_stopped=is_stopped,
            # Without HAProxy, replicas have no ports.
            balancer=Balancer(partial(watch, control.controller) if RAY_SERVE_ENABLE_HA_PROXY else None),
            controller=controller,
            recordings=controller,
            exports=controller,
        )
        self._prepared = PreparedMetrics(self._router.metrics)
        self._configured = False

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Applies `user_config` from the next request on. Serve calls it at the start and on every change.

        Raises ConfigError on an invalid one only while there is no previous one: Serve would replace a replica that
        raises, and with it the configuration that works.
        """
        try:
            await self._router.apply(user_config)
            self._configured = True
        except ConfigError as error:
            if not self._configured:
                raise
            _log.error(
                "Configuration rejected, keeping the previous one",
                extra=event("config_rejected", problems=error.problems),
            )

    def metrics_of(self, endpoints: list[str] | None) -> bytes | None:
        """This replica's metrics, for `deployments.fleet` in other replicas. None while they are being prepared."""
        return self._prepared.look(endpoints)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application that the replica serves."""
        return _WithoutRequestId(self._router.app)


class _WithoutRequestId:
    """Removes the request id from responses: Serve adds its own, and a repeated header is invalid."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != REQUEST_ID_HEADER.encode()]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_without)


def _serve_url() -> str:
    """The Serve ingress on this node, which knows every replica of every application."""
    return f"http://127.0.0.1:{_get_global_client().http_config.port}"


def _has_siblings(settings: DeploymentConfig) -> bool:
    """Whether Serve may run more replicas than this one, as of the start of this replica."""
    autoscaling = settings.autoscaling_config
    return (autoscaling.max_replicas if autoscaling is not None else settings.num_replicas or 1) > 1


def build(args: RouterArgs) -> Application:
    """The router's application, as `import_path` in the Serve configuration names it."""
    deployment = serve.deployment(
        name=ROUTER_DEPLOYMENT,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        graceful_shutdown_timeout_s=GRACE_S,
        logging_config={"enable_access_log": False},  # the router writes its own
    )
    return deployment(RouterDeployment).bind()
