"""Ray Serve's replicas and proxies, and their metrics: a `FleetSource`.

Replicas are asked over Ray, through their actors. Their ports for requests are not reliable: a replica whose queue is
full answers a scrape with 503, as any other request, and one that is stopped closes its port after some seconds but
finishes its streams for up to an hour. Both were tested: the actor answers in both cases.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import aiohttp
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from app.errors import Broken, NotFound, TimedOut, Unavailable
from app.server.fleet import AGAIN_S, REPLICA_TIMEOUT_S, Fleet, Replica

CallController = Callable[..., Awaitable[Any]]
"""Runs a function, which gets the Serve controller, in it: `ServeControl.call`."""

SCOPES = "scope=global&scope=frontend&scope=backend"
"""HAProxy's scopes: without series of single replicas, which `haproxy_backend_active_servers` counts."""

_TIMEOUT = aiohttp.ClientTimeout(total=4.0)


class ServeFleet:
    """`call` reaches the Serve controller. `proxy_port`: the port of each node's HAProxy metrics; None without."""

    def __init__(self, call: CallController, proxy_port: int | None) -> None:
        self._call, self._proxy_port = call, proxy_port
        self._actors: dict[str, Any] = {}
        """Handles of the listed replicas, None until first used: reading five hundred at once would take a while."""

    async def fleet(self) -> Fleet:
        """Raises Unavailable."""
        replicas, states, proxies = await self._called(_list_function())
        self._actors = {id: self._actors.get(id) for id, *_ in replicas}
        return Fleet(
            [Replica(*replica) for replica in replicas], states, proxies if self._proxy_port is not None else []
        )

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        """Raises NotFound for a replica that has ended, Unavailable, and Broken if it has no metrics to give."""
        if replica not in self._actors:
            raise _ended(replica)
        if (actor := self._actors[replica]) is None:
            if (actor := await self._called(_find_function(), replica)) is None:
                raise _ended(replica)
            self._actors[replica] = actor
        wanted = None if endpoints is None else list(endpoints)
        try:
            async with asyncio.timeout(REPLICA_TIMEOUT_S):
                while (answer := await actor.__ray_call__.remote(_read_function(), wanted)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S)
            return bytes(answer)
        except TimeoutError as error:
            raise TimedOut(f"The replica {replica} did not give its metrics in time") from error
        except ActorUnavailableError as error:
            raise Unavailable(f"The replica {replica} cannot be reached at the moment") from error
        except RayActorError as error:
            raise _ended(replica) from error
        except RayError as error:
            raise Broken(f"The replica {replica} failed to return its metrics; see its log") from error

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
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as http, http.get(url) as response:
                if response.status != 200:
                    raise Broken(f"The proxy of {node} answered with status {response.status}")
                return await response.read()
        except TimeoutError as error:
            raise TimedOut(f"The proxy of {node} did not respond in time") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"The proxy of {node} does not answer") from error


def _ended(replica: str) -> NotFound:
    return NotFound(f"The replica {replica} has ended")


def _list_function() -> Callable[[Any], tuple[Any, ...]]:
    """A function to run in the controller, which may lack this module: nested ones are pickled by value."""

    def listed(controller: Any) -> tuple[Any, ...]:
        replicas = []
        states: dict[str, dict[str, int]] = {}
        for id, deployment in controller.deployment_state_manager._deployment_states.items():
            counted = states.setdefault(id.app_name, {"STARTING": 0, "RUNNING": 0, "STOPPING": 0})
            for replica in deployment._replicas.get():
                details, state = replica.actor_details, replica.actor_details.state.value
                counted[state] = counted.get(state, 0) + 1
                # A starting replica would answer only once it runs.
                if (
                    replica._actor._actor_handle is not None
                    and details.node_ip
                    and state not in ("STARTING", "STOPPED")
                ):
                    replicas.append((details.replica_id, id.app_name, details.node_ip, state == "STOPPING"))
        proxies = controller.proxy_state_manager.get_proxy_details() if controller.proxy_state_manager else {}
        nodes = [
            proxy.node_ip
            for proxy in proxies.values()
            if proxy.node_ip and proxy.status.value not in ("STARTING", "DRAINED")
        ]
        return replicas, states, nodes

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
