"""One measure of one treatment against control: looks, the word for the latest, and its part of reports.

Every statement is about the *current* confidence sequence, and so is every act: the effect may change while a run goes
on, and then a word that was true a week ago is false today. The estimand at time t is the average effect on the traffic
so far. The sequence contains it at all times at once with probability 1 - alpha (`app.experiments.statistics`), and
then all of its words are true, each at its time. What was said earlier remains as an event with its interval.

An interval is about what was measured. Where a `Doubt` is left that the rest would say something else, no word is said.

- What the looks of the past leave behind: points for a plot.
- The rules of verdicts: from a confidence sequence to a verdict, in the direction that is good for the metric.
- The number of units that a verdict needs, from the spread of the recorded values.
- Why an interval may say something else than what is true of all requests: it rests on what was measured alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from app.errors import Conflict
from app.experiments.analysis.aggregates import AnyEstimate, SufficientStatistics
from app.experiments.analysis.arrays import Ints
from app.experiments.analysis.effect_changes import EffectChanges
from app.experiments.analysis.metrics import Measure, why_without_value
from app.experiments.analysis.rare_events import FEW, RareCounts, RareEvents
from app.experiments.contract.report import (
    WORDS,
    ArmValue,
    Better,
    Comparison,
    Decision,
    Effect,
    HistoryPoint,
    Planned,
    Scale,
    Verdict,
)
from app.experiments.statistics.look import MIN_UNITS, NO_SLACK, Estimate, Slack
from app.experiments.statistics.planner import information_needed
from app.experiments.statistics.sequences import Interval, effect_size

# With a doubt, a comparison has no verdict, and nothing ships. Its sentence names what was measured, and the doubt with
# it. Acts that need no certainty, as a pause because of what was measured to be worse, do not wait.

VALUED = "the requests that have a value"
SCORED = "the answers that have a score"
RECORDED = "the requests that were recorded"


class Doubt(NamedTuple):
    """What else could explain an effect."""

    measured_on: str
    """What the interval is about, after "of"."""
    text: str
    """What speaks against more than that: a sentence."""


MAX_POINTS = 500
EVERY_S = 60.0


class EffectHistory:
    """For a plot: one look a minute, and the latest. When they are more than `MAX_POINTS`, every second one is dropped,
    and fewer are kept from then on."""

    def __init__(self) -> None:
        self._points: list[HistoryPoint] = []
        self._every = EVERY_S
        self._latest: HistoryPoint | None = None

    @property
    def points(self) -> list[HistoryPoint]:
        """Oldest first."""
        latest = [self._latest] if self._latest is not None else []
        return self._points + [point for point in latest if not self._points or point.at > self._points[-1].at]

    def add(self, at: float, effect: Effect, log_e_value: float | None, verdict: Verdict) -> None:
        """A look. One that comes too soon after the last one that was kept is kept only until the next."""
        self._latest = HistoryPoint(at=at, effect=effect, log_e_value=log_e_value, verdict=verdict)
        if self._points and at - self._points[-1].at < self._every:
            return
        self._points.append(self._latest)
        if len(self._points) >= MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def state(self) -> dict[str, Any]:
        """The history as plain data."""
        points = [
            [point.at, point.effect.estimate, point.effect.lower, point.effect.upper, point.log_e_value, point.verdict]
            for point in self._points
        ]
        return {"every": self._every, "points": points}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._every = state["every"]
        self._points = [
            HistoryPoint(
                at=at,
                effect=Effect(estimate=estimate, lower=lower, upper=upper),
                log_e_value=log_e_value,
                verdict=verdict,
            )
            for at, estimate, lower, upper, log_e_value, verdict in state["points"]
        ]


AGAINST: tuple[Verdict, ...] = ("worse", "different")
"""Verdicts on a primary metric that speak against a treatment. Where neither direction is better, the arms were meant
to be alike."""


def effect_of(estimate: float, bounds: tuple[float, float] | None, scale: Scale) -> Effect:
    """Converts from the estimate's scale, a logarithm if `scale` is relative, to lifts."""
    convert = math.expm1 if scale == "relative" else float
    lower, upper = (None, None) if bounds is None else (convert(bounds[0]), convert(bounds[1]))
    return Effect(estimate=convert(estimate), lower=lower, upper=upper)


def verdict_of(effect: Effect, measure: Measure) -> Verdict:
    """The verdict of the present interval."""
    low, high = _good_direction(effect, measure.better)
    within = low > -measure.minimal_effect and high < measure.minimal_effect
    if measure.better == "neither":
        return "equivalent" if within else "different" if low > 0 or high < 0 else "undecided"
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "equivalent" if within else "undecided"


def is_non_inferior(effect: Effect, measure: Measure) -> bool:
    """Whether the treatment is worse by at most the minimal effect."""
    low, high = _good_direction(effect, measure.better)
    return low > -measure.minimal_effect and (measure.better != "neither" or high < measure.minimal_effect)


def _good_direction(effect: Effect, better: Better) -> tuple[float, float]:
    """The interval with the good direction above 0. A missing end is infinite."""
    low = -math.inf if effect.lower is None else effect.lower
    high = math.inf if effect.upper is None else effect.upper
    return (-high, -low) if better == "lower" else (low, high)


def decision_of(
    primary: Sequence[Comparison],
    *,
    acted: bool,
    quiet: bool,
    changed: bool,
    same_length: bool,
    settled: bool,
    comparable: bool,
    invalid: bool,
    long_enough: bool,
) -> Decision:
    """The decision on one treatment, from its primary metrics.

    `acted`: a guardrail whose alarm does more than alert has one; `quiet`: no guardrail of any action has or had an
    alarm that no manager has cleared, and control keeps every absolute limit; `changed`: a primary effect has changed
    during the run; `same_length`: answers do not differ in length, or it is declared which length is better; `settled`:
    requests that are still running cannot change a primary verdict; `comparable`: nothing else than the treatment could
    explain its verdicts; `invalid`: something about the traffic makes a primary verdict invalid; `long_enough`: the
    shortest duration before a promotion is over. Guardrails come first: a treatment that fails lacks values, too.
    """
    if acted:
        return "do_not_ship"
    if invalid:
        return "invalid"
    if any(comparison.measured in AGAINST for comparison in primary):
        return "do_not_ship"
    good = all(comparison.non_inferior for comparison in primary) and any(
        comparison.verdict == "better" for comparison in primary
    )
    free = quiet and same_length and settled and comparable and long_enough and not changed
    return "ship" if good and free else "keep_going"


NO_EFFECT = Effect()
RECOUNT_S = 600.0
"""How long fewer requests than before are taken for a recount. Routers send what a controller had not written within
seconds; what is missing for longer is gone."""
POWER = 0.8
CHANGED = 0.2
"""The part of alpha, beside it, with which a primary effect is said to have changed when it has not: 1 % of 5 %."""


class FewEvents(NamedTuple):
    """What the exact test knows, of control and of the treatment."""

    events: RareCounts
    """At the time of the look: the test at another level is one of the same look."""
    requests: tuple[float, float]
    """Of a unit, in the mean."""
    unknown: tuple[int, int]
    """Those without an end."""
    running: tuple[int, int]


@dataclass(frozen=True)
class LatestLook:
    """The result of the latest look."""

    effect: Effect = NO_EFFECT
    log_e_value: float | None = None
    measured: Verdict = "undecided"
    """The verdict on what was measured."""
    reason: str = ""
    look: AnyEstimate | None = None
    event_test: Effect | None = None
    design_effect: float | None = None
    without_cold: Effect | None = None
    units: tuple[int, int] = (0, 0)
    slack: Slack = NO_SLACK
    """What requests without an end allow for."""
    slack_of_running: Slack = NO_SLACK
    """What all requests that are still running allow for."""
    settled: bool = True
    """Whether the requests that are still running cannot change the verdict."""
    slack_of_missing: Slack = NO_SLACK
    """What all requests that ended without a value allow for; of feedback, the scores that one arm gets in excess."""
    complete: bool = True
    """Whether they cannot change the verdict."""
    stays_non_inferior: bool = True
    """Whether they cannot take away from a verdict that the treatment is not inferior, too."""
    few: FewEvents | None = None
    """Of the exact test."""

    @property
    def explicable(self) -> float:
        """The largest effect, on the estimate's scale, that requests without an end or a value could explain."""
        slack = self.slack.plus(self.slack_of_missing)
        return max(slack.down, slack.up)

    @property
    def shown(self) -> Effect:
        """The effect whose interval the verdict is: of the exact test, where there is one."""
        return self.event_test or self.effect


class Told(NamedTuple):
    """The latest event about a word: that it holds, or that it no longer does; `at` a Unix time."""

    word: Verdict
    holds: bool
    at: float


@dataclass
class MetricComparison:
    """`column` is the measure's number in `SufficientStatistics`; `names` are control's and the treatment's."""

    measure: Measure
    column: int
    treatment: int
    names: tuple[str, str]
    alpha: float
    rare: RareEvents | None
    """The exact test, for proportions that are not feedback."""
    level: float
    """The probability that an interval misses the effect: `alpha`, or smaller for a metric that is one of many."""
    discovered: bool | None = None
    """Whether e-BH keeps it, for secondary metrics."""
    response: "MetricComparison | None" = None
    """The comparison of how many answers have a score, for feedback."""
    returns: str = ""
    """How the arms' units differ in how many requests they make, in words; empty without an alarm."""
    known: LatestLook = field(default_factory=LatestLook)
    word: Verdict | None = None
    """What the latest look says, if it is one of `WORDS`: nothing while there is a doubt."""
    since: float | None = None
    """The time since which every look has said so, in Unix seconds."""
    counted: int = 0
    """The requests of both arms with a value, which are never thinned, in the latest look that was no recount. A look
    at fewer is part of one, and says nothing new for `RECOUNT_S`."""
    present: int = 0
    """The same in the latest look."""
    fewer_since: float | None = None
    """The time of the first look of a recount."""
    counted_then: int = 0
    """`counted` when the word, or what was told of it, was last another one."""
    is_recount: bool = True
    """Also before the first look."""
    reached: list[Verdict] = field(default_factory=list)
    """Every such word so far, in the order of their first times."""
    told: Told | None = None
    changes: EffectChanges = field(init=False)
    history: EffectHistory = field(default_factory=EffectHistory)
    looked_at: float = -math.inf
    looked_version: int = -1
    """The version of the data at the latest look, as its owner counts."""

    def __post_init__(self) -> None:
        self.changes = EffectChanges(self.delta, CHANGED * self.alpha, by_level=self.measure.look_scale == "ratio")

    @property
    def key(self) -> str:
        """The key in the journal: the metric and the treatment."""
        return f"{self.measure.key} {self.names[1]}"

    @property
    def delta(self) -> float:
        """The minimal effect on the estimate's scale."""
        return effect_size(self.measure.minimal_effect, self.measure.scale)

    def look(self, collected: SufficientStatistics, sets: Ints, now: float) -> None:
        """Makes a look, of which `say` then takes the word. `sets` as in `Arms.weights`."""
        self.looked_at = now
        self.known = self._looked(collected, sets)
        self.history.add(now, self.known.effect, self.known.log_e_value, self.verdict)
        self.present = sum(collected.requests_with_value(self.column, arm) for arm in (0, self.treatment))
        self.is_recount = self.present < self.counted
        if self.is_recount:
            self.fewer_since = now if self.fewer_since is None else self.fewer_since
            return
        self.counted, self.fewer_since = self.present, None
        if self.measure.role == "primary" and isinstance(look := self.known.look, Estimate) and look.enough:
            look = look.unadjusted or look  # what comes after a look is no sum of adjusted estimates
            self.changes.add(look, now, collected.share)

    def _end_recount(self, now: float) -> None:
        """Takes what there is for all there is, once it is too late for the rest to come."""
        if self.fewer_since is not None and now - self.fewer_since >= RECOUNT_S:
            self.counted, self.fewer_since, self.is_recount = self.present, None, False
            self.changes.begin_anew()

    def say(self) -> None:
        """Takes the word of the latest look, once the level is that of all metrics' looks together."""
        if self.is_recount:
            return
        word = self.verdict if self.verdict in WORDS else None
        if word != self.word:
            self.word, self.since = word, None if word is None else self.looked_at
            self.counted_then = self.counted

    def assume(self, level: float, discovered: bool, sets: Ints) -> None:
        """Takes another level, and what follows from it of the latest look. `sets` as in `Arms.weights`."""
        self.discovered = discovered
        if level == self.level:
            return
        self.level, known = level, self.known
        if known.few is not None:
            self.known = self._tested(known, known.few, sets)
        elif known.look is not None and known.measured != "too_early":
            self.known = self._judged(known, known.look)

    @property
    def doubt(self) -> Doubt | None:
        """What else could explain what was measured; None where nothing is claimed, or nothing could."""
        measured, non_inferior = self.known.measured, is_non_inferior(self.known.shown, self.measure)
        if measured not in WORDS and not non_inferior:
            return None
        if not self.known.complete and self.measure.feedback:
            return Doubt(
                SCORED,
                f"It is not shown that equally many answers get {self.measure.metric} on both arms: those that one "
                "arm gets in excess could explain it.",
            )
        if not self.known.complete:
            return Doubt(
                VALUED,
                f"Requests without a value could explain {self.measure.key}, had they been the slowest or the fastest "
                "of all.",
            )
        return Doubt(RECORDED, self.returns) if self.returns else None

    @property
    def verdict(self) -> Verdict:
        """The present verdict, whatever alarms say."""
        return "undecided" if self.known.measured in WORDS and self.doubt is not None else self.known.measured

    def _looked(self, collected: SufficientStatistics, sets: Ints) -> LatestLook:
        look = collected.look(self.column, self.treatment)
        units = look.units if look else self._units(collected)
        if min(units) < MIN_UNITS:
            reason = _too_few(units, self._units(collected), self.names) + self._why_none(collected)
            return LatestLook(measured="too_early", reason=reason, look=look, units=units)
        if self.measure.kind == "proportion" and (rare := self._few_events(collected)):
            return self._exact(rare, collected, sets, units)
        if look is None:
            return LatestLook(reason="no estimate yet: too few requests, or values that do not differ", units=units)
        return self._interval(look, collected, units)

    def _units(self, collected: SufficientStatistics) -> tuple[int, int]:
        return collected.units(self.column, 0), collected.units(self.column, self.treatment)

    def _why_none(self, collected: SufficientStatistics) -> str:
        """Why an arm that has answered has no unit with a value; empty if each has one, or nothing explains it."""
        arms = (0, self.treatment)
        if not any(collected.requests[arm] and not collected.units(self.column, arm) for arm in arms):
            return ""
        return f": {why}" if (why := why_without_value(self.measure)) else ""

    def _few_events(self, collected: SufficientStatistics) -> str:
        """The reason why there is no interval; empty if there is one."""
        events = [collected.sums(self.column, arm)[1] for arm in (0, self.treatment)]
        return f"fewer than {FEW} events in an arm" if min(events) < FEW else ""

    def _exact(self, reason: str, collected: SufficientStatistics, sets: Ints, units: tuple[int, int]) -> LatestLook:
        if self.rare is None or not self.rare.applies:
            return LatestLook(reason=reason, units=units)
        events = self.rare.at_present()
        if events.is_repeated:
            reason += ", and several of one unit"
        arms = (0, self.treatment)
        control, treated = (
            collected.requests_with_value(self.column, arm) / own for arm, own in zip(arms, units, strict=True)
        )
        unknown, running = (
            (int(of[0].sum()), int(of[self.treatment].sum())) for of in (collected.unknown, collected.running)
        )
        few = FewEvents(events, (control, treated), unknown, running)
        log_e_value = events.log_e_value(sets, few.requests)
        return self._tested(LatestLook(log_e_value=log_e_value, reason=reason, units=units, few=few), few, sets)

    def _tested(self, known: LatestLook, few: FewEvents, sets: Ints) -> LatestLook:
        """The look with the exact test and what follows from it."""
        effect, after_all = (
            few.events.effect(sets, self.level, few.requests, ends) for ends in (few.unknown, few.running)
        )
        allowed = _allows(effect, self.measure)
        settled = _allows(after_all, self.measure) == allowed
        return replace(known, event_test=effect, measured=allowed[0], settled=settled)

    def _interval(self, look: AnyEstimate, collected: SufficientStatistics, units: tuple[int, int]) -> LatestLook:
        slack = collected.missing.slack_of_unended(self.column, self.treatment, collected.unknown)
        known = LatestLook(
            log_e_value=look.log_e_value(effect=self.delta, alpha=self.alpha, slack=slack),
            look=look,
            design_effect=collected.design_effect(self.column, self.treatment, look),
            without_cold=self._without_cold(collected),
            units=units,
            slack=slack,
            slack_of_running=collected.missing.slack_of_unended(self.column, self.treatment, collected.running),
            slack_of_missing=self._slack_of_missing(collected),
        )
        return self._judged(known, look)

    def _slack_of_missing(self, collected: SufficientStatistics) -> Slack:
        if self.response is None:
            return collected.missing.slack_of_missing(self.column, self.treatment)
        return collected.missing.slack_of_scores(self.column, self.treatment, self.rate_of_scores(collected))

    def rate_of_scores(self, collected: SufficientStatistics) -> Interval | None:
        """The interval of the arms' shares of answers with a score, if it compares scores and there is one."""
        return None if self.response is None else self.response.interval_of_all(collected)

    def interval_of_all(self, collected: SufficientStatistics) -> Interval | None:
        """Of a rate on the present records, whatever other metrics are looked at; None if there is none."""
        values = {collected.value(self.column, arm) for arm in (0, self.treatment)}
        if values == {1.0}:
            return Interval(0.0, 0.0)
        look = None if self._few_events(collected) else collected.look(self.column, self.treatment)
        return None if look is None else look.interval(effect=self.delta, alpha=self.alpha)

    def _judged(self, known: LatestLook, look: AnyEstimate) -> LatestLook:
        """The look with its interval and what follows from it."""
        effect = self._effect(look, known.slack)
        word, non_inferior = allowed = _allows(effect, self.measure)
        after_all, with_missing = (
            _allows(self._effect(look, slack.plus(known.slack_of_missing)), self.measure)
            for slack in (known.slack_of_running, known.slack)
        )
        return replace(
            known,
            effect=effect,
            measured=word,
            settled=after_all == allowed,
            complete=with_missing[0] == word if word in WORDS else with_missing == allowed,
            stays_non_inferior=not non_inferior or with_missing[1] or word not in WORDS,
        )

    def _effect(self, look: AnyEstimate, slack: Slack) -> Effect:
        bounds = look.interval(effect=self.delta, alpha=self.alpha, level=self.level, slack=slack)
        return effect_of(look.est, bounds, self.measure.scale)

    def _without_cold(self, collected: SufficientStatistics) -> Effect | None:
        if self.measure.feedback or not collected.has_cold_minutes:
            return None
        look = collected.look(self.column, self.treatment, without_cold=True)
        if look is None:
            return NO_EFFECT
        return self._effect(look, collected.missing.slack_of_unended(self.column, self.treatment, collected.unknown))

    def tell(self, *, invalid: bool, now: float) -> bool:
        """Notes what an event has to say of the present word, if one is due. A word that is new is told at once; that
        the last one no longer holds, or that one holds again, at most once a minute: words may change with each look.
        """
        if self.is_recount:
            self._end_recount(now)
            return False
        word, last = None if invalid else self.word, self.told
        if word is not None and word not in self.reached:
            self.reached.append(word)
            self.told = Told(word, holds=True, at=now)
        elif last is None or now - last.at < EVERY_S or word == (last.word if last.holds else None):
            return False
        else:
            self.told = Told(word or last.word, word is not None, now)
        self.counted_then = self.counted
        return True

    def units_needed(self) -> int | None:
        """Units still needed for a verdict at the minimal effect; None before there is an estimate, and where requests
        without an end or a value could explain as much: more of them change nothing.
        """
        look, left = self.known.look, self.delta - self.known.explicable
        if look is None or left <= 0:
            return None
        needed = information_needed(left, minimal_effect=self.delta, alpha=self.level, power=POWER) / look.information
        return max(0, math.ceil((needed - 1) * clusters(look)))

    def comparison(
        self,
        collected: SufficientStatistics,
        *,
        invalid: str,
        units_per_day: float | None,
        version: int,
        now: float,
        with_values: bool = True,
    ) -> Comparison:
        """The comparison for a report of the Unix time `now`. `invalid`: the reasons why no verdict counts, empty if
        nothing is wrong. `version`: that of the data. `with_values`: includes the metric's value in each arm, which
        takes a while for quantiles.
        """
        outdated = self.looked_version < version
        known, measure, doubt = self.known, self.measure, None if invalid else self.doubt
        verdict: Verdict = "invalid" if invalid else self.verdict
        needed = self.units_needed() if known.measured == verdict == "undecided" else None
        return Comparison(
            metric=measure.key,
            statistic=measure.statistic,
            role=measure.role,
            treatment=self.names[1],
            better=measure.better,
            scale=measure.scale,
            minimal_effect=measure.minimal_effect,
            alpha=self.level,
            effect=known.effect,
            log_e_value=known.log_e_value,
            p=None if known.log_e_value is None else min(1.0, math.exp(-known.log_e_value)),
            verdict=verdict,
            withheld=known.measured if not invalid and known.measured != verdict else None,
            doubt="" if doubt is None else doubt.text,
            measured_on="" if doubt is None else doubt.measured_on,
            non_inferior=not invalid and is_non_inferior(known.shown, measure) and known.stays_non_inferior,
            since=self.since if verdict == self.word else None,
            no_longer=self.told.word if self.told is not None and verdict not in WORDS else None,
            looked_at=self.looked_at if outdated else now,
            outdated=outdated,
            reason=invalid or known.reason,
            discovery=self.discovered,
            units_needed=needed,
            days_needed=needed / units_per_day if needed is not None and units_per_day else None,
            design_effect=known.design_effect,
            variance_ratio=known.look.variance_ratio if isinstance(known.look, Estimate) else None,
            event_test=known.event_test,
            events=self._events(collected) if known.event_test else None,
            without_cold=known.without_cold,
            values=[self._value(collected, arm) for arm in (0, self.treatment)] if with_values else [],
        )

    def _events(self, collected: SufficientStatistics) -> dict[str, int]:
        events = (int(collected.sums(self.column, arm)[1]) for arm in (0, self.treatment))
        return dict(zip(self.names, events, strict=True))

    def _value(self, collected: SufficientStatistics, arm: int) -> ArmValue:
        rate = collected.response_rate(self.measure.metric, arm) if self.measure.feedback else None
        units = self.known.units[0 if arm == 0 else 1]
        requests = collected.requests_with_value(self.column, arm)
        value = collected.value(self.column, arm)
        return ArmValue(
            arm=self.names[0 if arm == 0 else 1], value=value, units=units, requests=requests, response_rate=rate
        )

    def state(self) -> dict[str, Any]:
        """State that cannot be recomputed from the exposures, as plain data."""
        return {
            "word": self.word,
            "since": self.since,
            "counted": self.counted,
            "counted_then": self.counted_then,
            "reached": list(self.reached),
            "told": self.told,
            "changes": self.changes.state(),
            "history": self.history.state(),
        }

    def landmarks(self) -> dict[str, Any]:
        """The part of the state on which the words of reports rest, as plain data; it changes only with them."""
        return {
            "word": self.word,
            "since": self.since,
            "counted": self.counted_then,
            "reached": list(self.reached),
            "told": self.told,
            "changes": self.changes.landmarks(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`, or from `landmarks`."""
        self.since = state["since"]
        if "verdict" in state:  # of a version in which the first word was final
            self.word = state["verdict"]
            self.reached = [self.word] if self.word else []
        else:
            self.word, self.reached = state["word"], list(state["reached"])
            counted = state.get("counted", 0)
            self.counted, self.counted_then = max(self.counted, counted), state.get("counted_then", counted)
            if state["changes"] is not None:
                self.changes.restore(state["changes"])
        if told := state.get("told"):
            self.told = Told(*told)
        elif self.reached:  # of a version that told each word once
            self.told = Told(self.reached[-1], holds=True, at=self.since or 0.0)
        if "history" in state:
            self.history.restore(state["history"])


def _too_few(compared: tuple[int, int], units: tuple[int, int], names: tuple[str, str]) -> str:
    """Why it is too early. `compared`: the units in strata that both arms share, of all `units` that have a value."""
    all_, few, name = min(zip(units, compared, names, strict=True))
    if all_ >= MIN_UNITS:
        few, all_, name = min(zip(compared, units, names, strict=True))
    so_far = f"{all_} unit{'' if all_ == 1 else 's'} on {name} {'has' if all_ == 1 else 'have'} a value so far"
    if all_ < MIN_UNITS:
        return f"{so_far}, {MIN_UNITS} are needed"
    return f"{so_far}, {few} of them in strata that both arms have, where {MIN_UNITS} are needed"


def _allows(effect: Effect, measure: Measure) -> tuple[Verdict, bool]:
    return verdict_of(effect, measure), is_non_inferior(effect, measure)


def clusters(look: AnyEstimate) -> int:
    """Units of both arms together."""
    return look.clusters if isinstance(look, Estimate) else sum(look.units)


def planned(comparing: MetricComparison, effect: float, power: float, units_per_day: float | None) -> Planned:
    """The plan for an increase, from the latest look; a decrease needs the same number of units.

    Raises Conflict before there is an estimate, and where requests without an end or a value could explain the effect.
    """
    look, measure = comparing.known.look, comparing.measure
    if look is None:
        raise Conflict(f"{measure.key}: nothing is known of its spread yet; {comparing.known.reason}")
    size = effect_size(effect, measure.scale) - comparing.known.explicable
    if size <= 0:
        raise Conflict(f"{measure.key}: requests without an end or a value could explain as much; more change nothing")
    information = information_needed(size, minimal_effect=comparing.delta, alpha=comparing.alpha, power=power)
    so_far = clusters(look)
    share = look.units[1] / sum(look.units)
    # However large the effect is, there is no verdict before both arms have MIN_UNITS.
    least = math.ceil(MIN_UNITS * sum(look.units) / max(1, min(look.units)))
    units = max(math.ceil(information / look.information * so_far), least)
    missing = max(0, units - so_far)
    return Planned(
        metric=measure.key,
        effect=effect,
        power=power,
        alpha=comparing.alpha,
        treatment_share=share,
        units=units,
        units_so_far=so_far,
        units_per_day=units_per_day,
        days=0.0 if not missing else missing / units_per_day if units_per_day else None,
        design_effect=comparing.known.design_effect,
    )
