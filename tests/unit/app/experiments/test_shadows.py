"""The words of a shadow's report.

The sums of pairs: which pairs count, once, in any order.

The deployments whose pairs count, and the time since when.
"""

import math
from typing import Any

import numpy as np
import pytest

from app.config.schema import Config, parse
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.report import Effect
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.shadows import (
    BEGUN,
    ENDED,
    MIRROR_VALUE,
    MirrorPeriod,
    PairedEvent,
    PairedValue,
    ShadowEvidence,
    ShadowJudge,
    ShadowOf,
    ShadowReport,
    document,
    headline,
    periods_of,
    shadow_series,
)
from app.experiments.storage.columns import PairColumns, from_batch
from app.exposures.wire import Failure, FinishCode, Plan, Skip
from tests.support.experiments.exposure_columns import Recorder
from tests.support.experiments.exposures import NAMES, batch, pair

SINCE = 1_794_492_300.0


def value(metric: str, kind: Any, estimate: float, *bounds: float, side: Any = None) -> PairedValue:
    lower, upper = bounds or (None, None)
    effect = Effect(estimate=estimate, lower=lower, upper=upper)
    return PairedValue(metric=metric, kind=kind, pairs=412, units=90, value=effect, side=side)


def report(**fields: Any) -> ShadowReport:
    beside_blue = ShadowOf(
        primary="blue",
        compared=412,
        failed={"timeout": 2, "broken": 1},
        values=[
            value("ttft", "difference", 0.012, 0.008, 0.017, side="higher"),
            value("tokens_per_second", "difference", -3.25, -6.0, -0.5, side="lower"),
            value("length", "ratio", 0.04, -0.01, 0.09, side="undecided"),
            value("equal_words", "share", 0.61, 0.55, 0.67),
        ],
        events=[
            PairedEvent(
                event="truncated", pairs=412, both=3, shadow_only=9, primary_only=1, log_e_value=2.5, side="undecided"
            )
        ],
    )
    base = ShadowReport(
        endpoint="chat",
        shadow="green",
        percent=5.0,
        since=SINCE,
        at=SINCE + 3600,
        alpha=0.05,
        copies=415,
        tokens=123_456,
        skipped={"budget": 14},
        primaries=[beside_blue],
        headline="",
    )
    return ShadowReport(**{name: fields.get(name, getattr(base, name)) for name in base.__struct_fields__})


def test_the_headline_of_a_shadow() -> None:
    assert headline(report()) == (
        "green as the shadow of chat: of 412 copies 61.0 % gave the same words; first token 12.0 ms later "
        "[8.00 ms, 17.0 ms]; 3 failed; 14 skipped: budget"
    )
    earlier = ShadowOf(
        primary="blue", compared=2, failed={}, events=[], values=[value("ttft", "difference", -0.02, -0.03, 0.01)]
    )
    assert headline(report(primaries=[earlier], skipped={})) == (
        "green as the shadow of chat: of 2 copies none could be compared by words; first token 20.0 ms earlier "
        "[-10.0 ms, 30.0 ms]"
    )
    vectors = ShadowOf(primary="mini", compared=5, failed={}, events=[], values=[value("cosine", "mean", 0.98765)])
    assert headline(report(primaries=[vectors, vectors], skipped={"carried": 1, "unknown": 2})) == (
        "green as the shadow of chat: of 5 copies beside mini the mean cosine is 0.9877; 3 skipped: began under other "
        "weights, unknown"
    )


def test_the_document_of_a_shadow() -> None:
    shown = text.text(document(report(headline="The sentence", warnings=["A clock is off"])))
    for part in (
        "The sentence",
        "5 % of the units, since 12 November 14:05; as of 12 November 15:05 UTC.",
        "415 copies cost 123,456 tokens.",
        "A clock is off",
        "Beside blue",
        "412 compared; failed: 2 timeout, 1 broken.",
        "+12.0 ms",
        "+8.00 ms to +17.0 ms",
        "-3.25/s",
        "+4.0 %",
        "55.0 % to 67.0 %",
        "cut off by the length",
        "Not copied",
    ):
        assert part in shown, part
    assert "| budget | 14 |" in markdown.markdown(document(report()))


def test_the_series_of_a_shadow() -> None:
    samples = list(shadow_series(report()))
    assert {sample.metric for sample in samples} == {MIRROR_VALUE}
    first = samples[0]
    assert first.labels == {
        "endpoint": "chat",
        "deployment": "green",
        "primary": "blue",
        "metric": "ttft",
        "bound": "estimate",
    }
    assert (first.value, len(samples)) == (0.012, 12)


def evidence(*parts: PairColumns) -> ShadowEvidence:
    shadows = ShadowEvidence()
    for part in parts:
        shadows.add(part)
    return shadows


def value_evidence(shadows: ShadowEvidence, metric: str) -> PairedValue:
    return next(value for value in shadows.report("blue").values if value.metric == metric)


def event(shadows: ShadowEvidence, name: str) -> PairedEvent:
    return next(event for event in shadows.report("blue").events if event.event == name)


def many(count: int = 200, units: int = 50, seed: int = 1) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [
        {
            "unit": number % units,
            "ttft_s": 0.05 + 0.02 * random.normal(),
            "length_ratio": math.exp(-0.2 + 0.1 * random.normal()),
            "equal_words": int(random.random() < 0.6),
        }
        for number in range(count)
    ]


def test_means_have_intervals_and_sides() -> None:
    shadows = evidence(Recorder().pairs(*many()))
    first = value_evidence(shadows, "ttft")
    assert first.value.lower is not None
    assert first.value.upper is not None
    assert 0.03 < first.value.lower < 0.05 < first.value.upper < 0.07
    assert (first.kind, first.side, first.pairs, first.units) == ("difference", "higher", 200, 50)
    length = value_evidence(shadows, "length")
    assert length.value.estimate == pytest.approx(math.exp(-0.2) - 1, abs=0.02)
    assert length.side == "lower"
    same = value_evidence(shadows, "equal_words")
    assert same.value.lower is not None
    assert 0.4 < same.value.lower < 0.6
    assert same.side is None


def test_the_order_and_the_split_into_batches_change_nothing() -> None:
    fields = many(units=7)
    whole = evidence(Recorder().pairs(*fields)).report("blue")
    parts = evidence(*(Recorder().pairs(*fields[at : at + 13]) for at in reversed(range(0, 200, 13)))).report("blue")
    for one, other in zip(whole.values, parts.values, strict=True):
        assert one.value.estimate == pytest.approx(other.value.estimate, rel=1e-9)
        assert (one.metric, one.pairs, one.units) == (other.metric, other.pairs, other.units)


def test_failures_count_and_are_compared_with_nothing() -> None:
    failed = [{"error": Failure.TIMEOUT, "tokens": None, "equal": None, "ttft_s": None}] * 2
    shadows = evidence(Recorder().pairs(*failed, {"error": 77, "tokens": 5}, {"tokens": 50}))
    report = shadows.report("blue")
    assert (report.failed, report.compared, shadows.copies, shadows.tokens) == ({"timeout": 2, "other": 1}, 1, 4, 55)
    assert {value.pairs for value in report.values} == {1}


def test_a_shadow_that_fails_on_its_slowest_copies_is_not_said_to_be_earlier() -> None:
    """Both are alike: what the slowest 5 % would have taken is missing."""
    random = np.random.default_rng(1)
    shadow, primary = np.exp(random.normal(-1.2, 0.5, (2, 1500)))
    fails = shadow > np.quantile(shadow, 0.95)
    failed: dict[str, Any] = {"error": Failure.TIMEOUT, "tokens": None, "equal": None, "ttft_s": None}
    fields = [
        {"unit": number % 250} | (failed if fails[number] else {"ttft_s": float(shadow[number] - primary[number])})
        for number in range(1500)
    ]
    shadows = evidence(Recorder().pairs(*fields))
    first = value_evidence(shadows, "ttft")
    assert first.value.upper is not None
    assert first.value.upper < 0
    assert first.side == "undecided"
    assert ", which the failed ones could change; 75 failed" in headline(report(primaries=[shadows.report("blue")]))


def test_values_that_are_missing_are_no_values() -> None:
    shadows = evidence(Recorder().pairs({"ttft_s": None, "length_ratio": 0.0}, {"cosine": 0.5}))
    assert value_evidence(shadows, "ttft").pairs == 1
    assert value_evidence(shadows, "length").pairs == 1
    assert value_evidence(shadows, "cosine").value.estimate == pytest.approx(0.5)


def test_events_count_by_pairs_and_their_evidence_by_units() -> None:
    short: dict[str, Any] = {"finish": FinishCode.LENGTH, "primary_finish": FinishCode.STOP}
    rows = [{"unit": 1, **short}] * 5 + [{"unit": unit, **short} for unit in range(2, 16)]
    rows += [{"unit": 99, "finish": FinishCode.LENGTH, "primary_finish": FinishCode.LENGTH}, {"unit": 98}]
    shadows = event(evidence(Recorder().pairs(*rows)), "truncated")
    assert (shadows.pairs, shadows.shadow_only, shadows.primary_only, shadows.both) == (21, 19, 0, 1)
    assert shadows.side == "higher"
    once = event(evidence(Recorder().pairs(*[{"unit": 1, **short}] * 30)), "truncated")
    assert (once.shadow_only, once.side) == (30, "undecided")
    again = event(evidence(*(Recorder().pairs({"unit": 1, **short}) for _ in range(30))), "truncated")
    assert again.log_e_value == once.log_e_value


def test_an_events_side_is_withdrawn_where_its_evidence_is_gone() -> None:
    """Evidence for `higher` is none for `lower`, whatever it once was."""
    on_shadow = {"finish": FinishCode.LENGTH, "primary_finish": FinishCode.STOP}
    on_primary = {"finish": FinishCode.STOP, "primary_finish": FinishCode.LENGTH}
    rows = [{"unit": unit, **on_shadow} for unit in range(14)]
    assert event(evidence(Recorder().pairs(*rows)), "truncated").side == "higher"
    rows += [{"unit": unit, **on_primary} for unit in range(14, 30)]
    shadows = event(evidence(Recorder().pairs(*rows)), "truncated")
    assert (shadows.shadow_only, shadows.primary_only, shadows.side) == (14, 16, "undecided")


def test_an_event_that_the_primary_has_more_often_is_lower_on_the_shadow() -> None:
    rows = [{"unit": unit, "valid": 1, "primary_valid": 0} for unit in range(20)]
    found = event(evidence(Recorder().pairs(*rows, {"valid": 1})), "invalid_output")
    assert (found.pairs, found.primary_only, found.shadow_only, found.side) == (20, 20, 0, "lower")
    none = evidence(Recorder().pairs({"visible": 1, "primary_visible": None, "finish": 0}))
    assert none.report("blue").events == []


def test_memory_is_bounded_by_units() -> None:
    shadows = ShadowEvidence(max_units=100)
    shadows.add(Recorder().pairs(*({"unit": 2**40 * unit + 17} for unit in range(1000))))
    assert 0 < value_evidence(shadows, "ttft").units <= 100
    assert shadows.compared == 1000


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
    begun = JournalEntry(1000.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 990.0})
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
    older = JournalEntry(500.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 500.0})
    assert judge.adopt(config(), [older], 1070.0) == []
    assert judge.since == 500.0


def test_unrelated_journal_entries_are_skipped() -> None:
    entries = [
        JournalEntry(1.0, BEGUN, None, {}),
        JournalEntry(2.0, ENDED, None, {}),
        JournalEntry(3.0, "plan", None, {}),
    ]
    good = JournalEntry(4.0, BEGUN, None, {"endpoint": "chat", "shadow": "green", "since": 4.0})
    assert periods_of([*entries, good]) == {"chat": MirrorPeriod("green", 4.0)}


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
    assert [(primary.primary, primary.compared) for primary in report.primaries] == [("red", 2), ("blue", 1)]
    assert (report.copies, report.skipped, report.warnings) == (3, {"budget": 1, "other": 1}, ["something"])
    judge.forget()
    emptied = judge.report("chat", 2000.0)
    assert emptied is not None
    assert (emptied.copies, emptied.skipped, emptied.primaries) == (0, {}, [])
    assert emptied.headline == "green as the shadow of chat: no copy has been compared yet"


def pairs_of(recorder: Recorder, fields: dict[str, Any], *pairs: Any) -> PairColumns:
    return from_batch(batch(pairs=list(pairs), **fields), recorder.tables).pairs
