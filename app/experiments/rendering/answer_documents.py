"""The other answers as documents: the list of experiments, a metric's history, the planner, A/A runs."""

from collections.abc import Iterator, Sequence

from app.experiments.false_verdict_runs import Runs
from app.experiments.rendering import words
from app.experiments.rendering.acting_document import standing
from app.experiments.rendering.document import Block, Heading, Paragraph, Table
from app.experiments.report import Comparison, HistoryPoint, Planned
from app.experiments.summary import Summary


def list_document(summaries: Sequence[Summary]) -> Iterator[Block]:
    """One line for each experiment, then what happens next."""
    if not summaries:
        yield Paragraph(["No experiments are declared."])
        return
    rows = [
        [
            it.experiment,
            it.endpoint,
            _state(it),
            " / ".join(f"{it.weights[arm]} %" for arm in (it.control, *it.treatments) if arm in it.weights)
            or words.MISSING,
            " / ".join(words.count(it.units[arm]) for arm in (it.control, *it.treatments) if arm in it.units)
            or words.MISSING,
            words.DECISIONS[it.decision] if it.decision is not None else words.MISSING,
        ]
        for it in summaries
    ]
    yield Table(["experiment", "endpoint", "state", "split", "units", "decision"], rows)
    yield Paragraph([line for it in summaries for line in (it.headline, it.next) if line])


def _state(summary: Summary) -> str:
    if summary.mode == "aa":
        return f"{summary.state} A/A test"
    return summary.state if summary.acting is None else standing(summary.acting)


def history_document(name: str, comparison: Comparison, points: Sequence[HistoryPoint]) -> Iterator[Block]:
    """The interval over time."""
    yield Heading(f"{name}: {comparison.metric} of {comparison.treatment}", level=1)
    if not points:
        yield Paragraph(["No look yet: there is one a minute, from 30 units in each arm on."])
        return
    rows = [
        [
            words.moment(point.at, points[-1].at, short=True),
            words.effect_value(comparison, point.effect.estimate),
            words.interval(comparison, point.effect),
            words.MISSING if point.log_e_value is None else f"{point.log_e_value:.2f}",
            point.verdict,
        ]
        for point in points
    ]
    yield Table(["time", "change", "between", "ln e", "verdict"], rows, right=(1, 2, 3))


def plan_document(name: str, comparison: Comparison, planned: Planned) -> Iterator[Block]:
    """The number of units needed, and the time that takes."""
    yield Heading(f"{name}: {planned.metric}", level=1)
    is_relative = comparison.scale == "relative"
    effect = words.percent(planned.effect) if is_relative else words.metric_value(comparison, planned.effect)
    more = max(planned.units - planned.units_so_far, 0)
    lines = [
        f"To find an effect of {effect} with {100 * planned.power:.4g} % power: "
        f"{words.count(planned.units)} units in both arms together, "
        f"{words.percent(planned.treatment_share)} of them on the treatment.",
        f"So far {words.count(planned.units_so_far)} can be compared; {words.count(more)} more.",
    ]
    if more and planned.units_per_day and planned.days is not None:
        lines.append(
            f"At {words.count(planned.units_per_day)} new units a day: {words.duration(planned.days * 86400)} from now."
        )
    if planned.design_effect is not None and planned.design_effect > 2:
        lines.append(
            f"Units, not requests, carry the information (design effect {planned.design_effect:.1f}): more requests of "
            "the same units do not help."
        )
    yield Paragraph(lines)


def runs_document(name: str, runs: Runs) -> Iterator[Block]:
    """The share of false verdicts."""
    yield Heading(f"{name}: {words.count(runs.runs)} A/A runs", level=1)
    if runs.state == "running":
        yield Paragraph(["Under way."])
    elif runs.state == "failed":
        yield Paragraph(["They failed: see the controller's log."])
    else:
        yield Paragraph(["The recorded units with random labels: there is no difference, so every verdict is false."])
        rows = [
            [
                it.metric,
                words.count(it.units),
                words.count(it.looks),
                words.percent(it.sequences),
                words.percent(it.peeked),
            ]
            for it in runs.results
        ]
        yield Table(["metric", "units", "looks", "false verdicts", "peeked t-tests"], rows, right=(1, 2, 3, 4))
