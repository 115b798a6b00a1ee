"""A router with experiments at several stages, and a controller in memory that accepts decisions on one of them."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from app.experiments.api import ControllerApi
from app.experiments.contract.journal import JournalEntry
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import AutomationStatus, Effect, Foreseen, HistoryPoint, PlanCounts, Report
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.experiments.deciding_controller import DecidingController, DecidingReader
from tests.support.experiments.reader import GREEN_FLOAT32, FixedEvidence
from tests.support.experiments.reports import NOW, SHIP, START
from tests.support.experiments.rig import BLUE, GREEN
from tests.support.processes.fake_control_plane import MemoryControl

OTHERS = {
    "int8-weights": ("summaries", "llama-bf16", "llama-int8", 0.09, 0.03),
    "long-context": ("documents", "qwen-32k", "qwen-128k", -0.02, 0.08),
}
"""Other experiments: endpoint, control, treatment, the estimate, and half of its interval."""

RAMP = {1: (227, 3), 5: (217, 11), 25: (172, 61), 50: (848, 863)}
"""The treatment's percentages so far, with the units on control and treatment at each."""

STEP_S = 9000.0
"""The duration of each step except the last."""


def on_a_ramp() -> Report:
    """`SHIP` with the units of `RAMP`, and a verdict since the moment at which the chart shows it."""
    plans = [
        PlanCounts(
            plan=f"{number}-5e6f7a8b", weights={BLUE: 100 - share, GREEN: share}, units={BLUE: blue, GREEN: green}
        )
        for number, (share, (blue, green)) in enumerate(RAMP.items())
    ]
    units = {arm: sum(plan.units[arm] for plan in plans) for arm in (BLUE, GREEN)}
    requests = {BLUE: 19424, GREEN: 12446}
    (primary,) = SHIP.primary
    sentence = f"{units[BLUE]:,} units on {BLUE}, {units[GREEN]:,} on {GREEN}, {sum(requests.values()):,} requests, "
    return msgspec.structs.replace(
        SHIP,
        details=[SHIP.details[0], sentence + SHIP.details[1].partition("requests, ")[2]],
        units=units,
        requests=requests,
        primary=[msgspec.structs.replace(primary, since=first_look_below_zero(primary.effect))],
        sample_ratio=msgspec.structs.replace(SHIP.sample_ratio, plans=plans),
        distributions=[
            msgspec.structs.replace(
                distribution,
                arms=[msgspec.structs.replace(arm, requests=requests[arm.arm]) for arm in distribution.arms],
            )
            for distribution in SHIP.distributions
        ],
    )


def interval_at(part: float, last: Effect) -> Effect:
    """The interval after this part of the time, which ends as `last`."""
    assert None not in (last.estimate, last.lower, last.upper)
    middle, lower, upper = (math.log1p(number or 0.0) for number in (last.estimate, last.lower, last.upper))
    now = middle + 0.05 * math.sin(9 * part) * (1 - part)
    wider = 1 / math.sqrt(part)
    return Effect(
        estimate=math.expm1(now),
        lower=math.expm1(now + (lower - middle) * wider),
        upper=math.expm1(now + (upper - middle) * wider),
    )


LOOKS = 96


def first_look_below_zero(last: Effect) -> float:
    """When the treatment was better for the first time, in Unix seconds."""
    parts = (number / LOOKS for number in range(1, LOOKS + 1))
    return next(START + part * (NOW - START) for part in parts if (interval_at(part, last).upper or 0.0) < 0)


SHOWN = on_a_ramp()
"""The report that the pages show by default."""


class Evidence(FixedEvidence):
    """A day of looks, whose intervals become narrower until the last, which is the report's."""

    def __init__(self, report: Report = SHOWN, looks: int = LOOKS) -> None:
        super().__init__(report)
        self.looks = looks

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]:
        return [self._look(number / self.looks, number) for number in range(1, self.looks + 1)]

    def _look(self, part: float, number: int) -> HistoryPoint:
        at = START + part * (NOW - START)
        (primary,) = SHOWN.primary
        is_better = primary.since is not None and at >= primary.since
        return HistoryPoint(
            at=at,
            effect=interval_at(part, primary.effect),
            log_e_value=float(number),
            verdict="better" if is_better else "undecided",
        )


def recent(name: str, endpoint: str, control: str, treatment: str, estimate: float, half: float) -> Report:
    """The report of another experiment, which has started recently."""
    (first,) = SHIP.primary
    effect = Effect(estimate=estimate, lower=estimate - half, upper=estimate + half)
    is_worse = estimate - half > 0
    comparison = msgspec.structs.replace(
        first, treatment=treatment, effect=effect, verdict="worse" if is_worse else "undecided", values=[]
    )
    return msgspec.structs.replace(
        SHIP,
        experiment=name,
        endpoint=endpoint,
        control=control,
        treatments=[treatment],
        decision="do_not_ship" if is_worse else "keep_going",
        headline=f"{name} on {endpoint}: "
        + (f"{treatment} is worse than {control}." if is_worse else "no verdict yet."),
        next=f"Next: keep {control}." if is_worse else "Next: wait for about 3,200 units more.",
        units={control: 310, treatment: 302},
        primary=[comparison],
        guardrails=[],
    )


class Reader(DecidingReader):
    """A reader that also has the evidence of `OTHERS`."""

    def __init__(self) -> None:
        super().__init__()
        self.others = {name: Evidence(recent(name, *rest)) for name, rest in OTHERS.items()}
        for name, (endpoint, *_) in OTHERS.items():
            self.declared[name] = self.declared["green-float32"].model_copy(update={"endpoint": endpoint})

    def analysis(self, name: str) -> FixedEvidence | None:
        return self.others.get(name) or super().analysis(name)

    def acting(self, report: Report) -> AutomationStatus | None:
        return (
            AutomationStatus(state="running", revision=1, share=5, next_share=25)
            if report.experiment in OTHERS
            else self.doing
        )

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        super().foresee(report, request)
        before, after = {BLUE: 50, GREEN: 50}, {BLUE: 0, GREEN: 100}
        return Foreseen(revision=7, state="running", before=before, after=after, stopped=[])


class Compared:
    """A router with an experiment that managers can decide on, and a controller in memory."""

    def __init__(self) -> None:
        self.controller = DecidingController()
        self.reader = self.controller.reader = Reader()
        self.controller.answers = ControllerApi(self.reader)
        self.controller.acting = AutomationStatus(state="running", revision=7, step=3, share=50, next_share=100)
        self.reader.judged = Evidence()
        for number, share in enumerate([*RAMP][1:], 1):
            weights, since = {BLUE: 100 - share, GREEN: share}, START + number * STEP_S
            plan = {
                "endpoint": "chat",
                "generation": number,
                "plan": f"{number}-5e6f7a8b",
                "weights": weights,
                "since": since,
                "by": "green-float32",
                "reason": "the ramp's next step",
            }
            self.reader.journal.append(JournalEntry(since, "plan", None, plan))
        self.config: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {BLUE: 50, GREEN: 50}, "sticky": {"by": "conversation"}},
                "assistant": {"tasks": ["chat"], "traffic": {BLUE: 99, GREEN: 1}, "sticky": {"by": "conversation"}},
                **{
                    endpoint: {
                        "tasks": ["chat"],
                        "traffic": {control: 95, treatment: 5},
                        "sticky": {"by": "conversation"},
                    }
                    for endpoint, control, treatment, *_ in OTHERS.values()
                },
            },
            "deployments": {
                name: {"url": f"http://127.0.0.1:1/{name}", "model": name}
                for name in (BLUE, GREEN, *(name for _, *arms, _, _ in OTHERS.values() for name in arms))
            },
            "experiments": {
                "green-float32": GREEN_FLOAT32,
                **{
                    name: {**GREEN_FLOAT32, "endpoint": endpoint, "control": control, "treatments": [treatment]}
                    for name, (endpoint, control, treatment, *_) in OTHERS.items()
                },
                "next": {**GREEN_FLOAT32, "state": "draft"},
            },
        }
        self.control = MemoryControl(self.config, lambda config: self.router.reconfigure(config))
        self.router = Router(
            RuntimeEnvironment(internal_key="internal"),
            random=Random(7),
            control=self.control,
            controller=self.controller,
        )
        self.router.reconfigure(self.config)
        self.url = ""

    def report(self, report: Report) -> None:
        """Makes the controller report this from now on."""
        self.reader.judged = Evidence(report)

    def act(self, **changes: Any) -> None:
        """Changes fields of the experiment's `AutomationStatus`."""
        assert self.controller.acting is not None
        self.controller.acting = msgspec.structs.replace(self.controller.acting, **changes)
