"""The functions that run inside Serve's controller, tested on parts of it: the rest needs a running Serve."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class States:
    """The controller's autoscaling state of one application: Serve's own class."""

    def __init__(self) -> None:
        from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
        from ray.serve._private.common import DeploymentID
        from ray.serve.config import AutoscalingConfig

        self.id = DeploymentID(name="Engine", app_name="llama")
        self.state = DeploymentAutoscalingState(self.id)
        self.state._config = AutoscalingConfig()

    def record_request_metrics_for_handle(self, report: Any) -> None:
        assert report.deployment_id == self.id
        self.state.record_request_metrics_for_handle(report)


def test_demand_that_routers_report_counts_as_queued_in_serve() -> None:
    """Serve weighs reports by the time between them."""
    from ray import cloudpickle

    from deployments.control_plane import report_function

    states = States()
    names = {"llama": "Engine"}
    controller = SimpleNamespace(
        autoscaling_state_manager=states,
        application_state_manager=SimpleNamespace(get_ingress_deployment_name=names.get),
    )
    start = time.time()

    def report_at(moment: float) -> Any:
        """The function as the controller gets it: pickled by value."""
        return cloudpickle.loads(cloudpickle.dumps(report_function(lambda: moment)))

    report = report_at(start)
    report(controller, {"llama": 28, "unknown": 5}, "actor-1")
    report(controller, {"llama": 4}, "actor-2")
    assert states.state._get_queued_requests() == pytest.approx(32)
    assert states.state.get_total_num_requests() == pytest.approx(32)
    report_at(start + 1)(controller, {"llama": 0}, "actor-1")
    assert states.state._get_queued_requests() == pytest.approx(4)


def test_replicas_that_are_gone_take_their_reports_along() -> None:
    from deployments.control_plane import report_function

    states = States()
    controller = SimpleNamespace(
        autoscaling_state_manager=states,
        application_state_manager=SimpleNamespace(get_ingress_deployment_name={"llama": "Engine"}.get),
    )
    report_function()(controller, {"llama": 28}, "actor-1")
    states.state.drop_stale_handle_metrics({"actor-1"})
    assert states.state._get_queued_requests() == pytest.approx(28)
    states.state.drop_stale_handle_metrics(set())
    assert states.state._get_queued_requests() == 0


def test_an_application_sleeps_if_it_is_to_have_no_replica() -> None:
    from deployments.control_plane import count_function

    def deployment(target: int, *states: str, failed: int = 0) -> Any:
        replicas = [
            SimpleNamespace(replica_id=f"{state} {number}", state=SimpleNamespace(value=state))
            for number, state in enumerate(states)
        ]
        return SimpleNamespace(
            target_num_replicas=target, list_replica_details=lambda: replicas, _replica_failure_count=failed
        )

    found = {
        _id("asleep"): deployment(0),
        _id("stops"): deployment(0, "STOPPING"),
        _id("starts"): deployment(1, "STARTING"),
        _id("fails"): deployment(1, failed=3),
        _id("two", "A"): deployment(0),
        _id("two", "B"): deployment(2, "RUNNING", "RUNNING"),
    }
    controller = SimpleNamespace(deployment_state_manager=SimpleNamespace(_deployment_states=found))
    counts, asleep, ids, failures = count_function()(controller)
    assert failures == {"fails": 3}
    assert asleep == {"asleep", "stops"}
    assert counts["two"] == {"RUNNING": 2}
    assert counts["starts"] == {"STARTING": 1}
    assert ids == {"two": ["RUNNING 0", "RUNNING 1"]}


def _id(application: str, name: str = "Engine") -> Any:
    from ray.serve._private.common import DeploymentID

    return DeploymentID(name=name, app_name=application)


async def test_functions_run_on_the_controllers_event_loop() -> None:
    """Ray calls them in another thread."""
    from ray import cloudpickle
    from ray._common.utils import run_background_task

    from deployments.control_plane import on_event_loop

    def where(controller: Any, *arguments: int) -> tuple[Any, tuple[int, ...], int]:
        return controller, arguments, threading.get_ident()

    def fails(controller: Any) -> None:
        raise ValueError(f"for {controller}")

    over = asyncio.Event()
    control_loop = run_background_task(over.wait())
    sent = cloudpickle.loads(cloudpickle.dumps(on_event_loop(where)))
    assert await asyncio.to_thread(sent, "controller", 1, 2) == ("controller", (1, 2), threading.get_ident())
    with pytest.raises(ValueError, match="for controller"):
        await asyncio.to_thread(on_event_loop(fails), "controller")
    over.set()
    await control_loop
