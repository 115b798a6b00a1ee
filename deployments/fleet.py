"""Ray Serve's replicas and proxies, and their metrics: a `FleetSource`.

Replicas are asked over Ray, through their actors. Their ports for requests are not reliable: a replica whose queue is
full answers a scrape with 503, as any other request, and one that is stopped closes its port after some seconds but
finishes its streams for up to an hour. Both were tested: the actor answers in both cases.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from app.errors import Broken, NotFound, TimedOut, Unavailable
from app.server.fleet import AGAIN_S, REPLICA_TIMEOUT_S, ApplicationState, Fleet, Replica
from app.upstream.http.client import HttpClient
from app.upstream.http.connection import ConnectTimedOut, HttpError

CallController = Callable[..., Awaitable[Any]]
"""Runs a function, which gets the Serve controller, in it: `ServeControl.call`."""

SCOPES = "scope=global&scope=frontend&scope=backend"
"""HAProxy's scopes: without series of single replicas, which `haproxy_backend_active_servers` counts."""

_TIMEOUT_S = 4.0


class ServeFleet:
    """`call` reaches the Serve controller. `proxy_port`: the port of each node's HAProxy metrics; None without."""

    def __init__(self, call: CallController, proxy_port: int | None) -> None:
        self._call, self._proxy_port = call, proxy_port
        self._actors: dict[str, Any] = {}
        """Handles of the listed replicas, None until first used: reading five hundred at once would take a while."""

    async def fleet(self) -> Fleet:
        """Raises Unavailable."""
        listed, states, proxies, applications = await self._called(_list_function())
        replicas = [Replica(*replica) for replica in listed]
        self._actors = {replica.id: self._actors.get(replica.id) for replica in replicas if replica.can_answer}
        return Fleet(
            replicas,
            states,
            proxies if self._proxy_port is not None else [],
            {
                name: ApplicationState(status, failure_in(message), arguments)
                for name, (status, message, arguments) in applications.items()
            },
        )

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """Raises NotFound for a replica that has ended, Unavailable, and Broken if it has no metrics to give."""
        return await self._asked(
            replica, "its metrics", _read_function(), None if endpoints is None else list(endpoints)
        )

    async def engine_card(self, replica: str) -> bytes:
        """Raises NotFound for a replica that has ended, Unavailable, and Broken if there is no engine in it."""
        return await self._asked(replica, "its card", _describe_function())

    async def _asked(self, replica: str, what: str, function: Callable[..., bytes | None], *arguments: Any) -> bytes:
        """What `function` returns in the replica; it is called again as long as that is None."""
        if replica not in self._actors:
            raise _ended(replica)
        if (actor := self._actors[replica]) is None:
            if (actor := await self._called(_find_function(), replica)) is None:
                raise _ended(replica)
            self._actors[replica] = actor
        try:
            async with asyncio.timeout(REPLICA_TIMEOUT_S):
                while (answer := await actor.__ray_call__.remote(function, *arguments)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S)
            return bytes(answer)
        except TimeoutError as error:
            raise TimedOut(f"The replica {replica} did not give {what} in time") from error
        except ActorUnavailableError as error:
            raise Unavailable(f"The replica {replica} cannot be reached at the moment") from error
        except RayActorError as error:
            raise _ended(replica) from error
        except RayError as error:
            raise Broken(f"The replica {replica} failed to give {what}; see its log") from error

    async def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._call(function, *arguments)
        except TimeoutError as error:
            raise Unavailable("The Serve controller did not respond in time", retry_after=1) from error

    async def proxy_metrics(self, node: str) -> bytes:
        """Raises Unavailable, TimedOut, and Broken if something else answers there."""
        host = f"[{node}]" if ":" in node else node
        url = f"http://{host}:{self._proxy_port}/metrics?{SCOPES}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                with closing(HttpClient()) as client, closing(await client.get(url, {}, _TIMEOUT_S)) as response:
                    if response.status != 200:
                        raise Broken(f"The proxy of {node} answered with status {response.status}")
                    return await response.whole()
        except (TimeoutError, ConnectTimedOut) as error:
            raise TimedOut(f"The proxy of {node} did not respond in time") from error
        except HttpError as error:
            raise Unavailable(f"The proxy of {node} does not answer") from error


_ERROR = re.compile(r"^\s*(?:[\w.]*(?:Error|Exception|Exit)|Value error)\b[:,] *(?P<words>.+)", re.MULTILINE)
_MOST = 400
"""Characters of an error."""


def failure_in(message: str) -> str:
    """Serve's words about an application, or about the deployment that fails in it: of a stack trace, the error that
    was raised first."""
    words, _, trace = message.partition("Error:\n")
    words = words.partition(" This may be due to ")[0]
    errors = [found["words"] for found in _ERROR.finditer(trace) if "Traceback (" not in found["words"]]
    if not errors:
        return f"{words.strip()} {trace.strip().rpartition(chr(10))[2].strip()[:_MOST]}".strip()
    error = errors[-1].partition(" [type=")[0].strip()
    return f"{words.strip()} {error[:_MOST]}{'…' if len(error) > _MOST else ''}"


def _ended(replica: str) -> NotFound:
    return NotFound(f"The replica {replica} has ended")


def _list_function() -> Callable[[Any], tuple[Any, ...]]:
    """A function to run in the controller, which may lack this module: nested ones are pickled by value."""

    def listed(controller: Any) -> tuple[Any, ...]:
        replicas = []
        states: dict[str, dict[str, int]] = {}
        failures: dict[str, str] = {}
        resources = controller.cluster_node_info_cache.get_total_resources_per_node()
        prefix = "accelerator_type:"
        kinds = {
            node: next((name.removeprefix(prefix) for name in sorted(total) if name.startswith(prefix)), None)
            for node, total in resources.items()
        }
        for id, deployment in controller.deployment_state_manager._deployment_states.items():
            counted = states.setdefault(id.app_name, {"STARTING": 0, "RUNNING": 0, "STOPPING": 0})
            if (info := deployment.curr_status_info).status.value != "HEALTHY" and info.message:
                failures[id.app_name] = info.message
            for replica in deployment._replicas.get():
                details, state = replica.actor_details, replica.actor_details.state.value
                counted[state] = counted.get(state, 0) + 1
                # A starting replica would answer only once it runs.
                can_answer = (
                    replica._actor._actor_handle is not None
                    and bool(details.node_ip)
                    and state not in ("STARTING", "STOPPED")
                )
                node, kind = details.node_ip or "", kinds.get(details.node_id)
                # 0 until the controller has called for the replica's process.
                started_at = details.start_time_s or None
                # Serve stops the failed ones at once.
                has_time = state == "STOPPING" and replica._shutdown_deadline - replica._shutdown_start_time > 1
                replicas.append((details.replica_id, id.app_name, node, state, started_at, kind, can_answer, has_time))
        proxies = controller.proxy_state_manager.get_proxy_details() if controller.proxy_state_manager else {}
        nodes = [
            proxy.node_ip
            for proxy in proxies.values()
            if proxy.node_ip and proxy.status.value not in ("STARTING", "DRAINED")
        ]
        _, config, _ = controller._read_config_checkpoint()
        given = {application.name: application.args for application in config.applications} if config else {}
        applications = {
            name: (status.status.value, failures.get(name, status.message), given.get(name) or {})
            for name, status in controller.application_state_manager.list_app_statuses().items()
        }
        return replicas, states, nodes, applications

    return listed


def _find_function() -> Callable[[Any, str], Any]:
    """Like `_list_function`: returns a replica's actor, None if it has ended."""

    def found(controller: Any, replica: str) -> Any:
        for deployment in controller.deployment_state_manager._deployment_states.values():
            for each in deployment._replicas.get():
                if each.actor_details.replica_id == replica:
                    return each._actor._actor_handle
        return None

    return found


def _read_function() -> Callable[[Any, list[str] | None], bytes | None]:
    """Like `_list_function`, for a replica of any application. None: the metrics are being prepared, ask again."""

    def read(replica: Any, endpoints: list[str] | None) -> bytes | None:
        from ray import serve

        application = serve.get_replica_context().servable_object
        if hasattr(application, "metrics_of"):  # the router
            own: bytes | None = application.metrics_of(endpoints)
            return own
        # An engine's metrics are vLLM's, in the registry of the process.
        from prometheus_client import generate_latest

        return generate_latest()

    return read


def _describe_function() -> Callable[[Any], bytes]:
    """Like `_list_function`, for an engine's replica."""

    def describe(replica: Any) -> bytes:
        from ray import serve

        card: bytes = serve.get_replica_context().servable_object.card()
        return card

    return describe
