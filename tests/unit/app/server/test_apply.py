"""`Router.apply`: the same as `reconfigure`, without blocking the event loop."""

import asyncio
import threading
from random import Random
from typing import Any

import pytest

from app.config.base import ConfigError
from app.exchange.snapshot import Snapshot
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.telemetry.counters import counted
from tests.unit.app.config.test_loading import document


def router() -> Router:
    return Router(RuntimeEnvironment(), random=Random(1))


def served(router: Router) -> Snapshot | None:
    return router.state.snapshot


class RecordingConfiguration(dict[str, Any]):
    """A configuration that records which threads read it, and takes as long as the test says."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.readers: set[int] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def get(self, key: str, default: Any = None) -> Any:
        self.readers.add(threading.get_ident())
        assert self.may_go_on.wait(30)
        return super().get(key, default)


async def test_apply_does_the_same_as_reconfigure() -> None:
    one, other = router(), router()
    for shares in ((10, 20), (10, 30), (0, 30)):
        one.reconfigure(document(*shares))
        await other.apply(document(*shares))
        expected, snapshot = one.state.snapshot, other.state.snapshot
        assert expected is not None
        assert snapshot is not None
        assert snapshot.config == expected.config
        assert (snapshot.plans, snapshot.targets, snapshot.rules) == (expected.plans, expected.targets, expected.rules)


async def test_a_configuration_is_read_in_another_thread() -> None:
    config = RecordingConfiguration(document(10))
    await router().apply(config)
    assert config.readers
    assert threading.get_ident() not in config.readers


async def test_requests_use_the_old_configuration_meanwhile() -> None:
    running = router()
    await running.apply(document(10))
    before, slow = served(running), RecordingConfiguration(document(20))
    slow.may_go_on.clear()
    applying = asyncio.create_task(running.apply(slow))
    for _ in range(20):
        await asyncio.sleep(0)
    assert running.state.snapshot is before
    slow.may_go_on.set()
    await applying
    assert running.state.snapshot is not before


async def test_the_last_configuration_wins_however_long_the_others_take() -> None:
    running, slow = router(), RecordingConfiguration(document(10))
    slow.may_go_on.clear()
    first = asyncio.create_task(running.apply(slow))
    await asyncio.sleep(0)
    others = [asyncio.create_task(running.apply(document(share))) for share in (20, 30)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert served(running) is None
    slow.may_go_on.set()
    await asyncio.gather(first, *others)
    assert (snapshot := served(running)) is not None
    assert snapshot.config.endpoints["e0"].traffic == {"blue": 70, "green": 30}


async def test_an_invalid_configuration_leaves_the_last_valid_one() -> None:
    running = router()
    await running.apply(document(10))
    before = running.state.snapshot
    outcomes = await asyncio.gather(running.apply(document(101)), running.apply({}), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConfigError, ConfigError]
    assert running.state.snapshot is before
    with pytest.raises(ConfigError):
        await running.apply({**document(20), "access": {"keys_file": "/nowhere"}})
    assert running.state.snapshot is before
    await running.apply(document(20))
    reloads = running.state.telemetry.reloads
    assert [counted(reloads.labels(outcome)) for outcome in ("applied", "refused")] == [2, 3]
