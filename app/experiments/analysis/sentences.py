"""The report's sentences: plain words, without statistics."""

from collections.abc import Mapping, Sequence

from app.config.schema import Endpoint
from app.experiments.analysis.metrics import LENGTH
from app.experiments.contract.report import Comparison, Decision, Effect, GuardrailStatus, Report
from app.experiments.rendering import words

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
    if effect.estimate is None or comparison.verdict in _UNKNOWN:
        return f"{subject}: {comparison.reason or 'no estimate yet'}."
    estimate = _directed(comparison, effect.estimate, more, less)
    changed = f"{subject} {estimate} ({_range(comparison, effect, more, less)})"
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
    if report.mode == "aa":
        return "A/A, no difference found where there is none"
    return "; ".join(_standing(report, treatment) for treatment in report.treatments)


def _why_invalid(report: Report) -> str:
    reasons = {
        "sample_ratio": "the split is not as configured",
        "rows_lost": "too many rows were lost",
        "incomplete": "the ledger is incomplete",
        "completeness": "values are missing more often on one arm",
        "aa": "a difference was found where there is none",
    }
    return next((reasons[alarm.kind] for alarm in report.alarms if alarm.kind in reasons), "see the alarms")


def _standing(report: Report, treatment: str) -> str:
    primary = [comparison for comparison in report.primary if comparison.treatment == treatment]
    by_verdict = {
        verdict: [comparison.metric for comparison in primary if comparison.verdict == verdict]
        for verdict in ("better", "worse")
    }
    against = report.control
    if by_verdict["better"] and by_verdict["worse"]:
        return (
            f"{treatment} is better than {against} in {', '.join(by_verdict['better'])} "
            f"and worse in {', '.join(by_verdict['worse'])}"
        )
    if by_verdict["worse"]:
        return f"{treatment} is worse than {against}"
    if doubts := [comparison.doubt for comparison in primary if comparison.withheld]:
        return f"no verdict on {treatment} against {against} yet: {_lowered(doubts[0]).rstrip('.')}"
    if any(comparison.verdict == "different" for comparison in primary):
        return f"{treatment} differs from {against}"
    if by_verdict["better"]:
        return f"{treatment} is better than {against}"
    if all(comparison.verdict == "equivalent" for comparison in primary):
        return f"{treatment} is equivalent to {against}"
    if any(comparison.verdict == "too_early" for comparison in primary):
        return f"too few units yet to compare {treatment} with {against}"
    return f"no verdict on {treatment} against {against} yet"


def details(report: Report, alpha: float, units: str) -> list[str]:
    """The sentences after the headline. `units` is the noun for the units drawn at random, in the plural."""
    effects = [
        (f"{comparison.treatment}: " if len(report.treatments) > 1 else "") + effect_sentence(comparison)
        for comparison in report.primary
    ]
    if any(
        _is_bounded(comparison.event_test or comparison.effect) and comparison.verdict not in _UNKNOWN
        for comparison in report.primary
    ):
        effects[-1] += f" True at any time you look, with {100 * (1 - alpha):g} % certainty."
    watched = f"{_guardrails(report.guardrails)} {_split(report)}"
    if report.incomplete:
        watched = "The ledger is incomplete: of guardrails and the split, only a part is known."
    return [*effects, f"{_counts(report, units)} {watched}"]


def _is_bounded(effect: Effect) -> bool:
    return effect.lower is not None or effect.upper is not None


def _counts(report: Report, units: str) -> str:
    first, *others = (report.control, *report.treatments)
    parts = [f"{words.count(report.units[first])} {units} on {first}"]
    parts += [f"{words.count(report.units[name])} on {name}" for name in others]
    running = sum(report.running.values())
    open_ = f" ({words.count(running)} more {'has' if running == 1 else 'have'} not ended)" if running else ""
    ended = sum(report.requests.values())
    parts.append(f"{words.count(ended)} request{'' if ended == 1 else 's'}{open_}")
    if report.started_at is not None:
        parts.append(f"since {words.moment(report.started_at, report.at)}")
    return f"{', '.join(parts)}."


def _guardrails(guardrails: Sequence[GuardrailStatus]) -> str:
    alarms = _alarmed(guardrails)
    if alarms:
        return f"Guardrails alarmed: {', '.join(alarms)}."
    if unhealthy := _unhealthy(guardrails):
        return f"Control itself exceeds the limit of {', '.join(unhealthy)}."
    return "Guardrails quiet." if guardrails else "No guardrails."


def _alarmed(guardrails: Sequence[GuardrailStatus]) -> list[str]:
    return [f"{rail.event} on {rail.treatment}" for rail in guardrails if rail.alarm]


def _unhealthy(guardrails: Sequence[GuardrailStatus]) -> list[str]:
    """Events whose absolute limit control exceeds; each once, with several treatments too."""
    return list(dict.fromkeys(rail.event for rail in guardrails if rail.unhealthy))


def _split(report: Report) -> str:
    if report.sample_ratio.alarm:
        return "The split is not as configured (alarm)."
    if report.sample_ratio.returns:
        return "Units are split as configured, their requests are not (alarm)."
    return "Split as configured (no alarm)."


def next_step(report: Report, decisions: Mapping[str, Decision], missing_s: float) -> str:
    """The sentence about what to do. `decisions` per treatment; `missing_s`: the seconds of traffic that have still to
    be seen before anything is promoted."""
    if report.mode == "aa":
        return "Next: nothing to do; a difference would raise an alarm."
    bad = [name for name, decision in decisions.items() if decision == "do_not_ship"]
    if bad and report.decision in ("do_not_ship", "keep_going"):
        rest = [name for name in decisions if name not in bad]
        on = f" Keep going with {' and '.join(rest)}." if rest else ""
        return f"Next: take {' and '.join(bad)} out of the traffic.{on}"
    if report.decision == "invalid" and report.incomplete:
        return "Next: restore the files of the ledger that cannot be read, or move them away."
    if report.decision == "invalid":
        return "Next: find what differs by arm (see the alarms), then start a new run."
    if report.decision == "ship":
        good = [name for name, decision in decisions.items() if decision == "ship"]
        return f"Next: give {' or '.join(good)} all traffic."
    better = [comparison.treatment for comparison in report.primary if comparison.measured == "better"]
    reasons = [reason for name in better for reason in report.withheld.get(name, [])]
    reasons += [comparison.doubt for comparison in report.primary if comparison.withheld]
    if reasons and not (_alarmed(report.guardrails) or _unhealthy(report.guardrails)):
        return f"Next: nothing is shipped yet. {reasons[0]}"
    return f"Next: {_keep_going(report, missing_s)}"


def _keep_going(report: Report, missing_s: float) -> str:
    undecided = [
        comparison
        for comparison in report.primary
        if comparison.verdict == "undecided" and comparison.units_needed is not None
    ]
    if undecided:
        most = max(undecided, key=lambda comparison: comparison.units_needed or 0)
        if not most.units_needed:
            return "keep going; a verdict is due."
        days = ", and no new ones have come of late"
        if most.days_needed is not None:
            days = f", {words.duration(most.days_needed * 86400)} at the present rate"
        size = words.effect_value(most, most.minimal_effect).lstrip("+")
        return f"about {words.count(most.units_needed)} more units{days}, to find a difference of {size}."
    if alarmed := _alarmed(report.guardrails):
        return f"look into the guardrails that alarmed, {', '.join(alarmed)}."
    if unhealthy := _unhealthy(report.guardrails):
        return f"look into control, which exceeds the limit of {', '.join(unhealthy)}."
    lengths = [comparison for comparison in (*report.primary, *report.secondary) if comparison.metric == LENGTH]
    if different := [effect_sentence(comparison) for comparison in lengths if comparison.measured == "different"]:
        return f"look into the answers' length. {different[0]} If that is meant, declare {LENGTH} with `better`."
    if missing_s > 0 and any(comparison.verdict == "better" for comparison in report.primary):
        return f"keep going for {words.duration(missing_s)} of traffic: hours of a day differ (`min_duration_s`)."
    if all(comparison.verdict == "equivalent" for comparison in report.primary):
        return "take the one that you prefer for other reasons."
    few = [comparison for comparison in report.primary if comparison.verdict == "too_early"]
    if few:
        return f"keep going; {few[0].reason}."
    return "keep going."
