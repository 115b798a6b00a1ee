"""The report as a document for people: the verdict first, then its basis.

- The state of acting on an experiment and its latest actions, for people.
- The other answers as documents: the list of experiments, a metric's history, the planner, A/A runs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from app.experiments.contract.report import (
    HARMS,
    WORDS,
    ArmDistribution,
    AutomationStatus,
    Comparison,
    Distribution,
    GuardrailStatus,
    HistoryPoint,
    Planned,
    Report,
    SampleRatio,
    SubgroupEffect,
    Summary,
)
from app.experiments.false_verdict_runs import Runs
from app.experiments.rendering import words
from app.experiments.rendering.document import Block, Bullets, Heading, Paragraph, Table

Action = tuple[float, str]
"""The time of an action (Unix seconds), and its description."""


def standing(acting: AutomationStatus, now: float | None = None) -> str:
    """The state in a few words: running at 5 % (step 2), paused at 0 % until 13 Nov 14:02."""
    text = f"{acting.state} at {acting.share} %"
    if acting.state == "running" and acting.step is not None:
        text += f" (step {acting.step + 1})"
    if acting.state == "paused" and acting.until is not None:
        text += f" until {words.moment(acting.until, now, short=True)}"
    if acting.stopped:
        text += f", no traffic for {_listed(acting.stopped)}"
    return text


def acting_blocks(report: Report, acting: AutomationStatus, actions: Sequence[Action]) -> Iterator[Block]:
    """The state, what changes it, and the latest `actions`, the last one last."""
    yield Heading("What is done about it")
    yield Paragraph(
        [line for line in (_progress(report, acting), _stops(report, acting), *_ways_on(report, acting)) if line]
    )
    yield from _listed_actions(report, actions)


def _listed_actions(report: Report, actions: Sequence[Action]) -> Iterator[Block]:
    if actions:
        yield Bullets([f"{words.moment(at, report.at)}: {text}" for at, text in actions])


def _progress(report: Report, acting: AutomationStatus) -> str:
    text = f"{acting.state.capitalize()}"
    if acting.state == "paused" and acting.until is not None:
        text += f" until {words.moment(acting.until, report.at)} UTC"
    if acting.by is not None:
        text += f", by {acting.by}"
    has_ramp = acting.step is not None or acting.next_share is not None
    step = f"step {acting.step + 1}" if acting.step is not None else "before its first step"
    where = f"{'the ramp is at ' if acting.step is not None else 'the ramp is '}{step}, and " if has_ramp else ""
    has = "treatment has" if len(report.treatments) == 1 else "treatments have"
    return f"{text}: {where}the {has} {acting.share} % of the traffic."


def _stops(report: Report, acting: AutomationStatus) -> str:
    if not acting.stopped:
        return ""
    return (
        f"Routers give {_listed(acting.stopped)} nothing, and its traffic to {report.control}, until the plan says the "
        "same."
    )


def _ways_on(report: Report, acting: AutomationStatus) -> Iterator[str]:
    """The commands that change the state, if a person is to change it."""
    command = f"switchyard experiments decide {report.experiment}"
    if acting.state == "paused" and acting.cause != "file":
        if acting.cause in HARMS and acting.share > 0:
            yield f"To roll back: {command} rollback --reason TEXT"
        yield f"To go on: {command} resume --reason TEXT"
    elif acting.state == "running" and any("`advance`" in text for text in acting.waits_for):
        yield f"To take the step: {command} advance --reason TEXT"
    elif acting.state == "running" and any("`promote`" in text for text in acting.waits_for):
        yield f"To promote: {command} promote --treatment NAME --reason TEXT"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


_SAMPLE_RATIO_ALARM = math.log(1000)
_SHOWN = (0.05, 0.5, 0.95, 0.99)
"""The quantiles of a distribution that a table has room for."""


def document(report: Report, acting: AutomationStatus | None = None, actions: Sequence[Action] = ()) -> Iterator[Block]:
    """The whole report as blocks. `acting`: the state and what changes it, if known; `actions`: the latest."""
    yield Heading(report.headline, level=1)
    yield Paragraph([*report.details, *([report.next] if report.next else [])])
    if report.alarms:
        yield Heading("Alarms")
        yield Bullets([f"{words.moment(alarm.at, report.at)}: {alarm.text}" for alarm in report.alarms])
    if report.warnings:
        yield Heading("Warnings")
        yield Bullets(report.warnings)
    if report.service:
        yield Heading("About the service")
        yield Bullets(report.service)
    if acting is not None and (acting.state != "running" or not report.is_empty or [*_ways_on(report, acting)]):
        yield from acting_blocks(report, acting, actions)
    elif acting is None and actions:  # the configuration has stopped the run
        yield Heading("What was done about it")
        yield from _listed_actions(report, actions)
    yield Paragraph([_standing(report, acting)])
    if report.is_empty:
        return
    yield from _arms(report)
    for treatment in report.treatments:
        yield from _comparisons(report, treatment)
    yield from _subgroups(report)
    yield from _distributions(report)
    yield from _guardrails(report)
    yield from _sample_ratio(report)
    yield from _served(report)


def _state(declared: Report | Summary, acting: AutomationStatus | None) -> str:
    """That of what acts on the experiment, if anything does."""
    return acting.state if acting is not None else declared.state


def _standing(report: Report, acting: AutomationStatus | None) -> str:
    since = f"since {words.moment(report.started_at, report.at)}" if report.started_at is not None else "not started"
    kind = "A/A test" if report.mode == "aa" else "experiment"
    state = _state(report, acting)
    standing = f"{state.capitalize()} {kind}, {since}; as of {words.moment(report.at)} UTC."
    if state not in words.DECIDED:
        return standing
    decision = words.DECISIONS[report.decision]
    if len(set(report.decisions.values())) > 1 and report.mode == "ab":
        each = [f"{words.DECISIONS[its]} for {name}" for name, its in report.decisions.items()]
        decision = f"{decision} ({'; '.join(each)})"
    return f"Decision: {decision}. {standing}"


def _arms(report: Report) -> Iterator[Block]:
    """The arms' traffic: weights, units, requests, and exclusions."""
    columns: list[tuple[str, Mapping[str, object]]] = [
        ("weight", {arm: f"{weight} %" for arm, weight in report.weights.items()}),
        ("units", _counts(report.units)),
        ("requests", _counts(report.requests)),
        ("running", _counts(report.running)),
        ("in flight", {arm: f"{n:.1f}" for arm, n in report.in_flight.items() if n is not None}),
        ("replicas", {arm: f"{n:.3g}" for arm, n in report.replicas.items() if n is not None}),
        ("forced", _counts(report.forced)),
        ("carried", _counts(report.carried)),
        ("rows lost", _counts(report.rows_lost)),
    ]
    optional = ("running", "in flight", "replicas", "forced", "carried", "rows lost")
    shown = [(name, cells) for name, cells in columns if name not in optional or set(cells.values()) - {"0"}]
    arms = [(report.control, "control"), *((arm, "treatment") for arm in report.treatments)]
    rows = [[role, arm, *(str(cells.get(arm, words.MISSING)) for _, cells in shown)] for arm, role in arms]
    header = ["arm", "deployment", *(name for name, _ in shown)]
    yield Heading("Arms")
    yield Table(header, rows, right=range(2, 2 + len(shown)))
    if notes := [note for note in (_strata(report), _adjusted(report), _thinned(report)) if note]:
        yield Paragraph(notes)


def _counts(numbers: Mapping[str, int]) -> dict[str, str]:
    return {arm: words.count(number) for arm, number in numbers.items()}


def _strata(report: Report) -> str:
    return f"Requests are compared within {report.strata} strata." if report.strata > 1 else ""


def _adjusted(report: Report) -> str:
    ratios = {
        comparison.metric: comparison.variance_ratio
        for comparison in report.primary
        if comparison.variance_ratio is not None
    }
    each = ", ".join(f"{metric} {ratio:.2f}" for metric, ratio in ratios.items())
    return f"Adjusted for what was known of units before; variance by what it would be: {each}." if ratios else ""


def _thinned(report: Report) -> str:
    if report.thinned >= 1:
        return ""
    return (
        f"{words.percent(report.thinned)} of the units are kept for metrics. Guardrails keep up to two million units "
        "with an event, and the split up to eight million units: above that, half of them, drawn by hash."
    )


def _comparisons(report: Report, treatment: str) -> Iterator[Block]:
    mine = [comparison for comparison in (*report.primary, *report.secondary) if comparison.treatment == treatment]
    if not mine:
        return
    yield Heading(f"{treatment} against {report.control}")
    for role in ("primary", "secondary"):
        rows = [_metric_row(report, comparison, treatment) for comparison in mine if comparison.role == role]
        if rows:
            header = [role, "control", "treatment", "change", "between", "verdict"]
            yield Table(header, rows, right=(1, 2, 3, 4))
    yield Paragraph([*_columns(mine), *_certainty(mine)])
    if notes := [note for comparison in mine for note in _notes(report, comparison, treatment)]:
        yield Bullets(notes)


def _columns(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Why the change need not be that from one column to the other."""
    if any(comparison.effect.estimate is not None for comparison in comparisons):
        yield (
            "Control and treatment: the metric over all requests of the arm, as they came, times as geometric means "
            "unless another statistic is named. Change: between requests of the same kind and time, with units "
            "adjusted for what was known before. The two differ if the arms got different requests; verdicts rest on "
            "the change."
        )


def _certainty(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What the intervals are: those of secondary metrics are selected by e-BH, and so are their levels."""
    every = [comparison for comparison in comparisons if comparison.role == "primary"]
    primary = [comparison for comparison in every if comparison.counts]
    if primary:
        whose = "" if len(primary) == len(every) else f", of {_listed([comparison.metric for comparison in primary])},"
        levels = " or ".join(f"{100 * (1 - alpha):.4g} %" for alpha in sorted({each.alpha for each in primary}))
        yield f"Each primary interval{whose} covers at all times at once, with {levels} certainty."
    if any(comparison.counts for comparison in comparisons if comparison.role == "secondary"):
        yield (
            "Secondary intervals are as wide as their number demands: if nothing differs, the chance that any ever "
            "excludes 0 is at most `alpha`; of those that do, at most that share misses the true effect in the mean."
        )


def _metric_row(report: Report, comparison: Comparison, treatment: str) -> list[str]:
    values = {value.arm: value.value for value in comparison.values}
    shown = comparison.effect
    if shown.lower is None and comparison.event_test is not None:
        shown = comparison.event_test
    return [
        comparison.metric,
        words.metric_value(comparison, values.get(report.control)),
        words.metric_value(comparison, values.get(treatment)),
        words.effect_value(comparison, shown.estimate),
        words.interval(comparison, shown),
        _verdict(report, comparison),
    ]


def _verdict(report: Report, comparison: Comparison) -> str:
    holds = comparison.since is not None and comparison.verdict in WORDS and not comparison.doubt
    since = words.moment(comparison.since or 0.0, report.at, short=True) if holds else ""
    non_inferior = comparison.non_inferior and not comparison.doubt
    text = words.verdict(comparison.verdict, non_inferior=non_inferior, since=since)
    if comparison.doubt:
        text += ", see below"
    if comparison.verdict == "undecided" and comparison.units_needed is not None:
        text += f": about {words.count(words.rounded(comparison.units_needed))} more units"
        if comparison.days_needed is not None:
            text += f", {words.duration(comparison.days_needed * 86400)}"
    return text


def _notes(report: Report, comparison: Comparison, treatment: str) -> Iterator[str]:
    """Notes that do not fit into the table."""
    metric = comparison.metric
    values = {value.arm: value for value in comparison.values}
    if comparison.no_longer is not None:
        yield f"{metric}: no longer {comparison.no_longer}, as it was said to be before."
    if comparison.outdated and comparison.looked_at is not None:
        yield f"{metric}: looked at {words.duration(report.at - comparison.looked_at)} before this report."
    if comparison.doubt:
        yield f"{metric}: the change is that of {comparison.measured_on}. {comparison.doubt}"
    is_told = any(comparison.reason in detail for detail in report.details)
    if comparison.reason and comparison.events is None and not is_told:
        yield f"{metric}: {comparison.reason}."
    if comparison.events is not None:
        control, treated = (words.count(comparison.events.get(arm, 0)) for arm in (report.control, treatment))
        test = comparison.event_test
        is_bounded = test is not None and (test.lower is not None or test.upper is not None)
        exact = "the interval is their exact test" if is_bounded else "too few for an interval"
        yield f"{metric}: {control} events on control and {treated} on treatment; {exact}."
    rates = [value.response_rate for arm in (report.control, treatment) if (value := values.get(arm)) is not None]
    given = [words.percent(rate) for rate in rates if rate is not None]
    if len(given) == 2 and comparison.statistic != "response_rate":
        yield f"{metric}: {given[0]} of control's and {given[1]} of treatment's requests have feedback."
    if (warm := comparison.without_cold) is not None and warm.lower is not None:
        change, between = words.effect_value(comparison, warm.estimate), words.interval(comparison, warm)
        yield f"{metric}: without the minutes of cold replicas {change}, {between}."


_ATTRIBUTES = {
    "dialect": "dialect",
    "prompt_bytes": "first prompt",
    "stream": "first answer",
    "hour": "first hour",
    "group": "group",
}


def _subgroups(report: Report) -> Iterator[Block]:
    subgroups = report.subgroups
    if subgroups is None or not subgroups.effects:
        return
    yield Heading("For whom the effect differs")
    yield Paragraph(
        [subgroup_sentence(effect) for effect in subgroups.effects if effect.differs]
        or ["For nobody, as far as is known."]
    )
    rows = [
        [
            f"{_ATTRIBUTES[effect.attribute]}: {effect.name}",
            effect.metric if len(report.treatments) == 1 else f"{effect.metric}, {effect.treatment}",
            *(words.count(effect.units.get(arm, 0)) for arm in (report.control, effect.treatment)),
            words.size(effect.scale, effect.effect.estimate, signed=True),
            words.span(effect.scale, effect.effect),
            words.span(effect.scale, effect.difference),
        ]
        for effect in subgroups.effects
    ]
    header = ["subgroup", "metric", "control", "treatment", "change", "between", "against all others"]
    yield Table(header, rows, right=(2, 3, 4, 5, 6))
    yield Paragraph(
        [
            "Units belong to the subgroup of their first request. All changes hold together, with "
            f"{100 * (1 - subgroups.alpha):g} % certainty, if requests without a value had any of those seen. A "
            "difference from all others is named if its interval excludes 0: of those that are, at most "
            f"{100 * subgroups.alpha:g} % are wrong in the mean."
        ]
    )


def subgroup_sentence(effect: SubgroupEffect) -> str:
    """First prompt 4,096 bytes and more: ttft is changed by -12.3 % (-15.1 % to -9.2 %), …"""
    change = words.size(effect.scale, effect.effect.estimate, signed=True)
    against = words.size(effect.scale, effect.difference.estimate, signed=True)
    subject = f"{_ATTRIBUTES[effect.attribute]} {effect.name}"
    return (
        f"{subject[0].upper()}{subject[1:]}: {effect.metric} changes by {change} "
        f"({words.span(effect.scale, effect.effect)}), against all others by {against} "
        f"({words.span(effect.scale, effect.difference)})."
    )


def _distributions(report: Report) -> Iterator[Block]:
    rows = [
        [distribution.metric, arm.arm, words.count(arm.requests), *_quantiles(distribution, arm)]
        for distribution in report.distributions
        for arm in distribution.arms
    ]
    if rows:
        yield Heading("Distributions")
        header = ["metric", "arm", "requests", *(f"p{100 * share:g}" for share in _SHOWN)]
        yield Table(header, rows, right=range(2, len(header)))
        yield Paragraph(["p95: what 95 % of the requests do not exceed. Unadjusted; no verdict rests on it."])


def _quantiles(distribution: Distribution, arm: ArmDistribution) -> list[str]:
    known = dict(zip(distribution.shares, arm.values, strict=False))
    return [words.in_unit(distribution.metric, known.get(share)) for share in _SHOWN]


def _guardrails(report: Report) -> Iterator[Block]:
    if not report.guardrails:
        return
    yield Heading("Guardrails")
    several = len(report.treatments) > 1
    rows = [
        [
            guardrail.event if not several else f"{guardrail.event}, {guardrail.treatment}",
            guardrail.limit,
            *(words.count(guardrail.events.get(arm, 0)) for arm in (report.control, guardrail.treatment)),
            words.MISSING if guardrail.detectable is None else f"{guardrail.detectable:.1f} times",
            _evidence(guardrail.evidence),
            guardrail.action,
            _guardrail_state(report, guardrail),
        ]
        for guardrail in report.guardrails
    ]
    header = ["event", "limit", "control", "treatment", "visible", "evidence", "on alarm", "state"]
    yield Table(header, rows, right=(2, 3, 4, 5))
    yield Paragraph(
        [
            "Control and treatment: units with the event, however many of their requests have it. Visible: the "
            "smallest ratio to control's rate that would have raised the alarm by now, in four of five runs. Evidence: "
            "its share of what raises the alarm, which keeps it."
        ]
    )
    notes = [_requests(report, guardrail, several=several) for guardrail in report.guardrails if guardrail.requests]
    if notes := [*notes, *_blind(report)]:
        yield Bullets(notes)


def _blind(report: Report) -> Iterator[str]:
    """truncated sees next to nothing: of 1,200 requests only 3 count: …"""
    for guardrail in report.guardrails:
        if guardrail.blind:
            whose = f" on {guardrail.treatment}" if len(report.treatments) > 1 else ""
            yield f"{guardrail.event}{whose} sees next to nothing: {guardrail.blind}."


def _requests(report: Report, status: GuardrailStatus, *, several: bool) -> str:
    """empty: 3 of control's 36 ended requests have it, and 0 of treatment's 12."""
    control, treated = (
        (words.count(status.requests.get(arm, 0)), words.count(status.of_requests.get(arm, 0)))
        for arm in (report.control, status.treatment)
    )
    who = status.treatment if several else "treatment"
    have = f"{control[0]} of control's {control[1]} ended requests have it"
    return f"{status.event}: {have}, and {treated[0]} of {who}'s {treated[1]}."


def _evidence(share: float) -> str:
    return f"{max(share, 0.0) * 100:.0f} %"


def _guardrail_state(report: Report, status: GuardrailStatus) -> str:
    if status.alarm:
        at = status.alarmed_at
        return "ALARM" if at is None else f"ALARM since {words.moment(at, report.at, short=True)}"
    if status.unhealthy:
        return "control itself exceeds the limit"
    if status.one_caller:
        return "one caller may have brought it about"
    if status.blind:
        return "sees next to nothing"
    return "quiet" if status.evidence < 1 else "waits for more units, or for control to keep the limit"


def _sample_ratio(report: Report) -> Iterator[Block]:
    ratio: SampleRatio = report.sample_ratio
    yield Heading("Split")
    if ratio.alarm:
        since = f" since {words.moment(ratio.alarmed_at, report.at)}" if ratio.alarmed_at is not None else ""
        yield Paragraph([f"ALARM{since}: the units contradict the weights. Verdicts are invalid."])
        yield Bullets(ratio.attribution)
    else:
        yield Paragraph(
            [f"As configured: {_evidence(ratio.log_e_value / _SAMPLE_RATIO_ALARM)} of an alarm's evidence."]
        )
    if ratio.returns:
        yield Paragraph([f"ALARM: {ratio.returns} Nothing is shipped."])
    arms = [report.control, *report.treatments]
    rows = [
        [plan.plan, _joined(plan.weights, arms), _joined({arm: words.count(n) for arm, n in plan.units.items()}, arms)]
        for plan in ratio.plans
    ]
    if rows:
        yield Table(["plan", "weights", "units"], rows)


def _joined(numbers: Mapping[str, object], arms: Sequence[str]) -> str:
    return " / ".join(str(numbers.get(arm, 0)) for arm in arms)


def _served(report: Report) -> Iterator[Block]:
    """The deployments that answered, where that is not the assigned one alone."""
    if all(set(by) <= {arm} for arm, by in report.served.items()):
        return
    rows = [
        [words.count(requests), words.percent(requests / max(sum(by.values()), 1)), arm, deployment]
        for arm, by in report.served.items()
        for deployment, requests in sorted(by.items(), key=lambda item: -item[1])
    ]
    yield Heading("Assigned and served")
    yield Table(["requests", "share", "assigned", "served by"], rows, right=(0, 1))


def list_document(summaries: Sequence[Summary]) -> Iterator[Block]:
    """One line for each experiment, then what happens next."""
    if not summaries:
        yield Paragraph(["No experiments are declared."])
        return
    rows = [
        [
            summary.experiment,
            summary.endpoint,
            _summary_state(summary),
            " / ".join(
                f"{summary.weights[arm]} %" for arm in (summary.control, *summary.treatments) if arm in summary.weights
            )
            or words.MISSING,
            " / ".join(
                words.count(summary.units[arm])
                for arm in (summary.control, *summary.treatments)
                if arm in summary.units
            )
            or words.MISSING,
            _summary_decision(summary),
        ]
        for summary in summaries
    ]
    yield Table(["experiment", "endpoint", "state", "split", "units", "decision"], rows)
    yield Paragraph([line for summary in summaries for line in (summary.headline, summary.next) if line])


def _summary_decision(summary: Summary) -> str:
    if summary.decision is None or _state(summary, summary.acting) not in words.DECIDED:
        return words.MISSING
    return words.DECISIONS[summary.decision]


def _summary_state(summary: Summary) -> str:
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
            words.verdict(point.verdict),
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
                result.metric,
                words.count(result.units),
                words.count(result.looks),
                words.percent(result.sequences),
                words.percent(result.peeked),
            ]
            for result in runs.results
        ]
        yield Table(["metric", "units", "looks", "false verdicts", "peeked t-tests"], rows, right=(1, 2, 3, 4))
