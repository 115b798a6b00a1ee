"""A good treatment ramps to all traffic by itself; other changes of the traffic pause the ramp."""

from tests.router.acting.conftest import ActingRig, after, failed, failing


async def test_a_good_treatment_gets_all_traffic_step_by_step(acting: ActingRig) -> None:
    acting.blue.answer, acting.green.answer = after(0.03), after(0.003)
    acting.deploy()
    await acting.drive(lambda: acting.weight == 10)
    await acting.drive(lambda: acting.weight == 50, seconds=120)
    begun = acting.controller.ahead_s
    await acting.drive(lambda: acting.controller.ahead_s - begun > 1200, seconds=300)
    shown = await acting.acting()
    assert (acting.weight, shown.step, shown.next_share) == (50, 1, 100)
    assert shown.waits_for == ["the decision to ship"]
    assert (await acting.report()).primary[0].verdict == "better", "it may not before min_duration_s, however good"
    await acting.drive(lambda: acting.shares() == [100, 100, 100], requests=12, seconds=600)
    assert failed(acting.outcomes) == []
    plans = await acting.history(4)
    assert [plan["weights"]["green"] for plan in plans] == [0, 10, 50, 100]
    assert [plan["reason"] for plan in plans[1:]] == ["step to 10 %", "step to 50 %", "step to 100 %"]
    assert {plan["by"] for plan in plans[1:]} == {"experiment first"}
    assert [plan["generation"] for plan in plans] == sorted({plan["generation"] for plan in plans})


async def test_after_the_freeze_the_ramp_begins_again_and_a_manager_may_resume_before(acting: ActingRig) -> None:
    acting.green.answer = failing
    acting.deploy(green=10)
    for number, begins_again in enumerate(("resume", "thaw"), 1):
        await acting.drive(lambda: acting.weight == 0)
        await acting.until(lambda number=number: len(acting.kinds("stop_lifted")) == number)  # type: ignore[misc]
        shown = await acting.acting()
        assert (shown.state, shown.cause, shown.until is not None) == ("paused", "alarm", True)
        acting.advance(3000)
        assert failed(await acting.send(60)) == []
        await acting.let_routers_report()
        assert acting.shares() == [0, 0, 0], "it is frozen"
        if begins_again == "resume":
            assert (await acting.decide("resume", "a new build")).status_code == 200
        else:
            acting.advance(700)
        await acting.until(lambda: acting.shares() == [10, 10, 10])
    reasons = [plan["reason"] for plan in await acting.history(6)]
    assert [reason for reason in reasons if reason] == [
        *2 * ("green exceeds the guardrail error, at most 1.5 times control's rate", "step to 10 %")
    ]
    assert acting.kinds("decision") == [
        "decision: resume, by anonymous: a new build. That clears an alarm: green exceeds the guardrail error, at most "
        "1.5 times control's rate"
    ]


async def test_a_managers_change_of_the_traffic_pauses_the_ramp(acting: ActingRig) -> None:
    acting.deploy()
    await acting.drive(lambda: acting.shares() == [10, 10, 10])
    assert (await acting.put_traffic(30)).status_code == 200
    await acting.until(lambda: bool(acting.kinds("paused")))
    shown = await acting.acting()
    assert (shown.state, shown.cause) == ("paused", "superseded")
    await acting.drive(lambda: acting.controller.ahead_s > 3000, seconds=800)
    assert acting.shares() == [30, 30, 30], "it stays where they put it"
    assert (await acting.decide("resume", "go on from there")).status_code == 200
    await acting.drive(lambda: acting.shares() == [50, 50, 50], seconds=300)


async def test_a_file_with_other_traffic_pauses_the_ramp_and_one_with_the_same_does_not(acting: ActingRig) -> None:
    acting.deploy()
    await acting.drive(lambda: acting.shares() == [10, 10, 10])
    await acting.history(2)  # the ramp's own plan, before the file's of the same traffic takes its place
    acting.deploy(green=10)
    await acting.let_routers_report()
    assert ((await acting.acting()).state, acting.kinds("paused")) == ("running", [])
    acting.deploy(green=20)
    await acting.until(lambda: bool(acting.kinds("paused")))
    shown = await acting.acting()
    assert (shown.state, shown.cause) == ("paused", "superseded")
    assert shown.text == "green 20 %: changed by a deployment of the configuration, not by this experiment"
    assert (await acting.history(4))[-1]["by"] is None
