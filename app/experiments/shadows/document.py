"""The report of a shadow as a document for people: one sentence, then its basis."""

from collections.abc import Iterator, Mapping

from app.experiments.rendering import words
from app.experiments.rendering.document import Block, Bullets, Heading, Paragraph, Table
from app.experiments.report import Effect
from app.experiments.shadows.report import PairedEvent, PairedValue, ShadowOf, ShadowReport

_TITLES: Mapping[str, str] = {
    "ttft": "first token",
    "duration": "whole answer",
    "tokens_per_second": "tokens per second",
    "length": "length",
    "equal": "same characters",
    "equal_words": "same words",
    "same_finish": "same finish reason",
    "same_tools": "same tool calls",
    "cosine": "cosine",
    "invalid_output": "form not kept",
    "truncated": "cut off by the length",
    "empty": "nothing to see",
}
_SKIPPED: Mapping[str, str] = {
    "budget": "budget",
    "queue_full": "queue full",
    "request_too_large": "request too large",
    "answer_too_large": "answer too large",
    "several_requests": "several engine calls",
    "bound_to_model": "made for the primary's tokenizer",
    "primary_failed": "primary failed",
    "carried": "began under other weights",
    "stopped": "shadow stopped",
    "breaker_open": "shadow fails",
    "shutdown": "router ended",
}
_NO_PAIRS = "no copy has been compared yet"


def headline(report: ShadowReport) -> str:
    """The sentence."""
    first = next((it for it in report.primaries if it.compared), None)
    parts = [_NO_PAIRS] if first is None else [_of_copies(report, first)]
    if first is not None and (value := _value(first, "ttft")) is not None:
        parts.append(f"first token {_late(value.value)}")
    failed: dict[str, int] = {}
    for primary in report.primaries:
        for why, count in primary.failed.items():
            failed[why] = failed.get(why, 0) + count
    if failed:
        parts.append(f"{words.count(sum(failed.values()))} failed")
    if report.skipped:
        why = ", ".join(_SKIPPED.get(it, it) for it in report.skipped)
        parts.append(f"{words.count(sum(report.skipped.values()))} skipped: {why}")
    return f"{report.shadow} as the shadow of {report.endpoint}: {'; '.join(parts)}"


def document(report: ShadowReport) -> Iterator[Block]:
    """The whole report as blocks."""
    yield Heading(report.headline, level=1)
    yield Paragraph(
        [
            f"{report.percent:g} % of the units, since {words.moment(report.since, report.at)}; as of "
            f"{words.moment(report.at, report.at)} UTC.",
            f"{words.count(report.copies)} copies cost {words.count(report.tokens)} tokens.",
        ]
    )
    if report.warnings:
        yield Heading("Warnings")
        yield Bullets(report.warnings)
    for primary in report.primaries:
        yield from _beside(primary)
    if report.skipped:
        yield Heading("Not copied")
        rows = [[_SKIPPED.get(why, why), words.count(count)] for why, count in report.skipped.items()]
        yield Table(["why", "requests"], rows, right=(1,))


def _of_copies(report: ShadowReport, first: ShadowOf) -> str:
    text = f"of {words.count(first.compared)} copies"
    if len(report.primaries) > 1:
        text += f" beside {first.primary}"
    if (cosine := _value(first, "cosine")) is not None:
        return f"{text} the mean cosine is {cosine.value.estimate:.4f}"
    if (same := _value(first, "equal_words")) is None or same.value.estimate is None:
        return f"{text} none could be compared by words"
    return f"{text} {words.percent(same.value.estimate)} gave the same words"


def _late(value: Effect) -> str:
    """12 ms later [8, 17]"""
    assert value.estimate is not None
    text = f"{words.seconds(abs(value.estimate))} {'later' if value.estimate >= 0 else 'earlier'}"
    if value.lower is None or value.upper is None:
        return text
    lower, upper = sorted((value.lower, value.upper) if value.estimate >= 0 else (-value.lower, -value.upper))
    return f"{text} [{words.seconds(lower)}, {words.seconds(upper)}]"


def _beside(primary: ShadowOf) -> Iterator[Block]:
    yield Heading(f"Beside {primary.primary}")
    failed = ", ".join(f"{words.count(count)} {why.replace('_', ' ')}" for why, count in primary.failed.items())
    yield Paragraph([f"{words.count(primary.compared)} compared; failed: {failed or 'none'}."])
    if primary.values:
        rows = [
            [
                _TITLES.get(it.metric, it.metric),
                _shown(it, it.value.estimate),
                _between(it),
                it.side or words.MISSING,
                words.count(it.pairs),
                words.count(it.units),
            ]
            for it in primary.values
        ]
        yield Table(["shadow minus primary", "mean", "between", "side", "pairs", "units"], rows, right=(1, 2, 4, 5))
    if primary.events:
        counts = [
            [_TITLES.get(it.event, it.event), *_counts(it), f"{it.log_e_value:.2f}", it.side] for it in primary.events
        ]
        header = ["event", "shadow alone", "primary alone", "both", "pairs", "ln e", "shadow"]
        yield Table(header, counts, right=(1, 2, 3, 4, 5))


def _counts(event: PairedEvent) -> list[str]:
    return [words.count(it) for it in (event.shadow_only, event.primary_only, event.both, event.pairs)]


def _between(value: PairedValue) -> str:
    effect = value.value
    if effect.lower is None or effect.upper is None:
        return words.MISSING
    return f"{_shown(value, effect.lower)} to {_shown(value, effect.upper)}"


def _shown(value: PairedValue, number: float | None) -> str:
    if number is None:
        return words.MISSING
    if value.kind == "mean":
        return f"{number:.4f}"
    if value.kind in ("share", "ratio"):
        return words.percent(number, signed=value.kind == "ratio")
    return f"{words.significant(number, signed=True)}/s" if value.metric == "tokens_per_second" else _seconds(number)


def _seconds(number: float) -> str:
    return words.seconds(number, signed=True)


def _value(primary: ShadowOf, metric: str) -> PairedValue | None:
    return next((it for it in primary.values if it.metric == metric), None)
