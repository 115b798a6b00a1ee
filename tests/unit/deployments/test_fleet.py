"""Serve's replicas and proxies as scrape targets, with a controller and actors in memory."""

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.errors import Broken, NotFound, SwitchyardError, Unavailable
from app.server.fleet import STOPPING, ApplicationState, Replica
from deployments.fleet import ServeFleet, failure_in
from tests.support.processes.servers import free_port, serve


class State(Enum):
    """Some of Serve's replica states."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"


class Actor:
    """A replica's actor handle: runs a function, or fails."""

    def __init__(self, failure: Exception | None = None, *, not_yet: int = 0) -> None:
        """The first `not_yet` calls return nothing."""
        self._failure, self._not_yet = failure, not_yet
        self.__ray_call__ = SimpleNamespace(remote=self._run)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> bytes | None:
        if self._failure is not None:
            raise self._failure
        cloudpickle.dumps(function)
        endpoints = arguments[0] if arguments else function.__name__
        if self._not_yet > 0:
            self._not_yet -= 1
            return None
        return f"of {endpoints}".encode()


def replica(id: str, state: State, actor: Actor | None, node: str | None = "10.0.0.1", stop_s: float = 0.0) -> Any:
    # Serve has no start of a replica before it calls for its process.
    details = SimpleNamespace(
        replica_id=id, state=state, node_ip=node, node_id=f"id of {node}", start_time_s=50.0 if actor is not None else 0
    )
    stop = {"_shutdown_start_time": 90.0, "_shutdown_deadline": 90.01 + stop_s} if state is State.STOPPING else {}
    return SimpleNamespace(actor_details=details, _actor=SimpleNamespace(_actor_handle=actor), **stop)


def controller(**applications: list[Any]) -> Any:
    deployments = {
        SimpleNamespaceId(app): SimpleNamespace(
            _replicas=SimpleNamespace(get=lambda them=them: them),
            curr_status_info=SimpleNamespace(status=SimpleNamespace(value="HEALTHY"), message=""),
        )
        for app, them in applications.items()
    }
    states = (("10.0.0.1", "HEALTHY"), (None, "HEALTHY"), ("10.0.0.3", "STARTING"))
    proxies = {
        str(number): SimpleNamespace(node_ip=node, status=SimpleNamespace(value=status))
        for number, (node, status) in enumerate(states)
    }
    states_of = {app: SimpleNamespace(status=SimpleNamespace(value="RUNNING"), message="") for app in applications}
    schemas = [SimpleNamespace(name=app, args={"llm_config": {"engine_kwargs": {"seed": 1}}}) for app in applications]
    resources = {"id of 10.0.0.1": {"CPU": 8.0, "accelerator_type:H100": 1.0}, "id of 10.0.0.2": {"CPU": 8.0}}
    return SimpleNamespace(
        cluster_node_info_cache=SimpleNamespace(get_total_resources_per_node=lambda: resources),
        application_state_manager=SimpleNamespace(list_app_statuses=lambda: states_of),
        _read_config_checkpoint=lambda: (1.0, SimpleNamespace(applications=schemas) if schemas else None, None),
        deployment_state_manager=SimpleNamespace(_deployment_states=deployments),
        proxy_state_manager=SimpleNamespace(get_proxy_details=lambda: proxies),
    )


class SimpleNamespaceId:
    """A deployment's id."""

    def __init__(self, app_name: str) -> None:
        self.app_name = app_name


def fleet_of(running: Any, proxy_port: int | None = 9101) -> ServeFleet:
    async def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return cloudpickle.loads(cloudpickle.dumps(function))(running, *arguments)

    return ServeFleet(call, proxy_port)


GAVE_UP = """The deployment failed to start 3 times in a row. This may be due to a problem with its constructor or \
initial health check failing. See controller logs for details. Error:
ray::ServeReplica:ghost:Engine.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)
  File "replica.py", line 1, in initialize
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "config.py", line 9, in check
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The checkpoint has model type `nope` but Transformers does not know it. [type=value_error, input_value=0]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        ("Deploying app 'x' failed: no module", "Deploying app 'x' failed: no module"),
        (
            GAVE_UP,
            "The deployment failed to start 3 times in a row. "
            "The checkpoint has model type `nope` but Transformers does not know it.",
        ),
        (
            "A replica failed to start with exception. Retrying 2 more time(s). Error:\nValueError: no weights\n",
            "A replica failed to start with exception. Retrying 2 more time(s). no weights",
        ),
        ("It failed. Error:\nsomething else\nlast line", "It failed. last line"),
    ],
)
def test_a_failure_is_told_without_its_stack_trace(said: str, words: str) -> None:
    assert failure_in(said) == words


async def test_an_application_says_why_its_deployment_does_not_start() -> None:
    running = controller(ghost=[])
    (ghost,) = running.deployment_state_manager._deployment_states.values()
    ghost.curr_status_info = SimpleNamespace(status=SimpleNamespace(value="DEPLOY_FAILED"), message=GAVE_UP)
    state = (await fleet_of(running).fleet()).applications["ghost"]
    assert "model type `nope`" in state.message
    assert "Traceback" not in state.message


async def test_every_replica_is_listed_with_its_node_and_whether_it_can_answer() -> None:
    running = controller(
        router=[replica("r1", State.RUNNING, Actor()), replica("r2", State.STOPPING, Actor(), "10.0.0.2")],
        blue=[replica("b1", State.STARTING, Actor()), replica("b2", State.RUNNING, None)],
        asleep=[],
    )
    listed = await fleet_of(running).fleet()
    assert listed.replicas == [
        Replica("r1", "router", "10.0.0.1", started_at=50.0, accelerator="H100"),
        Replica("r2", "router", "10.0.0.2", STOPPING, 50.0),
        Replica("b1", "blue", "10.0.0.1", "STARTING", 50.0, "H100", can_answer=False),
        Replica("b2", "blue", "10.0.0.1", accelerator="H100", can_answer=False),
    ]
    assert [replica.is_draining for replica in listed.replicas] == [False, True, False, False]
    arguments = {"llm_config": {"engine_kwargs": {"seed": 1}}}
    assert listed.applications["blue"] == ApplicationState("RUNNING", "", arguments)
    assert listed.states == {
        "router": {"STARTING": 0, "RUNNING": 1, "STOPPING": 1},
        "blue": {"STARTING": 1, "RUNNING": 1, "STOPPING": 0},
        "asleep": {"STARTING": 0, "RUNNING": 0, "STOPPING": 0},
    }
    assert listed.proxies == ["10.0.0.1"]


async def test_a_replica_that_has_failed_has_no_time_to_stop() -> None:
    planned = replica("planned", State.STOPPING, Actor(), stop_s=3600.0)
    listed = await fleet_of(controller(blue=[planned, replica("failed", State.STOPPING, None)])).fleet()
    assert [(one.id, one.has_time_to_stop) for one in listed.replicas] == [("planned", True), ("failed", False)]


async def test_without_haproxy_there_are_no_proxies() -> None:
    assert (await fleet_of(controller(), proxy_port=None).fleet()).proxies == []


async def test_a_replica_gives_its_metrics_also_while_it_stops() -> None:
    fleet = fleet_of(controller(router=[replica("r1", State.STOPPING, Actor())]))
    await fleet.fleet()
    assert await fleet.replica_metrics("r1", {"chat"}) == b"of ['chat']"
    assert await fleet.replica_metrics("r1", None) == b"of None"


async def test_a_replica_gives_its_engines_card_and_one_that_starts_none() -> None:
    starting = replica("b2", State.STARTING, Actor())
    fleet = fleet_of(controller(blue=[replica("b1", State.RUNNING, Actor()), starting]))
    await fleet.fleet()
    assert await fleet.engine_card("b1") == b"of describe"
    with pytest.raises(NotFound, match="b2"):
        await fleet.engine_card("b2")


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ActorDiedError(), NotFound),
        (ActorUnavailableError("away", b"1" * 16), Unavailable),
        (RayTaskError("read", "a traceback", ValueError("no metrics")), Broken),
    ],
)
async def test_rays_failures_become_our_errors(failure: Exception, error: type[SwitchyardError]) -> None:
    fleet = fleet_of(controller(router=[replica("r1", State.RUNNING, Actor(failure))]))
    await fleet.fleet()
    with pytest.raises(error, match="r1"):
        await fleet.replica_metrics("r1", None)


async def test_a_router_that_is_preparing_its_metrics_is_asked_again() -> None:
    fleet = fleet_of(controller(router=[replica("r1", State.RUNNING, Actor(not_yet=2))]))
    await fleet.fleet()
    assert await fleet.replica_metrics("r1", None) == b"of None"


async def test_a_replica_that_ends_after_it_was_listed_is_not_found() -> None:
    running = controller(router=[replica("r1", State.RUNNING, Actor())])
    fleet = fleet_of(running)
    await fleet.fleet()
    running.deployment_state_manager._deployment_states.clear()
    with pytest.raises(NotFound, match="r1"):
        await fleet.replica_metrics("r1", None)


async def test_a_known_replica_is_asked_without_the_controller() -> None:
    running = controller(router=[replica("r1", State.RUNNING, Actor())])
    fleet = fleet_of(running)
    await fleet.fleet()
    await fleet.replica_metrics("r1", None)
    await fleet.fleet()
    running.deployment_state_manager = None
    assert await fleet.replica_metrics("r1", None) == b"of None"


async def test_a_replica_that_was_never_listed_is_not_found() -> None:
    with pytest.raises(NotFound):
        await fleet_of(controller()).replica_metrics("r1", None)


async def test_a_controller_that_does_not_answer_in_time_is_unavailable() -> None:
    async def call(function: Callable[[Any], Any]) -> Any:
        raise TimeoutError

    with pytest.raises(Unavailable):
        await ServeFleet(call, None).fleet()


async def test_a_proxys_metrics_are_read_without_a_series_for_each_replica() -> None:
    async def metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(request.query_params.getlist("scope")))

    with serve(Starlette(routes=[Route("/metrics", metrics)])) as url:
        fleet = fleet_of(controller(), proxy_port=int(url.rpartition(":")[2]))
        assert await fleet.proxy_metrics("127.0.0.1") == b"['global', 'frontend', 'backend']"
    with serve(Starlette()) as url, pytest.raises(Broken, match="404"):
        await fleet_of(controller(), proxy_port=int(url.rpartition(":")[2])).proxy_metrics("127.0.0.1")
    with pytest.raises(Unavailable):
        await fleet_of(controller(), proxy_port=free_port()).proxy_metrics("127.0.0.1")
