"""A rollback does not wait for the control plane: the stop acts at once, and traffic never flips back."""

import pytest

from app.control_plane import Delivery
from app.errors import Unavailable
from tests.router.acting.conftest import ActingRig, failed, failing, watched


@pytest.mark.parametrize("trouble", ["busy", "failing"])
async def test_a_stop_acts_while_the_control_plane_cannot_be_changed(acting: ActingRig, trouble: str) -> None:
    acting.green.answer = failing
    acting.deploy(green=50)
    if trouble == "busy":
        acting.control.delivery = Delivery.DELIVERING
    else:
        acting.control.failure = Unavailable("Ray Serve does not answer")
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    calls = len(acting.green.requests)
    async with watched(acting) as seen:
        for _ in range(12):
            acting.advance(5)
            assert failed(await acting.send(12)) == []
        assert (acting.weight, acting.kinds("done", "stop_lifted")) == (50, [])
        shown = await acting.acting()
        assert (shown.state, shown.cause, shown.stopped) == ("paused", "alarm", ["green"])
        assert shown.waits_for[0].startswith("the control plane: ")
        acting.control.delivery, acting.control.failure = Delivery.SETTLED, None
        acting.advance(5)
        await acting.until(lambda: bool(acting.kinds("stop_lifted")))
        await acting.let_routers_report()
        assert failed(await acting.send(30)) == []
    assert seen == {(0, 0, 0)}, "the stop was lifted after the plan had come to every router"
    assert acting.weight == 0
    assert len(acting.green.requests) == calls
    assert acting.control.replaced == 1


async def test_a_stop_is_not_lifted_before_every_router_has_the_plan(acting: ActingRig) -> None:
    acting.green.answer = failing
    acting.deploy(green=50)
    acting.control.delivers_at_once = False
    await acting.drive(lambda: acting.weight == 0)
    await acting.until(lambda: acting.shares() == [0, 0, 0])
    async with watched(acting) as seen:
        for _ in range(6):
            acting.advance(10)
            assert failed(await acting.send(12)) == []
        assert acting.kinds("stop_lifted") == []
        acting.control.delivery = Delivery.UNSETTLED  # a router is being started
        acting.advance(10)
        await acting.let_routers_report()
        assert acting.kinds("stop_lifted") == []
        acting.control.deliver()
        await acting.until(lambda: bool(acting.kinds("stop_lifted")))
        await acting.let_routers_report()
    assert seen == {(0, 0, 0)}


async def test_a_ramp_waits_for_a_busy_control_plane(acting: ActingRig) -> None:
    acting.deploy(delivery=Delivery.DELIVERING)
    acting.advance(60)
    await acting.let_routers_report()
    assert acting.weight == 0
    acting.control.delivery = Delivery.SETTLED
    acting.advance(60)
    await acting.until(lambda: acting.shares() == [10, 10, 10])
    assert acting.control.replaced == 1
