"""The fleet's known replicas, and answers that are reused."""

import asyncio

import pytest

from app.answer_cache import AnswerCache
from app.errors import NotFound, Unavailable
from app.server.fleet import EVERY_S, FRESH_S, Fleet, KnownFleet, Replica
from tests.support.processes.fake_fleet import MemoryFleet

ONE = Replica("r1", "router", "10.0.0.1")


class FleetRig:
    """A fleet at a given time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.source = MemoryFleet()
        self.source.start(ONE, lambda endpoints: f"of {endpoints}".encode())
        self.fleet = KnownFleet(self.source, lambda: self.now)


@pytest.fixture
def known() -> FleetRig:
    return FleetRig()


async def test_the_control_plane_is_called_once_in_some_seconds(known: FleetRig) -> None:
    for _ in range(3):
        assert (await known.fleet.now()).replicas == [ONE]
    assert known.source.calls == ["fleet"]
    known.now += EVERY_S
    known.source.listed = Fleet()
    assert (await known.fleet.now()).replicas == ()


async def test_the_last_list_stays_while_the_control_plane_is_away(known: FleetRig) -> None:
    await known.fleet.now()
    known.source.failure = Unavailable("away")
    known.now += 10 * EVERY_S
    assert (await known.fleet.now()).replicas == [ONE]
    assert len(known.source.calls) == 2


async def test_a_control_plane_that_never_answered_is_an_error(known: FleetRig) -> None:
    known.source.failure = Unavailable("away")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await known.fleet.now()
    assert known.source.calls == ["fleet"], "this causes no further calls"


async def test_scrapes_of_one_replica_ask_it_once_a_second(known: FleetRig) -> None:
    for _ in range(3):
        assert await known.fleet.replica_metrics("r1", None) == b"of None"
    assert known.source.calls == ["r1"]
    known.now += FRESH_S
    await known.fleet.replica_metrics("r1", None)
    assert known.source.calls == ["r1", "r1"]


async def test_readers_of_different_endpoints_do_not_get_each_others_answer(known: FleetRig) -> None:
    assert await known.fleet.replica_metrics("r1", ["chat"]) == b"of ['chat']"
    assert await known.fleet.replica_metrics("r1", None) == b"of None"


async def test_a_replica_that_has_ended_is_not_found(known: FleetRig) -> None:
    with pytest.raises(NotFound):
        await known.fleet.replica_metrics("r2", None)


async def test_concurrent_scrapes_share_a_call_and_one_that_leaves_affects_no_other() -> None:
    reused: AnswerCache[int] = AnswerCache(1.0, lambda: 0.0)
    go, calls = asyncio.Event(), []

    async def ask() -> int:
        calls.append(1)
        await go.wait()
        return 7

    waiting = [asyncio.create_task(reused.get("key", ask)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    go.set()
    assert await asyncio.gather(*waiting[1:]) == [7, 7]
    assert calls == [1]
