"""The report of one experiment at one moment."""

from collections.abc import Mapping, Sequence

import msgspec

from app.config.experiments import Experiment
from app.config.schema import Config
from app.experiments.analysis import sentences
from app.experiments.analysis.aggregates import SufficientStatistics
from app.experiments.analysis.arms import Arms
from app.experiments.analysis.arrivals import HORIZON_S
from app.experiments.analysis.comparing import MetricComparison, decision_of
from app.experiments.analysis.feedback import PendingFeedback
from app.experiments.analysis.metrics import LENGTH
from app.experiments.analysis.monitoring import Monitoring, changed
from app.experiments.analysis.subgroups import SubgroupWatch
from app.experiments.contract.report import Comparison, Decision, Report
from app.experiments.rendering import words

WITH_TRAFFIC = 0.9
"""The share of `min_duration_s` over which requests must have arrived: silence is no evidence."""

MUCH_CLUSTERING = 2.0
"""A design effect above this is mentioned in the report."""

_UNMISSED = ("arrived", "group", "moves", "pause_s")
"""Columns that change no number of a report where older records lack them."""

HELD_S = 60.0
"""How long a running request may hold up later ones before the report mentions it."""


def reported(
    name: str,
    config: Config,
    collected: SufficientStatistics,
    watched: Monitoring,
    feedback: PendingFeedback,
    comparing: Sequence[MetricComparison],
    subgroups: SubgroupWatch,
    version: int,
    now: float,
    *,
    with_values: bool = True,
) -> Report:
    """The report from the latest looks. `version`: that of the data, as in `MetricComparison.looked_version`. `now` in
    Unix seconds. `with_values`: includes each metric's value in each arm, and the distributions.
    """
    experiment = config.experiments[name]
    per_day = watched.units_per_day(now)
    comparisons = [
        comparison.comparison(
            collected,
            invalid=watched.invalidates(comparison.column, comparison.treatment),
            units_per_day=per_day,
            outdated=comparison.looked_version < version,
            with_values=with_values,
        )
        for comparison in comparing
        if not comparison.measure.guard or collected.sums(comparison.column, 0)[0]
    ]
    primary = [comparison for comparison in comparisons if comparison.role == "primary"]
    least = experiment.min_duration_s
    missing_s = max(
        least - (now - watched.arms.since), WITH_TRAFFIC * least - (watched.seen_until - watched.arms.since)
    )
    withheld = _withheld(experiment, comparing, watched)
    decisions = _decisions(experiment, primary, comparing, watched, withheld, long_enough=missing_s <= 0)
    names = experiment.arms
    report = Report(
        experiment=name,
        endpoint=experiment.endpoint,
        mode=experiment.mode,
        state=experiment.state,
        control=experiment.control,
        treatments=list(experiment.treatments),
        at=now,
        started_at=watched.arms.since,
        decision=_decision(experiment, decisions, watched),
        decisions=decisions,
        withheld=withheld,
        headline="",
        details=[],
        next="",
        weights=_weights(experiment, config, watched.arms),
        units=dict(zip(names, watched.sample_ratio.units, strict=True)),
        requests=dict(zip(names, collected.requests.tolist(), strict=True)),
        running=dict(zip(names, collected.running.tolist(), strict=True)),
        treated=watched.treated.total,
        step_units=watched.treated.step_units,
        served=watched.traffic.served,
        forced=watched.traffic.forced,
        carried=watched.traffic.carried,
        rows_lost=watched.traffic.lost,
        incomplete=watched.damaged,
        in_flight=watched.load.in_flight,
        replicas=watched.load.replicas,
        primary=primary,
        secondary=[comparison for comparison in comparisons if comparison.role == "secondary"],
        subgroups=subgroups.report(version),
        guardrails=[watch.status() for watch in watched.guardrails],
        sample_ratio=watched.sample_ratio.status(watched.split_differences(), watched.returns),
        alarms=list(watched.alarms),
        warnings=_warnings(comparisons, collected, watched, feedback, now)
        + [
            changed(comparison, change, now)
            for comparison in comparing
            if (change := comparison.changes.change) is not None and not change.flips
        ],
        strata=collected.strata_used,
        thinned=collected.share,
        distributions=collected.distributions.report() if with_values else [],
    )
    units = sentences.noun_of_units(config.endpoints[experiment.endpoint])
    return msgspec.structs.replace(
        report,
        headline=sentences.headline(report),
        details=sentences.details(report, experiment.alpha, units),
        next=sentences.next_step(report, decisions, missing_s),
    )


def _decisions(
    experiment: Experiment,
    primary: Sequence[Comparison],
    comparing: Sequence[MetricComparison],
    watched: Monitoring,
    withheld: Mapping[str, list[str]],
    *,
    long_enough: bool,
) -> dict[str, Decision]:
    """The decision per treatment."""
    decisions = {}
    for number, treatment in enumerate(experiment.treatments, 1):
        rails = [watch for watch in watched.guardrails if watch.treatment == number]
        its = [comparison for comparison in comparing if comparison.treatment == number]
        deciding = [comparison for comparison in its if comparison.measure.role == "primary"]
        decisions[treatment] = decision_of(
            [comparison for comparison in primary if comparison.treatment == treatment],
            acted=any(rail.alarmed_at is not None and rail.acts for rail in rails),
            quiet=not any(rail.alarmed_at is not None or rail.unhealthy for rail in rails),
            changed=any(comparison.changes.has_flipped for comparison in its),
            same_length=not any(
                comparison.measure.metric == LENGTH and comparison.known.measured == "different" for comparison in its
            ),
            settled=all(comparison.known.settled for comparison in deciding),
            comparable=treatment not in withheld,
            invalid=any(watched.invalidates(comparison.column, number) for comparison in deciding),
            long_enough=long_enough,
        )
    return decisions


def _withheld(
    experiment: Experiment, comparing: Sequence[MetricComparison], watched: Monitoring
) -> dict[str, list[str]]:
    """Per treatment, what else could explain what was measured of its primary metrics; without those treatments where
    nothing could. Suspicion is enough not to ship; a verdict is withheld only for a doubt.
    """
    reasons: dict[str, list[str]] = {}
    for number, treatment in enumerate(experiment.treatments, 1):
        doubts = [watched.suspected_returns] if watched.suspected_returns else []
        primary = [
            comparison
            for comparison in comparing
            if comparison.treatment == number and comparison.measure.role == "primary"
        ]
        doubts += [comparison.doubt.text for comparison in primary if comparison.doubt is not None]
        if doubts:
            reasons[treatment] = list(dict.fromkeys(doubts))
    return reasons


def _decision(experiment: Experiment, decisions: dict[str, Decision], watched: Monitoring) -> Decision:
    """One for all treatments: ship if any is to be shipped, do not ship if none may be."""
    if experiment.mode == "aa":
        wrong = any(alarm.kind not in ("guardrail", "endpoint_unhealthy") for alarm in watched.alarms)
        return "invalid" if wrong else "keep_going"
    words = set(decisions.values())
    if words == {"do_not_ship"}:
        return "do_not_ship"
    return next((word for word in ("ship", "invalid") if word in words), "keep_going")


def _weights(experiment: Experiment, config: Config, arms: Arms) -> dict[str, int]:
    """The arms' percentages under the latest plan that routers served; labels of mode `aa` share control's."""
    traffic = config.endpoints[experiment.endpoint].traffic if arms.current is None else arms.current.weights
    if experiment.mode == "aa":
        return {name: round(traffic.get(experiment.control, 0) / len(experiment.arms)) for name in experiment.arms}
    return {name: traffic.get(name, 0) for name in experiment.arms}


def _warnings(
    comparisons: Sequence[Comparison],
    collected: SufficientStatistics,
    watched: Monitoring,
    feedback: PendingFeedback,
    now: float,
) -> list[str]:
    warnings = watched.load.warnings()
    clustered = [
        comparison
        for comparison in comparisons
        if comparison.design_effect is not None and comparison.design_effect > MUCH_CLUSTERING
    ]
    if clustered:
        most = max(clustered, key=lambda comparison: comparison.design_effect or 0.0)
        warnings.append(
            f"Requests of a unit resemble one another (design effect {most.design_effect:.1f} for {most.metric}): "
            "more units help, more requests of the same units hardly do."
        )
    for what, share in (("metrics", collected.share), ("quantiles", collected.quantiles_share)):
        if share < 1:
            warnings.append(f"There are many units: {what} are computed from {100 * share:g} % of them, drawn by hash.")
    if unknown := int(collected.unknown.sum()):
        have = "request has" if unknown == 1 else "requests have"
        warnings.append(
            f"{unknown:,} {have} run for more than {HORIZON_S / 60:g} minutes, or the records were lost, or the router "
            "is gone: intervals allow for any outcome."
        )
    if (held := collected.held) is not None and now - held.since > HELD_S:
        have = "request that has ended waits" if held.requests == 1 else "requests that have ended wait"
        until = words.moment(held.since + HORIZON_S, now)
        warnings.append(
            f"{held.requests:,} {have} for one that came before and has not: they count from {until} at the latest."
        )
    counts = watched.sample_ratio.units
    if sum(counts):
        warnings += [
            f"{name} has no units." for name, units in zip(watched.arms.names, counts, strict=True) if not units
        ]
    if lacking := {name: records for name, records in watched.lacking.items() if name not in _UNMISSED}:
        columns = ", ".join(f"{name} ({words.count(records)})" for name, records in sorted(lacking.items()))
        warnings.append(f"Records of another version do not have these columns, and count as unknown there: {columns}.")
    if feedback.late:
        warnings.append(f"{feedback.late:,} scores came after their window and do not count.")
    if feedback.unmatched:
        warnings.append(
            f"{feedback.unmatched:,} scores match no answer that waits for feedback: the answer is unknown, another "
            "caller's, or its window was over long before."
        )
    return warnings
