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


def served(it: Router) -> Snapshot | None:
    return it.state.snapshot


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
    it = router()
    await it.apply(document(10))
    before, slow = served(it), RecordingConfiguration(document(20))
    slow.may_go_on.clear()
    applying = asyncio.create_task(it.apply(slow))
    for _ in range(20):
        await asyncio.sleep(0)
    assert it.state.snapshot is before
    slow.may_go_on.set()
    await applying
    assert it.state.snapshot is not before


async def test_the_last_configuration_wins_however_long_the_others_take() -> None:
    it, slow = router(), RecordingConfiguration(document(10))
    slow.may_go_on.clear()
    first = asyncio.create_task(it.apply(slow))
    await asyncio.sleep(0)
    others = [asyncio.create_task(it.apply(document(share))) for share in (20, 30)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert served(it) is None
    slow.may_go_on.set()
    await asyncio.gather(first, *others)
    assert (snapshot := served(it)) is not None
    assert snapshot.config.endpoints["e0"].traffic == {"blue": 70, "green": 30}


async def test_an_invalid_configuration_leaves_the_last_valid_one() -> None:
    it = router()
    await it.apply(document(10))
    before = it.state.snapshot
    outcomes = await asyncio.gather(it.apply(document(101)), it.apply({}), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConfigError, ConfigError]
    assert it.state.snapshot is before
    with pytest.raises(ConfigError):
        await it.apply({**document(20), "access": {"keys_file": "/nowhere"}})
    assert it.state.snapshot is before
    await it.apply(document(20))
    reloads = it.state.telemetry.reloads
    assert [counted(reloads.labels(outcome)) for outcome in ("applied", "refused")] == [2, 3]
