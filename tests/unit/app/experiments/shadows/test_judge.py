"""The deployments whose pairs count, and the time since when."""

from typing import Any

from app.config.schema import Config, parse
from app.experiments.contract.journal import Entry
from app.experiments.shadows import BEGUN, ENDED, Period, ShadowJudge, periods_of
from app.experiments.storage.columns import PairColumns, from_batch
from app.exposures.wire import Plan, Skip
from tests.support.experiments.exposure_columns import Recorder
from tests.support.experiments.exposures import NAMES, batch, pair


def config(shadow: str | None = "green", percent: float = 5) -> Config:
    endpoint: dict[str, Any] = {"tasks": ["chat"], "traffic": {"blue": 100}}
    if shadow is not None:
        endpoint["mirror"] = {"deployment": shadow, "percent": percent}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green", "red")}
    return parse({"endpoints": {"chat": endpoint}, "deployments": deployments})


def test_a_shadow_begins_with_its_deployment_and_keeps_its_evidence_while_it_stays() -> None:
    judge = ShadowJudge(Recorder().tables)
    (begun,) = judge.adopt(config(), [], 1000.0)
    assert (begun.kind, begun.detail) == (BEGUN, {"endpoint": "chat", "shadow": "green", "since": 1000.0})
    assert judge.adopt(config(percent=50), [begun], 1100.0) == []
    (other,) = judge.adopt(config("red"), [begun], 1200.0)
    assert other.detail["since"] == 1200.0
    (ended,) = judge.adopt(config(None), [begun, other], 1300.0)
    assert (ended.kind, judge.report("chat", 1300.0), judge.endpoints()) == (ENDED, None, [])
    (again,) = judge.adopt(config("red"), [begun, other, ended], 1400.0)
    assert again.detail["since"] == 1400.0


def test_another_controller_reads_the_start_from_the_journal() -> None:
    begun = Entry(1000.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 990.0})
    judge = ShadowJudge(Recorder().tables)
    assert judge.adopt(config(), [begun], 5000.0) == []
    report = judge.report("chat", 5000.0)
    assert report is not None
    assert (report.since, judge.since) == (990.0, 990.0)


def test_the_start_is_corrected_once_the_journal_is_read() -> None:
    judge = ShadowJudge(Recorder().tables)
    judge.adopt(config(), None, 1000.0)
    (begun,) = judge.adopt(config(), [], 1060.0)
    assert begun.detail["since"] == 1000.0
    older = Entry(500.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 500.0})
    assert judge.adopt(config(), [older], 1070.0) == []
    assert judge.since == 500.0


def test_unrelated_journal_entries_are_skipped() -> None:
    entries = [Entry(1.0, BEGUN, None, {}), Entry(2.0, ENDED, None, {}), Entry(3.0, "plan", None, {})]
    good = Entry(4.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 4.0})
    assert periods_of([*entries, good]) == {"chat": Period("green", 4.0)}


def test_pairs_of_this_shadow_since_its_beginning_count_by_primary() -> None:
    recorder = Recorder()
    judge = ShadowJudge(recorder.tables)
    judge.adopt(config(), [], 1000.0)
    red = {"names": [*NAMES, "red"], "plans": [Plan("chat", "0-1", {}), Plan("other", "0-2", {})]}
    columns = pairs_of(
        recorder,
        red,
        pair(1),
        pair(2, primary=4),
        pair(3, primary=4),
        pair(4, skipped=Skip.BUDGET),
        pair(5, skipped=99),
        pair(6, shadow=4),
        pair(7, plan=1),
        pair(8, at=999.0),
    )
    judge.count(columns)
    judge.count(PairColumns.empty())
    report = judge.report("chat", 2000.0, ["something"])
    assert report is not None
    assert [(it.primary, it.compared) for it in report.primaries] == [("red", 2), ("blue", 1)]
    assert (report.copies, report.skipped, report.warnings) == (3, {"budget": 1, "other": 1}, ["something"])
    judge.forget()
    emptied = judge.report("chat", 2000.0)
    assert emptied is not None
    assert (emptied.copies, emptied.skipped, emptied.primaries) == (0, {}, [])
    assert emptied.headline == "green as the shadow of chat: no copy has been compared yet"


def pairs_of(recorder: Recorder, fields: dict[str, Any], *pairs: Any) -> PairColumns:
    return from_batch(batch(pairs=list(pairs), **fields), recorder.tables).pairs
