"""An alarm while the ledger's directory is full, or a router's clock is wrong: the stop still acts."""

from tests.router.acting.conftest import ActingRig, after, failed, failing, received
from tests.support.experiments.failing_store import Disk


async def test_a_stop_acts_while_the_directory_cannot_be_written(acting: ActingRig) -> None:
    disk = Disk()
    acting.controller.open_store = lambda url, base: disk
    acting.controller.replaced()
    acting.deploy(green=50)
    await acting.send(30)
    await acting.report(30)
    disk.is_read_only = True
    acting.green.answer = failing
    acting.control.delivers_at_once = False
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    acting.advance(61)
    await acting.until(lambda: acting.weight == 0)
    acting.control.deliver()
    await acting.let_routers_report()
    assert acting.shares() == [0, 0, 0]
    assert failed(await acting.send(60)) == []
    report = await acting.report(len(acting.outcomes))
    (failing_directory,) = [
        warning for warning in report.service if warning.startswith("The ledger's directory has failed for ")
    ]
    assert "No space left on device" in failing_directory
    shown = await acting.acting()
    assert (shown.state, shown.cause) == ("paused", "alarm")
    disk.is_read_only = False
    acting.advance(61)
    acting.controller.replaced(killed=True)
    await acting.send(3)
    report = await acting.report(len(acting.outcomes))
    assert [warning for warning in report.service if "directory" in warning] == []
    assert sum(report.rows_lost.values()) == 0
    assert acting.shares() == [0, 0, 0]
    assert (await acting.acting()).cause == "alarm", "the journal has it now"


async def test_a_router_whose_clock_is_off_changes_nothing_but_a_warning(acting: ActingRig) -> None:
    acting.skewed_s[1] = 5.0
    acting.blue.answer, acting.green.answer = after(0.03), after(0.003)
    acting.deploy(min_duration_s=1)
    await acting.drive(lambda: acting.shares() == [50, 50, 50], seconds=150)
    report = await acting.report(len(acting.outcomes))
    assert received(report) == len(acting.outcomes)
    (warning,) = [sentence for sentence in report.service if sentence.startswith("The clock of router ")]
    assert " s ahead of the controller's" in warning
    acting.green.answer = failing
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    assert (await acting.acting()).text.startswith("green exceeds the guardrail error")
    assert failed(await acting.send(60)) == []


async def test_a_stop_acts_though_so_much_was_lost_that_no_verdict_counts(acting: ActingRig) -> None:
    acting.config["ledger"] = {"url": "ledger", "buffer_bytes": 64 * 1024}
    acting.deploy(green=50)
    acting.controller.absent = True
    await acting.drive(lambda: min(acting.rows_lost()) > len(acting.outcomes) / 10, requests=300)
    acting.controller.absent = False
    acting.green.answer = failing
    await acting.drive(lambda: acting.shares() == [0, 0, 0])
    await acting.until(lambda: bool(acting.kinds("stop_lifted")))
    shown, report = await acting.acting(), await acting.report()
    assert (shown.state, shown.cause) == ("paused", "alarm")
    assert min(report.rows_lost.values()) > 0
    assert {alarm.kind for alarm in report.alarms} >= {"guardrail", "rows_lost"}
    assert (report.decision, report.primary[0].verdict) == ("do_not_ship", "invalid")
