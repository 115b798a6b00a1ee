"""Ray Serve as the control plane: the routers' configuration in the applied Serve configuration.

A change rewrites the `user_config` of the router's deployment and applies the whole Serve configuration again, as
`make deploy` does: Serve delivers it to every router replica without a restart, keeps it for replicas and controllers
that start later, and leaves other applications' replicas unchanged. serve_config.yaml is not touched: the next
deployment of that file restores the file's traffic.

Compare-and-set runs on the event loop of the Serve controller, without an await: no other change, from here or over
Ray's REST API, can come between the comparison and the write.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, HandleMetricReport, TimeStampedValue
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from app.control_plane import CHANGED_MEANWHILE, Applied, Delivery, Replicas, UpdateInProgress
from app.errors import Conflict, TimedOut, Unavailable

TIMEOUT_S = 10.0
"""The timeout of one call to the controller, whose event loop serves the whole cluster."""

Read = Callable[[Any], tuple[Any, str, str, float, dict[str, float]]]
Replace = Callable[[Any, Any, Any], Literal["replaced", "changed", "busy"]]
Report = Callable[[Any, dict[str, int], str], None]
Counted = tuple[dict[str, dict[str, int]], set[str], dict[str, list[str]], dict[str, int]]
Count = Callable[[Any], Counted]


class ServeControl:
    """The control plane of a router replica: `deployment` of `application`."""

    def __init__(self, application: str, deployment: str) -> None:
        self.controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        """Serve's controller."""
        self._application = application
        self._read, self._replace = _controller_functions(DeploymentID(name=deployment, app_name=application))

    async def applied(self) -> Applied:
        """The configuration that Serve has stored. Raises Unavailable."""
        try:
            config, application, deployment, since_s, created_s = await self.call(self._read)
        except TimeoutError as error:
            raise Unavailable("The Serve controller did not respond in time", retry_after=1) from error
        created_ms = {name: int(seconds * 1000) for name, seconds in created_s.items()}
        return Applied(config, _delivery(application, deployment), int(since_s * 1000), created_ms)

    async def replace(self, expected: Any, wanted: Any) -> None:
        """Raises Conflict, Unavailable, and TimedOut if it is unknown whether the change was made."""
        try:
            outcome = await self.call(self._replace, expected, wanted)
        except TimeoutError as error:
            message = "The Serve controller did not respond in time; read the endpoint to see its traffic"
            raise TimedOut(message) from error
        if outcome != "replaced":
            raise Conflict(CHANGED_MEANWHILE) if outcome == "changed" else UpdateInProgress()

    async def replicas(self) -> Replicas:
        """Serve's replicas by Serve's own state names: RUNNING, STARTING … Raises Unavailable."""
        try:
            running, asleep, ids, failed = await self.call(count_function())
        except TimeoutError as error:
            raise Unavailable("The Serve controller did not respond in time", retry_after=1) from error
        return Replicas(running, running.get(self._application, {}), asleep, ids, failed)

    async def report_unserved(self, requests: Mapping[str, int]) -> None:
        """Reports unserved requests as queued at a handle, since Serve counts those. Raises Unavailable."""
        try:
            await self.call(report_function(), dict(requests), ray.get_runtime_context().get_actor_id())
        except TimeoutError as error:
            raise Unavailable("The Serve controller did not respond in time", retry_after=1) from error

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(controller, *arguments)`, run on the controller's event loop."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self.controller.__ray_call__.remote(on_event_loop(function), *arguments)
        except RayError as error:
            raise Unavailable("The Serve controller is not available", retry_after=1) from error


def _delivery(application: str, deployment: str) -> Delivery:
    """The progress of the router's configuration, by Serve's statuses of its application and deployment.

    The application is DEPLOYING as soon as a configuration is applied; the deployment is HEALTHY only once every
    replica runs and has it.
    """
    if application == "DEPLOYING" or deployment == "UPDATING":
        return Delivery.DELIVERING
    if "DEPLOY_FAILED" in (application, deployment):
        return Delivery.FAILED
    return Delivery.SETTLED if deployment == "HEALTHY" else Delivery.UNSETTLED


def on_event_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for `__ray_call__` of the controller, which may lack this module: nested ones are pickled by value.

    `__ray_call__` runs in a thread beside the event loop, where a status would be read while the loop writes it. The
    controller's control loop is one of Ray's background tasks for as long as the controller runs.
    """

    def run(controller: Any, *arguments: Any) -> Any:
        from ray._common.utils import _BACKGROUND_TASKS

        async def called() -> Any:
            return function(controller, *arguments)

        task, *_ = tuple(_BACKGROUND_TASKS)  # copied in one step, since the event loop changes the set
        return asyncio.run_coroutine_threadsafe(called(), task.get_loop()).result()

    return run


def _controller_functions(router: DeploymentID) -> tuple[Read, Replace]:
    """Functions for `ServeControl.call`; nested, as in `on_event_loop`."""

    def find(config: Any) -> Any:
        (application,) = [application for application in config.applications if application.name == router.app_name]
        (deployment,) = [deployment for deployment in application.deployments if deployment.name == router.name]
        return deployment

    def statuses(controller: Any) -> tuple[str, str]:
        (deployment,) = controller.deployment_state_manager.get_deployment_statuses([router])
        application = controller.application_state_manager.get_app_status(router.app_name)
        return application.value, deployment.status.value

    def created(controller: Any, user_config: Any, since_s: float) -> dict[str, float]:
        """The time at which each endpoint was first seen applied (s): kept in Serve's own store, as the configuration
        is.
        """
        endpoints = user_config.get("endpoints") if isinstance(user_config, dict) else None
        key = f"switchyard-created-{router.app_name}"
        stored = json.loads(controller.kv_store.get(key) or b"{}")
        current = {name: stored.get(name, since_s) for name in endpoints or {}}
        if current != stored:
            controller.kv_store.put(key, json.dumps(current).encode())
        return current

    def read(controller: Any) -> tuple[Any, str, str, float, dict[str, float]]:
        """The deployment's user_config, the application's and its own status, when it was applied (s), and when each
        endpoint was."""
        since_s, config, _ = controller._read_config_checkpoint()
        user_config = find(config).user_config
        return user_config, *statuses(controller), since_s, created(controller, user_config, since_s)

    def replace(controller: Any, expected: Any, wanted: Any) -> Literal["replaced", "changed", "busy"]:
        """Replaces the configuration without an await, so that it is atomic."""
        _, config, _ = controller._read_config_checkpoint()
        deployment = find(config)
        if deployment.user_config != expected:
            return "changed"
        application_status, deployment_status = statuses(controller)
        if application_status == "DEPLOYING" or deployment_status == "UPDATING":
            return "busy"
        deployment.user_config = wanted
        controller.apply_config(config)
        return "replaced"

    return read, replace


def count_function() -> Count:
    """Like `_controller_functions`: the number of replicas of each application by state, the applications that are to
    have none, the ids of the running ones, and how many of each application's have failed to start in a row."""

    def count(controller: Any) -> Counted:
        applications: dict[str, dict[str, int]] = {}
        ids: dict[str, list[str]] = {}
        failed: dict[str, int] = {}
        awake: set[str] = set()
        for id, deployment in controller.deployment_state_manager._deployment_states.items():
            states = applications.setdefault(id.app_name, {})
            if deployment.target_num_replicas > 0:
                awake.add(id.app_name)
            if (failures := deployment._replica_failure_count) > 0:
                failed[id.app_name] = failures
            for replica in deployment.list_replica_details():
                states[replica.state.value] = states.get(replica.state.value, 0) + 1
                if replica.state.value == "RUNNING":
                    ids.setdefault(id.app_name, []).append(replica.replica_id)
        return applications, applications.keys() - awake, ids, failed

    return count


def report_function(clock: Callable[[], float] = time.time) -> Report:
    """Like `_controller_functions`: records a router's queue. Serve drops it when the router's actor has ended, or
    after 10 s without a report (RAY_SERVE_MIN_HANDLE_METRICS_TIMEOUT_S). `clock`: seconds since the epoch.
    """

    def report(controller: Any, requests: dict[str, int], actor: str) -> None:
        now = clock()
        for application, count in requests.items():
            name = controller.application_state_manager.get_ingress_deployment_name(application)
            if name is None:
                continue
            queued = HandleMetricReport(
                deployment_id=DeploymentID(name=name, app_name=application),
                handle_id=f"switchyard-{actor}",
                actor_id=actor,
                handle_source=DeploymentHandleSource.REPLICA,
                queued_requests=[TimeStampedValue(now, count)],
                metrics={},
                timestamp=now,
            )
            controller.autoscaling_state_manager.record_request_metrics_for_handle(queued)

    return report
