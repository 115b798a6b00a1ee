"""Reports of experiments, as the controller would send them."""

import math
from statistics import NormalDist

from app.experiments.contract.report import (
    Alarm,
    ArmDistribution,
    ArmValue,
    Comparison,
    Distribution,
    Effect,
    GuardrailStatus,
    PlanCounts,
    Report,
    SampleRatio,
)

START = 1762956300.0
"""12 November 2025 14:05 UTC."""

NOW = START + 86400 + 8100

BLUE, GREEN = "smollm2-blue", "smollm2-green"


def values(control: float | None, treatment: float | None, rates: tuple[float, float] | None = None) -> list[ArmValue]:
    """Both arms' values."""
    given = rates or (None, None)
    return [
        ArmValue(arm=BLUE, value=control, units=1204, requests=15922, response_rate=given[0]),
        ArmValue(arm=GREEN, value=treatment, units=1198, requests=15948, response_rate=given[1]),
    ]


TTFT = Comparison(
    metric="ttft",
    statistic="geometric_mean",
    role="primary",
    treatment=GREEN,
    better="lower",
    scale="relative",
    minimal_effect=0.05,
    alpha=0.05,
    effect=Effect(estimate=-0.0769, lower=-0.134, upper=-0.0166),
    log_e_value=5.619,
    p=0.0027,
    verdict="better",
    non_inferior=True,
    since=START + 86000,
    design_effect=2.6,
    without_cold=Effect(estimate=-0.071, lower=-0.129, upper=-0.0091),
    values=values(0.312, 0.288),
)

TAIL = Comparison(
    metric="ttft.p95",
    statistic="p95",
    role="secondary",
    treatment=GREEN,
    better="lower",
    scale="relative",
    minimal_effect=0.10,
    alpha=0.05,
    effect=Effect(estimate=-0.05, lower=-0.19, upper=0.11),
    log_e_value=0.3,
    verdict="undecided",
    units_needed=3200,
    days_needed=2.1,
    values=values(1.42, 1.35),
)

THUMBS = Comparison(
    metric="thumbs",
    statistic="proportion",
    role="secondary",
    treatment=GREEN,
    better="higher",
    scale="relative",
    minimal_effect=0.02,
    alpha=0.05,
    effect=Effect(estimate=0.004, lower=-0.011, upper=0.019),
    log_e_value=0.1,
    verdict="equivalent",
    non_inferior=True,
    since=START + 80000,
    discovery=True,
    values=values(0.712, 0.715, (0.12, 0.124)),
)

EMPTY = Comparison(
    metric="empty",
    statistic="proportion",
    role="secondary",
    treatment=GREEN,
    better="lower",
    scale="relative",
    minimal_effect=0.2,
    alpha=0.05,
    effect=Effect(),
    event_test=Effect(estimate=0.5, lower=-0.6, upper=2.4),
    events={BLUE: 4, GREEN: 6},
    verdict="undecided",
    reason="fewer than 10 events in an arm",
    values=values(0.00025, 0.00038),
)


def guardrail(event: str, log_e_value: float, control: int, treatment: int, *, alarm: bool = False) -> GuardrailStatus:
    """One guardrail's state."""
    return GuardrailStatus(
        event=event,
        treatment=GREEN,
        limit="at most 1.5 times control's rate",
        action="rollback",
        log_e_value=log_e_value,
        threshold=5.298,
        detector=1.2,
        alarm=alarm,
        alarmed_at=START + 3000 if alarm else None,
        events={BLUE: control, GREEN: treatment},
        detectable=2.9,
    )


SPLIT = SampleRatio(
    log_e_value=-2.1,
    alarm=False,
    plans=[
        PlanCounts(plan="0-1a2b3c4d", weights={BLUE: 99, GREEN: 1}, units={BLUE: 23, GREEN: 0}),
        PlanCounts(plan="1-5e6f7a8b", weights={BLUE: 50, GREEN: 50}, units={BLUE: 1181, GREEN: 1198}),
    ],
)

SHARES = [0.01, 0.025, *(number / 20 for number in range(1, 20)), 0.975, 0.99]


def distribution(metric: str, control: float, treatment: float, spread: float) -> Distribution:
    """A lognormal distribution with these medians."""
    normal = NormalDist()
    arms = [
        ArmDistribution(
            arm=arm,
            requests=requests,
            values=[float(f"{median * math.exp(spread * normal.inv_cdf(share)):.3g}") for share in SHARES],
        )
        for arm, median, requests in ((BLUE, control, 15922), (GREEN, treatment, 15948))
    ]
    return Distribution(metric=metric, shares=SHARES, arms=arms)


SHIP = Report(
    experiment="green-float32",
    endpoint="chat",
    mode="ab",
    state="running",
    control=BLUE,
    treatments=[GREEN],
    at=NOW,
    started_at=START,
    decision="ship",
    headline="green-float32 on chat: smollm2-green is better than smollm2-blue.",
    details=[
        "First token 7.7 % earlier (between 1.7 % and 13.4 % earlier). True at any time you look, with 95 % certainty.",
        "1,204 units on smollm2-blue, 1,198 on smollm2-green, 31,870 requests, since 12 November 14:05. "
        "Guardrails quiet. Split as configured (no alarm).",
    ],
    next="Next: give smollm2-green all traffic.",
    plan="1-5e6f7a8b",
    weights={BLUE: 50, GREEN: 50},
    units={BLUE: 1204, GREEN: 1198},
    requests={BLUE: 15922, GREEN: 15948},
    served={BLUE: {BLUE: 15922}, GREEN: {GREEN: 15901, BLUE: 47}},
    forced={BLUE: 12, GREEN: 3},
    carried={BLUE: 0, GREEN: 0},
    rows_lost={BLUE: 0, GREEN: 0},
    in_flight={BLUE: 2.13, GREEN: 1.98},
    primary=[TTFT],
    secondary=[TAIL, THUMBS, EMPTY],
    guardrails=[guardrail("error", 0.7, 14, 12), guardrail("slow", -1.0, 40, 31), guardrail("stalled", 0.0, 0, 0)],
    sample_ratio=SPLIT,
    alarms=[],
    warnings=[],
    strata=10,
    distributions=[
        distribution("ttft", 0.312, 0.288, 0.9),
        distribution("itl", 0.021, 0.0206, 0.3),
        distribution("duration", 4.1, 4.0, 0.7),
        distribution("output_tokens", 180, 181, 0.8),
    ],
)
"""A treatment that is better."""

INVALID = Report(
    experiment="green-float32",
    endpoint="chat",
    mode="ab",
    state="running",
    control=BLUE,
    treatments=[GREEN],
    at=NOW,
    started_at=START,
    decision="invalid",
    headline="green-float32 on chat: no verdict can be trusted, the split is not as configured.",
    details=["1,204 units on smollm2-blue, 838 on smollm2-green."],
    next="Next: find out why exposures of smollm2-green are missing, then start again.",
    weights={BLUE: 50, GREEN: 50},
    units={BLUE: 1204, GREEN: 838},
    requests={BLUE: 15922, GREEN: 11160},
    served={BLUE: {BLUE: 15922}, GREEN: {GREEN: 11160}},
    forced={BLUE: 0, GREEN: 0},
    carried={BLUE: 0, GREEN: 0},
    rows_lost={BLUE: 20, GREEN: 4790},
    in_flight={BLUE: None, GREEN: None},
    primary=[
        Comparison(
            metric="ttft",
            statistic="geometric_mean",
            role="primary",
            treatment=GREEN,
            better="lower",
            scale="relative",
            minimal_effect=0.05,
            alpha=0.05,
            effect=Effect(estimate=-0.07, lower=-0.13, upper=-0.02),
            verdict="invalid",
            reason="the units contradict the weights",
            values=values(0.312, 0.288),
        )
    ],
    secondary=[],
    guardrails=[guardrail("error", 6.2, 14, 80, alarm=True)],
    sample_ratio=SampleRatio(
        log_e_value=40.2,
        alarm=True,
        alarmed_at=START + 7200,
        plans=[PlanCounts(plan="0-1a2b3c4d", weights={BLUE: 50, GREEN: 50}, units={BLUE: 1204, GREEN: 838})],
        attribution=["smollm2-green lost 4,790 rows (30.0 %), smollm2-blue 20 (0.1 %)."],
    ),
    alarms=[
        Alarm(kind="sample_ratio", at=START + 7200, text="The units contradict the weights 50 / 50."),
        Alarm(kind="rows_lost", at=START + 7300, text="17.8 % of the rows of smollm2-green were lost."),
    ],
    warnings=["A router's clock is 5 s off."],
    strata=5,
)
"""An experiment that lost a treatment's rows."""
