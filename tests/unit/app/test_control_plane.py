"""The change of an endpoint's traffic in the control plane: as a whole or not at all."""

import asyncio
import copy
from typing import Any

import pytest

from app.config.schema import parse
from app.control_plane import Applied, Delivery, change_traffic, delivery_seen, with_traffic
from app.errors import BadRequest, Conflict
from tests.support.fake_control_plane import MemoryControl

DATA: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "sticky": {"by": "user"}},
        "other": {"tasks": ["chat"], "traffic": {"blue": 100}},
    },
    "deployments": {"blue": {"app": "blue", "model": "m"}, "green": {"app": "green", "model": "m"}},
    "timeouts": {"idle_s": 7},
}
SEEN = {"blue": 90, "green": 10}
MOVED = {"blue": 0, "green": 100}


@pytest.fixture
def control() -> MemoryControl:
    return MemoryControl(copy.deepcopy(DATA), parse)


async def test_only_the_traffic_changes(control: MemoryControl) -> None:
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    expected = copy.deepcopy(DATA)
    expected["endpoints"]["chat"]["traffic"] = MOVED
    assert control.config == expected


async def test_a_repeated_change_does_nothing(control: MemoryControl) -> None:
    for _ in range(2):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.replaced == 1


async def test_traffic_that_changed_in_the_meantime_is_not_overwritten(control: MemoryControl) -> None:
    control.config = with_traffic(DATA, "chat", {"blue": 50, "green": 50})
    before = copy.deepcopy(control.config)
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.config == before


async def test_an_update_in_progress_refuses_the_next(control: MemoryControl) -> None:
    await change_traffic(control, "other", seen={"blue": 100}, wanted={"blue": 50, "green": 50})
    with pytest.raises(Conflict, match="in progress"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    control.deliver()
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.config["endpoints"]["other"]["traffic"] == {"blue": 50, "green": 50}


@pytest.mark.parametrize("delivery", [Delivery.UNSETTLED, Delivery.FAILED])
async def test_what_is_no_update_does_not_stand_in_the_way(control: MemoryControl, delivery: Delivery) -> None:
    control.delivery = delivery
    await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.replaced == 1


async def test_of_concurrent_changes_exactly_one_is_made(control: MemoryControl) -> None:
    wanted = [{"blue": share, "green": 100 - share} for share in range(10)]
    changes = [change_traffic(control, "chat", seen=SEEN, wanted=traffic) for traffic in wanted]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 9 + ["NoneType"]
    assert control.config["endpoints"]["chat"]["traffic"] == wanted[outcomes.index(None)]


class Interrupted(MemoryControl):
    """Somebody else applies another configuration between the look and the change."""

    async def applied(self) -> Applied:
        seen = await super().applied()
        self.config = {**self.config, "max_body_bytes": 4096}
        return seen


async def test_a_change_in_between_is_noticed() -> None:
    control = Interrupted(copy.deepcopy(DATA), parse)
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.config == {**DATA, "max_body_bytes": 4096}


async def test_an_invalid_configuration_is_not_sent(control: MemoryControl) -> None:
    with pytest.raises(BadRequest, match="unknown deployment 'red'") as raised:
        await change_traffic(control, "chat", seen=SEEN, wanted={"red": 100})
    assert raised.value.param == "traffic_config"
    assert control.config == DATA


async def test_an_invalid_configuration_builds_nothing(control: MemoryControl) -> None:
    control.config = wrong = with_traffic(DATA, "chat", {"blue": 1})
    with pytest.raises(Conflict, match="last applied configuration is invalid"):
        await change_traffic(control, "chat", seen=SEEN, wanted=MOVED)
    assert control.config == wrong


async def test_an_endpoint_that_is_gone_is_a_conflict(control: MemoryControl) -> None:
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await change_traffic(control, "gone", seen=SEEN, wanted=MOVED)


SERVED = parse(DATA)
OTHER = parse(with_traffic(DATA, "chat", MOVED))


@pytest.mark.parametrize("delivery", [Delivery.DELIVERING, Delivery.UNSETTLED, Delivery.FAILED])
def test_what_is_not_settled_elsewhere_is_not_settled_here(delivery: Delivery) -> None:
    assert delivery_seen(Applied(DATA, delivery, 1), SERVED, SERVED) is delivery


def test_settled_is_what_this_router_serves_too() -> None:
    applied = Applied(copy.deepcopy(DATA), Delivery.SETTLED, 1)
    assert delivery_seen(applied, SERVED, SERVED) is Delivery.SETTLED
    assert delivery_seen(applied, OTHER, SERVED) is Delivery.SETTLED
    assert delivery_seen(applied, SERVED, OTHER) is Delivery.UNSETTLED


@pytest.mark.parametrize("config", [with_traffic(DATA, "chat", MOVED), with_traffic(DATA, "chat", {"blue": 1}), None])
def test_a_configuration_that_this_router_has_and_does_not_serve_has_failed(config: Any) -> None:
    assert delivery_seen(Applied(config, Delivery.SETTLED, 1), SERVED, SERVED) is Delivery.FAILED
