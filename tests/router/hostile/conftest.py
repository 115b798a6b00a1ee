"""One router for all hostile requests: if one of them breaks it, the next ones fail."""

from collections.abc import Iterator

import pytest

from tests.router.hostile.rig import HostileRig, hostile_rig


@pytest.fixture(scope="package")
def standing() -> Iterator[HostileRig]:
    with hostile_rig() as rig:
        yield rig


@pytest.fixture
def hostile(standing: HostileRig) -> Iterator[HostileRig]:
    """The router; after the test nothing of its requests is left in it, and no exception went unnoticed."""
    with standing.watched():
        standing.engine.pieces = None
        standing.client.request("GET", "/health")
        standing.settled(_IDLE)
        tasks = standing.tasks()
        yield standing
        standing.engine.pieces = None
        standing.settled(tasks)
    found, standing.defects.found = standing.defects.found, []
    assert not found, found


_IDLE = 40
