"""The words of a shadow's report."""

from typing import Any

from app.experiments.contract.report import Effect
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.shadows import (
    MIRROR_VALUE,
    PairedEvent,
    PairedValue,
    ShadowOf,
    ShadowReport,
    document,
    headline,
    shadow_series,
)

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
    assert {it.metric for it in samples} == {MIRROR_VALUE}
    first = samples[0]
    assert first.labels == {
        "endpoint": "chat",
        "deployment": "green",
        "primary": "blue",
        "metric": "ttft",
        "bound": "estimate",
    }
    assert (first.value, len(samples)) == (0.012, 12)
