"""The report of one experiment at one moment, and its sentences: plain words, without statistics."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from app.config.experiments import Experiment
from app.config.schema import Config, Endpoint
from app.experiments.analysis.aggregates import SufficientStatistics
from app.experiments.analysis.arms import HORIZON_S, Arms
from app.experiments.analysis.comparing import MetricComparison, decision_of
from app.experiments.analysis.feedback import PendingFeedback
from app.experiments.analysis.metrics import LENGTH
from app.experiments.analysis.monitoring import Monitoring, changed, rate_window_s
from app.experiments.automation.state import shares_of_arms
from app.experiments.contract.report import Comparison, Decision, Effect, GuardrailStatus, Report, Subgroups, Verdict
from app.experiments.rendering import words
from app.experiments.statistics.look import MIN_UNITS

_HIGHER_LOWER = ("higher", "lower")

_SUBJECTS: dict[str, tuple[str, tuple[str, str]]] = {
    "ttft": ("First token", ("later", "earlier")),
    "itl": ("Time between tokens", ("longer", "shorter")),
    "itl_max": ("Longest gap between tokens", ("longer", "shorter")),
    "duration": ("Time to the whole answer", ("longer", "shorter")),
    "tokens_per_second": ("Tokens per second", _HIGHER_LOWER),
    "output_tokens": ("Answers", ("longer", "shorter")),
    "prompt_tokens": ("Prompts", ("longer", "shorter")),
    "cost": ("Cost", _HIGHER_LOWER),
    "goodput": ("Share of good answers", _HIGHER_LOWER),
    "error": ("Error rate", _HIGHER_LOWER),
    "slow": ("Rate of slow answers", _HIGHER_LOWER),
    "empty": ("Rate of empty answers", _HIGHER_LOWER),
    "truncated": ("Rate of truncated answers", _HIGHER_LOWER),
    "stalled": ("Rate of stalled streams", _HIGHER_LOWER),
    "invalid_output": ("Rate of invalid outputs", _HIGHER_LOWER),
    "client_gone": ("Rate of disconnected clients", _HIGHER_LOWER),
    "unfinished": ("Rate of unfinished requests", _HIGHER_LOWER),
}
"""The metric as a subject, and the words for more and for less of it."""

_UNKNOWN = ("too_early", "invalid")
"""Verdicts that say nothing about the effect."""

_UNITS = {"conversation": "conversations", "user": "users", "api_key": "keys", "header": "units"}


def noun_of_units(endpoint: Endpoint) -> str:
    """The noun for the units drawn at random, in the plural."""
    return "requests" if endpoint.sticky is None else _UNITS[endpoint.sticky.by]


def effect_sentence(comparison: Comparison) -> str:
    """First token 8.0 % earlier (between 1.7 % and 13.4 % earlier).

    With a doubt: Of the requests that have a value, first token 8.0 % earlier (…); requests without a value could …
    """
    subject, (more, less) = _SUBJECTS.get(comparison.metric.partition(".")[0], (comparison.metric, _HIGHER_LOWER))
    if "." in comparison.metric and comparison.metric.partition(".")[0] in _SUBJECTS:
        subject += f" ({comparison.statistic})"
    effect = comparison.event_test or comparison.effect
    if comparison.verdict in _UNKNOWN or (effect.estimate is None and not effect.lower):
        return f"{subject}: {comparison.reason or 'no estimate yet'}."
    bounds = _range(comparison, effect, more, less)
    if effect.estimate is None:  # control has no event yet
        changed = f"{subject} {bounds}"
    else:
        changed = f"{subject} {_directed(comparison, effect.estimate, more, less)} ({bounds})"
    if not comparison.doubt:
        return f"{changed}."
    return f"Of {comparison.measured_on}, {_lowered(changed)}; {_lowered(comparison.doubt)}"


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _amount(comparison: Comparison, value: float) -> str:
    return words.effect_value(comparison, abs(value)).lstrip("+")


def _directed(comparison: Comparison, value: float, more: str, less: str) -> str:
    return f"{_amount(comparison, value)} {more if value >= 0 else less}"


def _range(comparison: Comparison, effect: Effect, more: str, less: str) -> str:
    low, high = effect.lower, effect.upper
    if low is None and high is None:
        return "no bounds yet"
    if high is None:
        return f"at least {_directed(comparison, low or 0.0, more, less)}" if (low or 0) > 0 else "no upper bound yet"
    if low is None:
        return "no lower bound yet"
    if (low >= 0) == (high >= 0):
        near, far = sorted((low, high), key=abs)
        return f"between {_amount(comparison, near)} and {_directed(comparison, far, more, less)}"
    return f"between {_directed(comparison, low, more, less)} and {_directed(comparison, high, more, less)}"


def headline(report: Report) -> str:
    """One sentence: no-prefix-cache on chat: green is better than blue."""
    return f"{report.experiment} on {report.endpoint}: {_conclusion(report)}."


def _conclusion(report: Report) -> str:
    alarmed = [rail for rail in report.guardrails if rail.alarm and rail.action != "alert"]
    if alarmed and report.mode == "ab":
        return f"{alarmed[0].treatment} exceeds the guardrail {alarmed[0].event}"
    if report.decision == "invalid":
        return f"no verdict can be trusted, {_why_invalid(report)}"
    if report.is_empty:
        return "no request counted yet"
    if report.mode == "aa":
        return "A/A, no difference found where there is none"
    return "; ".join(_standing(report, treatment) for treatment in report.treatments)


def _why_invalid(report: Report) -> str:
    reasons = {
        "sample_ratio": "the split is not as configured",
        "rows_lost": "too many rows were lost",
        "incomplete": "the ledger is incomplete",
        "completeness": "more units lack values on one arm",
        "aa": "a difference was found where there is none",
    }
    return next((reasons[alarm.kind] for alarm in report.alarms if alarm.kind in reasons), "see the alarms")


def _standing(report: Report, treatment: str) -> str:
    primary = [comparison for comparison in report.primary if comparison.treatment == treatment]
    found = {comparison.verdict for comparison in primary}
    against = report.control
    if report.decisions.get(treatment) == "invalid":
        reasons = [comparison.reason for comparison in primary if comparison.verdict == "invalid"]
        return f"no verdict on {treatment} can be trusted, {next(filter(None, reasons), 'see the alarms')}"
    if "worse" in found:
        return f"{treatment} is {_than(primary, against)}"
    if doubts := [comparison.doubt for comparison in primary if comparison.withheld]:
        return f"no verdict on {treatment} against {against} yet: {_lowered(doubts[0]).rstrip('.')}"
    if "different" in found:
        return f"{treatment} differs from {against}"
    if "better" in found:
        return f"{treatment} is {_than(primary, against)}"
    if found <= {"equivalent"}:
        return f"{treatment} is equivalent to {against}"
    if "too_early" in found:
        return f"too few units yet to compare {treatment} with {against}"
    return f"no verdict on {treatment} against {against} yet"


_IN: Mapping[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "equivalent": "equivalent",
    "different": "different",
    "undecided": "undecided",
    "too_early": "without enough units",
    "invalid": "without a verdict",
}


def _than(primary: Sequence[Comparison], against: str) -> str:
    """Better than blue; where primary metrics say different things, better than blue in ttft, undecided in goodput."""
    groups = {
        word: [comparison.metric for comparison in primary if comparison.verdict == verdict]
        for verdict, word in _IN.items()
    }
    (first, metrics), *others = [(word, metrics) for word, metrics in groups.items() if metrics]
    if not others:
        return f"{first} than {against}"
    return f"{first} than {against} in {', '.join(metrics)}, " + ", ".join(
        f"{word} in {', '.join(metrics)}" for word, metrics in others
    )


def details(report: Report, alpha: float, units: str) -> list[str]:
    """The sentences after the headline. `units` is the noun for the units drawn at random, in the plural."""
    effects = [
        (f"{comparison.treatment}: " if len(report.treatments) > 1 else "") + effect_sentence(comparison)
        for comparison in report.primary
    ]
    certain = [
        number
        for number, comparison in enumerate(report.primary)
        if comparison.counts and _is_bounded(comparison.event_test or comparison.effect)
    ]
    if certain:
        effects[certain[-1]] += f" True at any time you look, with {100 * (1 - alpha):g} % certainty."
    watched = f"{_guardrails(report)} {_split(report)}"
    if report.incomplete:
        watched = "The ledger is incomplete: of guardrails and the split, only a part is known."
    return [*effects, f"{_counts(report, units)} {watched}"]


def _is_bounded(effect: Effect) -> bool:
    return effect.lower is not None or effect.upper is not None


def _counts(report: Report, units: str) -> str:
    first, *others = (report.control, *report.treatments)
    parts = [f"{words.count(report.units[first])} {units} on {first}"]
    parts += [f"{words.count(report.units[name])} on {name}" for name in others]
    unknown, waiting = sum(report.unknown.values()), report.waiting
    running = sum(report.running.values()) - unknown
    rest = [f"{words.count(running)} more {'has' if running == 1 else 'have'} not ended"] if running else []
    rest += [f"of {words.count(unknown)} more the end is not known"] if unknown else []
    rest += [f"{words.count(waiting)} {'waits' if waiting == 1 else 'wait'} for an earlier one"] if waiting else []
    ended = sum(report.requests.values())
    counted = "of them counted" if units == "requests" else "request" if ended == 1 else "requests"
    parts.append(f"{words.count(ended)} {counted}" + (f" ({', '.join(rest)})" if rest else ""))
    if report.started_at is not None:
        parts.append(f"since {words.moment(report.started_at, report.at)}")
    return f"{', '.join(parts)}."


def _guardrails(report: Report) -> str:
    guardrails = report.guardrails
    alarms = _alarmed(guardrails)
    if alarms:
        return f"Guardrails alarmed: {', '.join(alarms)}."
    if unhealthy := _unhealthy(guardrails):
        return f"Control itself exceeds the limit of {', '.join(unhealthy)}."
    if suspect := _of_one_caller(guardrails):
        return f"One caller may have brought about {', '.join(suspect)}."
    if standing := _standing_alarms(report):
        return " ".join(standing)
    if blind := list(dict.fromkeys(rail.event for rail in guardrails if rail.blind)):
        return f"Guardrails quiet, but nearly all requests may have decided about {' and '.join(blind)} themselves."
    return "Guardrails quiet." if guardrails else "No guardrails."


def _standing_alarms(report: Report) -> list[str]:
    """The alarms of guardrails that count anew: a sentence each."""
    return [alarm.text for alarm in report.alarms if alarm.kind == "standing"]


def _alarmed(guardrails: Sequence[GuardrailStatus]) -> list[str]:
    return [f"{rail.event} on {rail.treatment}" for rail in guardrails if rail.alarm]


def _of_one_caller(guardrails: Sequence[GuardrailStatus]) -> list[str]:
    return [f"{rail.event} on {rail.treatment}" for rail in guardrails if rail.one_caller]


def _unhealthy(guardrails: Sequence[GuardrailStatus]) -> list[str]:
    """Events whose absolute limit control exceeds; each once, with several treatments too."""
    return list(dict.fromkeys(rail.event for rail in guardrails if rail.unhealthy))


def _split(report: Report) -> str:
    if report.sample_ratio.alarm:
        return "The split is not as configured (alarm)."
    if report.sample_ratio.returns:
        return "Units are split as configured, their requests are not (alarm)."
    return "Split as configured (no alarm)."


def next_step(report: Report, decisions: Mapping[str, Decision], missing_s: Mapping[str, float]) -> str:
    """The sentences about what to do. `decisions` per treatment; `missing_s`: the seconds of traffic on it and control
    that have still to be seen before it is promoted."""
    step, invalid = _next_step(report, decisions, missing_s), _with(decisions, "invalid")
    if not invalid or report.decision in ("invalid", "ship"):
        return step
    return f"{step} For {' and '.join(invalid)}, {_mend(report)}"


def _mend(report: Report) -> str:
    """What makes verdicts possible where they are invalid."""
    if report.incomplete:
        return "restore the parts of the ledger that are missing, or accept that they are, as is said below."
    return "find what differs by arm (see the alarms), then start a new run."


def _with(decisions: Mapping[str, Decision], wanted: Decision) -> list[str]:
    """The treatments with that decision."""
    return [name for name, decision in decisions.items() if decision == wanted]


def _next_step(report: Report, decisions: Mapping[str, Decision], missing_s: Mapping[str, float]) -> str:
    if report.mode == "aa":
        return "Next: nothing to do; a difference would raise an alarm."
    bad = _with(decisions, "do_not_ship")
    if bad and report.decision in ("do_not_ship", "keep_going"):
        rest = [name for name, decision in decisions.items() if decision not in ("do_not_ship", "invalid")]
        on = f" Keep going with {' and '.join(rest)}." if rest else ""
        return f"Next: take {' and '.join(bad)} out of the traffic.{on}"
    if report.decision == "invalid":
        return f"Next: {_mend(report)}"
    if report.decision == "ship":
        return f"Next: give {' or '.join(_with(decisions, 'ship'))} all traffic."
    better = [comparison.treatment for comparison in report.primary if comparison.measured == "better"]
    reasons = [reason for name in better for reason in report.withheld.get(name, [])]
    reasons += [comparison.doubt for comparison in report.primary if comparison.withheld]
    unclear = _unhealthy(report.guardrails) or _of_one_caller(report.guardrails) or _standing_alarms(report)
    if reasons and not (_alarmed(report.guardrails) or unclear):
        return f"Next: nothing is shipped yet. {reasons[0]}"
    return f"Next: {_keep_going(report, missing_s)}"


def _look_into(guardrails: Sequence[GuardrailStatus]) -> str:
    """What guardrails point at; empty if they are quiet."""
    if alarmed := _alarmed(guardrails):
        return f"the guardrails that alarmed, {', '.join(alarmed)}"
    if unhealthy := _unhealthy(guardrails):
        return f"control, which exceeds the limit of {', '.join(unhealthy)}"
    if suspect := _of_one_caller(guardrails):
        return f"each caller's requests: one may have brought about {', '.join(suspect)}"
    return ""


def _more_units(report: Report) -> str:
    """What a verdict on a metric needs that is undecided; empty if there is none, or nothing is known of it yet."""
    open_ = [comparison for comparison in report.primary if comparison.measured == "undecided"]
    undecided = [comparison for comparison in open_ if comparison.units_needed is not None]
    if hidden := [each for each in open_ if each.units_needed is None and each.effect.estimate is not None]:
        return (
            f"find out why requests have no value or no end: they could explain a difference of {hidden[0].metric} by "
            f"{words.effect_value(hidden[0], hidden[0].minimal_effect).lstrip('+')}, whatever the number of units."
        )
    if not undecided:
        return ""
    most = max(undecided, key=lambda comparison: comparison.units_needed or 0)
    if not most.units_needed:
        return "keep going; a verdict is due."
    days = ", and no new ones have come of late"
    if most.days_needed is not None and report.started_at is not None:
        of_late = words.duration(rate_window_s(report.at - report.started_at))
        days = f", {words.duration(most.days_needed * 86400)} at the rate of the last {of_late}"
    size = words.effect_value(most, most.minimal_effect).lstrip("+")
    units = words.count(words.rounded(most.units_needed))
    return f"about {units} more units{days}, to find a difference of {size}."


def _keep_going(report: Report, missing_s: Mapping[str, float]) -> str:
    if more := _more_units(report):
        return more
    if look := _look_into(report.guardrails):
        return f"look into {look}."
    if standing := _standing_alarms(report):
        return f"find out whether what alarmed is mended. {' '.join(standing)}"
    lengths = [comparison for comparison in (*report.primary, *report.secondary) if comparison.metric == LENGTH]
    if different := [effect_sentence(comparison) for comparison in lengths if comparison.measured == "different"]:
        return f"look into the answers' length. {different[0]} If that is meant, declare {LENGTH} with `better`."
    left = [missing_s[comparison.treatment] for comparison in report.primary if comparison.verdict == "better"]
    if left and min(left) > 0:
        return f"keep going for {words.duration(min(left))} of traffic: hours of a day differ (`min_duration_s`)."
    if all(comparison.verdict == "equivalent" for comparison in report.primary):
        return "take the one that you prefer for other reasons."
    return "keep going."


WITH_TRAFFIC = 0.9
"""The share of `min_duration_s` in which both arms must have had traffic: silence is no evidence."""

MUCH_CLUSTERING = 2.0
"""A design effect above this is mentioned in the report."""

_UNMISSED = ("arrived", "group", "moves", "pause_s")
"""Columns that change no number of a report where older records lack them."""

MOVED = 1.5
"""The ratio of an arm's units with values to those that first came to it, above which a sentence says why."""

HELD_S = 60.0
"""How long a running request may hold up later ones before the report mentions it."""


def reported(
    name: str,
    config: Config,
    *,
    collected: SufficientStatistics,
    watched: Monitoring,
    feedback: PendingFeedback,
    comparing: Sequence[MetricComparison],
    subgroups: Subgroups | None,
    version: int,
    now: float,
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
            version=version,
            now=now,
            with_values=with_values,
        )
        for comparison in comparing
        if not comparison.measure.guard or collected.sums(comparison.column, 0)[0]
    ]
    primary = [comparison for comparison in comparisons if comparison.role == "primary"]
    missing_s = {
        treatment: max(
            experiment.min_duration_s - (now - watched.arms.since),
            WITH_TRAFFIC * experiment.min_duration_s - watched.shared_time.seconds(number),
        )
        for number, treatment in enumerate(experiment.treatments, 1)
    }
    withheld = _withheld(experiment, comparing, watched)
    decisions = _decisions(experiment, primary, comparing, watched, withheld, missing_s)
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
        running=dict(zip(names, collected.running.sum(axis=1).tolist(), strict=True)),
        unknown=dict(zip(names, collected.unknown.sum(axis=1).tolist(), strict=True)),
        waiting=collected.held.requests if collected.held is not None else 0,
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
        subgroups=subgroups,
        guardrails=[watch.status() for watch in watched.guardrails],
        sample_ratio=watched.sample_ratio.status(watched.split_differences(), watched.returns),
        alarms=list(watched.alarms),
        warnings=_warnings(comparing, comparisons, collected, watched, feedback, now)
        + [
            changed(comparison, change, now)
            for comparison in comparing
            if (change := comparison.changes.change) is not None and not change.flips
        ],
        strata=collected.strata_used,
        thinned=collected.share,
        distributions=collected.distributions.report() if with_values else [],
    )
    endpoint = config.endpoints[experiment.endpoint]
    units, is_empty = noun_of_units(endpoint), report.is_empty
    return msgspec.structs.replace(
        report,
        headline=headline(report),
        details=[_awaited(report, units)] if is_empty else details(report, experiment.alpha, units),
        next=_source(report, endpoint) if is_empty else next_step(report, decisions, missing_s),
    )


def _awaited(report: Report, units: str) -> str:
    """What the first interval of a report without a request needs. `units`: as for `details`."""
    arms = " and ".join((report.control, *report.treatments))
    return (
        f"It waits for requests to {report.endpoint}, which count some seconds after their end: at least {MIN_UNITS} "
        f"{units} each on {arms}."
    )


def _source(report: Report, endpoint: Endpoint) -> str:
    """What sends the first requests."""
    made_up = f", or made-up ones by `switchyard demo traffic {report.endpoint}`" if "chat" in endpoint.tasks else ""
    return f"Next: requests of your clients{made_up}."


def _decisions(
    experiment: Experiment,
    primary: Sequence[Comparison],
    comparing: Sequence[MetricComparison],
    watched: Monitoring,
    withheld: Mapping[str, list[str]],
    missing_s: Mapping[str, float],
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
            quiet=not any(rail.alarmed_at is not None or rail.unhealthy or rail.one_caller for rail in rails)
            and not watched.has_standing_alarm(number),
            changed=any(comparison.changes.has_flipped for comparison in its),
            same_length=not any(
                comparison.measure.metric == LENGTH and comparison.known.measured == "different" for comparison in its
            ),
            settled=all(comparison.known.settled for comparison in deciding),
            comparable=treatment not in withheld,
            invalid=any(watched.invalidates(comparison.column, number) for comparison in deciding),
            long_enough=missing_s[treatment] <= 0,
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
    """One for all treatments."""
    if experiment.mode == "aa":
        wrong = any(alarm.kind not in ("guardrail", "endpoint_unhealthy") for alarm in watched.alarms)
        return "invalid" if wrong else "keep_going"
    return overall(list(decisions.values()))


def overall(decisions: Collection[Decision]) -> Decision:
    """Ship if any treatment is to be shipped; keep going if any may still be; invalid only if nothing is known of any:
    what is wrong with one treatment's evidence takes nothing from the others'.
    """
    order: tuple[Decision, ...] = ("ship", "keep_going", "do_not_ship")
    return next((decision for decision in order if decision in decisions), "invalid")


def _weights(experiment: Experiment, config: Config, arms: Arms) -> dict[str, int]:
    """The arms' percentages under the latest plan that routers served."""
    traffic = config.endpoints[experiment.endpoint].traffic if arms.current is None else arms.current.weights
    return shares_of_arms(traffic, experiment)


def _warnings(
    comparing: Sequence[MetricComparison],
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
    warnings += _of_units(comparing, watched)
    if lacking := {name: records for name, records in watched.lacking.items() if name not in _UNMISSED}:
        columns = ", ".join(f"{name} ({words.count(records)})" for name, records in sorted(lacking.items()))
        warnings.append(f"Records of another version do not have these columns, and count as unknown there: {columns}.")
    if watched.gone:
        warnings.append(f"The ledger lacks what is known to be gone: {'; '.join(watched.gone)}.")
    if feedback.late:
        warnings.append(f"{feedback.late:,} scores came after their window and do not count.")
    if feedback.unmatched:
        warnings.append(
            f"{feedback.unmatched:,} scores match no answer that waits for feedback: the answer is unknown, another "
            "caller's, or its window was over long before."
        )
    return warnings


def _of_units(comparing: Sequence[MetricComparison], watched: Monitoring) -> Iterator[str]:
    """What is odd about the arms' numbers of units."""
    names, counts = watched.arms.names, watched.sample_ratio.units
    if not sum(counts):
        return
    yield from (f"{name} has no units." for name, units in zip(names, counts, strict=True) if not units)
    for number, (name, units) in enumerate(zip(names, counts, strict=True)):
        sides = [each.known.units[each.treatment == number] for each in comparing if number in (0, each.treatment)]
        if (came := max(sides, default=0)) > MOVED * max(units, MIN_UNITS):
            yield (
                f"Units are counted where they came first: to {name} {words.count(units)}, and "
                f"{words.count(came)} that it has answered are compared."
            )
