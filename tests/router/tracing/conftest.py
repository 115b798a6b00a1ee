"""A router whose requests are traced, and the collector that gets its spans."""

from collections.abc import Iterator

import pytest

from tests.router.conftest import Rig
from tests.support.telemetry.otlp_receiver import OtlpReceiver, receiving


@pytest.fixture(scope="session")
def running_receiver() -> Iterator[tuple[OtlpReceiver, str]]:
    with receiving() as running:
        yield running


@pytest.fixture
def collector(running_receiver: tuple[OtlpReceiver, str], monkeypatch: pytest.MonkeyPatch) -> OtlpReceiver:
    """A collector that has received nothing. Spans are sent at once."""
    receiver, _ = running_receiver
    receiver.reset()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    return receiver


@pytest.fixture
def traced(rig: Rig, collector: OtlpReceiver, running_receiver: tuple[OtlpReceiver, str]) -> Rig:
    """The rig, with every request traced, and deployments that get the context."""
    deployments = rig.config["deployments"]
    rig.change(
        deployments={name: {**deployment, "trace_context": True} for name, deployment in deployments.items()},
        tracing={"endpoint": running_receiver[1], "percent": 100},
    )
    return rig
