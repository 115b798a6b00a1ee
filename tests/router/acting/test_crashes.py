"""The controller dies before and after each effect, or two controllers run: the outcome is the same."""

import pytest

from tests.router.acting.conftest import ActingRig, after, failed, failing, watched
from tests.support.processes.killer import Killer


@pytest.fixture
def killer() -> Killer:
    return Killer()


@pytest.fixture
def mortal(acting: ActingRig, killer: Killer) -> ActingRig:
    """A rig whose controllers die once at every effect."""
    acting.controller.open_store, acting.control.killer = killer.open_store, killer
    acting.controller.replaced()
    return acting


async def test_a_ramp_under_a_controller_that_dies_at_every_effect(mortal: ActingRig, killer: Killer) -> None:
    mortal.blue.answer, mortal.green.answer = after(0.03), after(0.003)
    mortal.deploy(min_duration_s=1)
    await mortal.drive(lambda: mortal.shares() == [100, 100, 100], seconds=150)
    await mortal.drive(lambda: killer.has_killed("after done: green 100 %"), seconds=10)
    begun = "ramp: The ramp begins where the traffic is: green 0 %, "
    for step, before in ((10, 0), (50, 10), (100, 50)):
        intended = f"{begun if not before else ''}intent: green {before} %; step to {step} %"
        planned = f"plan: {{'blue': {100 - step}, 'green': {step}}}"
        done = f"done: green {step} %: step to {step} %"
        for effect in (intended, planned, done):
            assert {f"before {effect}", f"after {effect}"} <= set(killer.deaths)
    assert failed(mortal.outcomes) == []
    assert [plan["weights"]["green"] for plan in await mortal.history(4)] == [0, 10, 50, 100]
    assert mortal.control.replaced == 3, "no step twice"
    report = await mortal.report(len(mortal.outcomes))
    assert sum(report.requests.values()) == len(mortal.outcomes), "each is counted once"


async def test_a_rollback_under_a_controller_that_dies_at_every_effect(mortal: ActingRig, killer: Killer) -> None:
    mortal.green.answer = failing
    mortal.deploy(green=50)
    mortal.control.delivers_at_once = False
    await mortal.drive(lambda: killer.has_killed("after done"), requests=12, seconds=5)
    await mortal.until(lambda: mortal.shares() == [0, 0, 0])  # a controller that died is not called for a second
    mortal.control.deliver()
    await mortal.drive(lambda: killer.has_killed("after stop_lifted"), requests=12, seconds=5)
    effects = ("ramp", "stop", "plan", "done", "stop_lifted")
    assert all(killer.has_killed(f"{when} {effect}") for effect in effects for when in ("before", "after"))
    await mortal.let_routers_report()
    assert mortal.shares() == [0, 0, 0]
    assert failed(await mortal.send(60)) == []
    assert (mortal.weight, mortal.control.replaced) == (0, 1)
    shown = await mortal.acting()
    assert (shown.state, shown.cause, shown.stopped) == ("paused", "alarm", [])


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["by chance", "partitioned"])
async def test_two_controllers_at_once_take_each_step_once(acting: ActingRig, is_partitioned: bool) -> None:
    acting.blue.answer, acting.green.answer = after(0.03), after(0.003)
    acting.deploy(min_duration_s=1)
    other, acting.is_partitioned = acting.another_controller(), is_partitioned
    await acting.drive(lambda: acting.shares() == [100, 100, 100], requests=90, seconds=150)
    assert failed(acting.outcomes) == []
    assert [plan["weights"]["green"] for plan in await acting.history(4)] == [0, 10, 50, 100]
    assert acting.control.replaced == 3
    for controller in (acting.controller, other):
        assert [entry for entry in controller.journal if entry.kind in ("paused", "stop")] == []


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["by chance", "partitioned"])
async def test_two_controllers_at_once_roll_back_once(acting: ActingRig, is_partitioned: bool) -> None:
    acting.green.answer = failing
    acting.deploy(green=50)
    other, acting.is_partitioned = acting.another_controller(), is_partitioned
    await acting.drive(lambda: acting.shares() == [0, 0, 0], requests=12)
    async with watched(acting) as seen:
        for _ in range(10):
            acting.advance(10)
            assert failed(await acting.send(12)) == []
    assert seen == {(0, 0, 0)}
    assert (acting.weight, acting.control.replaced) == (0, 1)
    for controller in (acting.controller, other):
        assert {entry.kind for entry in controller.journal} & {"paused", "stop"}, (
            "both know from the journal that it is over"
        )
