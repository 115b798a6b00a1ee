"""Numbers, times and effects as people read them. Times are Unix seconds, shown in UTC."""

import math
from datetime import UTC, datetime

from app.config.experiments import LATENCIES, TOKEN_COUNTS
from app.experiments.contract.report import Comparison, Effect, Scale, Verdict

MISSING = "-"


def count(number: float) -> str:
    """31,870"""
    return f"{number:,.0f}"


def rounded(number: float, digits: int = 2) -> float:
    """`number` rounded to `digits` significant digits: 11,224 is about 11,000."""
    return float(f"{number:.{digits}g}")


def percent(share: float, *, signed: bool = False) -> str:
    """8.0 %: one decimal; none from 100 percent on, two significant digits below one."""
    value = share * 100
    decimals = 1
    if abs(value) >= 99.95:
        decimals = 0
    elif 0 < abs(value) < 0.995:
        decimals = min(1 - math.floor(math.log10(abs(value))), 6)
    return f"{value:{'+' if signed else ''},.{decimals}f} %"


def significant(value: float, *, signed: bool = False) -> str:
    """Three significant digits, without an exponent, and at most nine decimals: 0.00123, 41.2, 12,345."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = min(max(0, 2 - math.floor(math.log10(abs(value)))), 9)
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def seconds(value: float, *, signed: bool = False) -> str:
    """312 ms, 1.42 s"""
    if abs(value) < 1:
        return f"{significant(value * 1000, signed=signed)} ms"
    return f"{significant(value, signed=signed)} s"


def duration(value: float) -> str:
    """A time span in its largest unit: 45 s, 12 min, 3.5 h, 2.1 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if value >= size:
            return f"{value / size:.2g} {unit}" if value < 100 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} s"


def moment(at: float, now: float | None = None, *, short: bool = False) -> str:
    """12 November 14:05 (`short`: 12 Nov 14:05), with the year if it is not that of `now`."""
    then = datetime.fromtimestamp(at, UTC)
    day = f"{then.day} {then:%b}" if short else f"{then.day} {then:%B}"
    if now is None or datetime.fromtimestamp(now, UTC).year != then.year:
        day += f" {then.year}"
    return f"{day} {then:%H:%M}"


def metric_value(comparison: Comparison, value: float | None, *, signed: bool = False) -> str:
    """A value, or a difference, in the metric's own unit."""
    if value is None:
        return MISSING
    metric = comparison.metric.partition(".")[0]
    if comparison.statistic in ("proportion", "response_rate"):
        return percent(value, signed=signed)
    return in_unit(metric, value, signed=signed)


def in_unit(metric: str, value: float | None, *, signed: bool = False) -> str:
    """A number of a metric that is not a share, with its unit."""
    if value is None:
        return MISSING
    if metric in LATENCIES:
        return seconds(value, signed=signed)
    number = significant(value, signed=signed)
    if metric == "tokens_per_second":
        return f"{number}/s"
    return f"{number} tokens" if metric in TOKEN_COUNTS else number


def effect_value(comparison: Comparison, value: float | None, scale: Scale | None = None) -> str:
    """An effect: a lift in percent, or a difference in the metric's own unit."""
    if value is None:
        return MISSING
    if (scale or comparison.scale) == "relative":
        return percent(value, signed=True)
    return metric_value(comparison, value, signed=True)


def size(scale: Scale, value: float | None, *, signed: bool = False) -> str:
    """An effect without its metric's unit: a lift in percent, or a number."""
    if value is None:
        return MISSING
    return percent(value, signed=signed) if scale == "relative" else significant(value, signed=signed)


def span(scale: Scale, effect: Effect) -> str:
    """The bounds of such an effect."""
    if effect.lower is None or effect.upper is None:
        return MISSING
    return f"{size(scale, effect.lower, signed=True)} to {size(scale, effect.upper, signed=True)}"


def interval(comparison: Comparison, effect: Effect) -> str:
    """-13.4 % to -1.7 %"""
    if effect.lower is None or effect.upper is None:
        return MISSING
    return f"{effect_value(comparison, effect.lower)} to {effect_value(comparison, effect.upper)}"


def verdict(verdict: Verdict, *, non_inferior: bool = False, since: str = "") -> str:
    """A verdict in a table, with non-inferiority where that says more. `since`: the time since which it holds."""
    text = verdict.replace("_", " ")
    text = f"{text} since {since}" if since else text
    if non_inferior and verdict == "worse":
        return f"{text}, but by less than the minimal effect"
    return f"{text}, non-inferior" if non_inferior and verdict == "undecided" else text


DECISIONS = {
    "ship": "ship",
    "do_not_ship": "do not ship",
    "keep_going": "keep going",
    "invalid": "invalid: no verdict can be trusted",
}
DECIDED = ("running", "paused")
"""The states in which there is something to decide."""
