"""``python -m tests.simulation FILE [RUNS]``: the full tables, as Markdown, with the design's own numbers."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import astuple
from pathlib import Path

from tests.simulation import (
    alarms,
    audits,
    delays,
    false_positives,
    feedback,
    flaps,
    guardrails,
    large_users,
    outages,
    plans,
    quantiles,
    ramps,
    reports,
    sample_ratios,
    shadows,
    small_arms,
    verdicts,
)
from tests.simulation.pool import processes

INTRODUCTION = """# Experiments, measured

This page shows how the statistics of [experiments](../split/report.md) behave on simulated traffic of a known truth.
`make simulate RUNS={runs}` wrote it; `make test-simulation` checks its bounds. Seeds are fixed: the same code gives the
same numbers. With 500 runs, a measured 5 % is accurate to ±2 points, and 50 % to ±4.5.

The numbers in brackets are the design's. They were measured with another program, most of them with 2,000 runs. The
worlds are described in `tests/simulation/worlds.py`. Their spreads were chosen so that the columns of tests that look
once are close to the design's. Event rates that the design does not give (`truncated` 9 %, `slow` 5 %, `empty` 0.5 % on
control) were chosen so that alarms come about as late. The other numbers follow from these.

Three things differ from the design. Peeked tests wait for 30 users in each arm, as the confidence sequence does. The
80 % power of the test that looks once is computed from the standard error. The rule "a window above 2 %" uses about 150
answers.
"""


Cell = str | float | tuple[float, float]
"""A text, a number, or a number with the design's number."""


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], form: str, forms: Mapping[int, str] = {}) -> str:
    """`form` formats numbers; `forms` overrides it by column."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(cell, (forms or {}).get(place, form)) for place, cell in enumerate(row)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: Cell, form: str) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, tuple):
        return f"{_text(cell[0], form)} ({_text(cell[1], form)})" if math.isfinite(cell[1]) else _text(cell[0], form)
    return form.format(cell) if math.isfinite(cell) else "-"


def false_positive_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## False positives under continuous looks\n\nNo difference, {count} runs each, 10,000 requests of 800 users, "
        f"{false_positives.LOOKS} looks, alpha 5 %. CS: the confidence sequence ever excludes 0. Ignoring users: the "
        "same on single requests. Peeked: |z| above 1.96 at any look. Fixed: at the last.\n"
    )
    columns = ["world", "CS", "CS ignoring users", "peeked, clustered", "peeked, single", "fixed", "fixed, single"]
    rows: list[list[Cell]] = []
    for row in false_positives.ROWS:
        measured = astuple(false_positives.rates(executor, row, count))
        rows.append([row.name, *zip(measured, row.design, strict=True)])
    yield table(columns, rows, "{:.3f}")
    yield f"Harder worlds, {count} runs each.\n"
    rows = []
    for hard in false_positives.HARDER:
        rates = false_positives.rates(executor, hard.row, count, hard.looks)
        rows.append([hard.row.name, f"{rates.cs:.3f} ({hard.design})", rates.cs_single, rates.peeked, rates.fixed])
    yield table(["world", "CS", "CS ignoring users", "peeked, clustered", "fixed"], rows, "{:.3f}")


def small_arm_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Small arms and rare values\n\nNo difference, {count} runs each, {small_arms.REQUESTS:,} requests, "
        f"{small_arms.LOOKS} looks; the columns are the treatment's shares of the traffic. The share of runs that ever "
        "exclude 0 (alpha is 5 %); in brackets, with each arm's variance from its own units alone.\n"
    )
    rows: list[list[Cell]] = []
    for name in small_arms.TAILS:
        rates = [small_arms.rejections(executor, name, share, count) for share in small_arms.SHARES]
        rows.append([name, *(one if own is None else (one, own) for one, own in rates)])
    yield table(["metric", *small_arms.SHARES], rows, "{:.3f}")


def verdict_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Requests until the verdict\n\n{count} runs each, up to 40,000 requests of 12,000 users; medians. Fixed: a "
        "test that looks once, with 80 % power. Missed: the share of runs whose confidence sequence ever missed "
        "the true effect (alpha is 5 %).\n"
    )
    columns = ["metric, true effect", "CS", "power", "fixed", "ratio", "peeked finds at", "missed", "wrong sign"]
    rows: list[list[Cell]] = []
    for row in verdicts.ROWS:
        result = verdicts.verdicts(executor, row, count)
        requests, power, fixed, peeked = row.design
        rows.append(
            [
                row.name,
                (result.requests, requests),
                (result.power, power),
                (result.fixed, fixed),
                (result.ratio, requests / fixed),
                (result.peeked, peeked),
                result.missed,
                result.wrong_sign,
            ]
        )
    yield table(columns, rows, "{:,.0f}", {2: "{:.2f}", 4: "{:.2f}", 6: "{:.3f}", 7: "{:.3f}"})
    promise = plans.promise(executor, 10 * count)
    yield (
        f"The planner asks for {promise.units:,} units for a lift of 10 %. With them {promise.power:.1%} of "
        f"{10 * count} runs reach a verdict (80 % promised; design 85.5 %), half of them by {promise.half:.0%} of the "
        f"units (design 53 %); without an effect {promise.false:.1%} (design 2.0 %).\n"
    )


def quantile_table(executor: Executor, count: int) -> Iterator[str]:
    yield f"## Quantiles\n\nFalse positives of quantiles of TTFT, {count} runs, {quantiles.LOOKS} looks.\n"
    rows: list[list[Cell]] = []
    for name, (_, _, design) in quantiles.ROWS.items():
        sequence, peeked = quantiles.rejections(executor, name, count)
        rows.append([name, (sequence, design), peeked])
    yield table(["quantile", "CS", "peeked"], rows, "{:.3f}")


def coverage_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Users who come and go\n\nCoverage of the true effect at all of {quantiles.LOOKS} looks, {count} runs: "
        f"{quantiles.LEAVING.users:,} users, of whom each stays for {quantiles.LEAVING.stay:.0%} of the time, a ramp "
        f"from {quantiles.LEAVING.shares[0]:.0%} on, and strata of prompt lengths.\n"
    )
    rows: list[list[Cell]] = []
    for name, p in (("geometric mean", None), ("p50", 0.5), ("p90", 0.9)):
        rows.append([name, quantiles.coverage(executor, p, count)])
    yield table(["ttft", "coverage"], rows, "{:.3f}")


def guardrail_tables(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Guardrails\n\nMedian requests of the endpoint until the guardrail `error` alarms, and those on the "
        f"treatment, {count} runs. Tolerance 1.5, control fails 0.5 %, alpha 0.25 %.\n"
    )
    rows: list[list[Cell]] = []
    for (weight, rate), design in alarms.DESIGN.items():
        alarm = alarms.median_alarm(executor, alarms.Rates(weight, alarms.CONTROL, rate), count)
        requests, treated = (alarm.requests, design[0]), (alarm.treated, design[1])
        rows.append([f"{weight:.0%}", f"{rate:.1%}", requests, treated])
    yield table(["weight", "treatment fails", "requests", "on the treatment"], rows, "{:,.0f}")
    yield (
        "A late regression, after many healthy events: the treatment's requests until the alarm of the whole run, and "
        f"of the detector, {count} runs.\n"
    )
    rows = []
    for (weight, rate, healthy), (by_design, _) in alarms.LATE.items():
        whole, detector = alarms.median_late(executor, alarms.Rates(weight, alarms.CONTROL, rate), healthy, count)
        rows.append([f"{healthy:,}", f"{weight:.0%}", f"{rate:.1%}", (whole, by_design), detector])
    yield table(["healthy events", "weight", "treatment fails", "whole run", "detector"], rows, "{:,.0f}")
    yield f"False alarms at 5 % without a difference, under the ramp, {count} runs.\n"
    rows = []
    for world, rules in ramps.DESIGN_FALSE.items():
        rows.append([world, *zip(ramps.false_alarm_rates(executor, world, count), rules, strict=True)])
    yield table(["errors", *ramps.RULES], rows, "{:.3f}")
    yield (
        f"Running conversations, and users whose requests fail every day; no difference, one guardrail at 5 % without "
        f"tolerance, {count} runs.\n"
    )
    yield table(
        ["world", "false alarms"],
        [[case.name, guardrails.alarms(executor, case, count)] for case in guardrails.CASES],
        "{:.3f}",
    )
    yield f"A whole ramp, 1-5-25-50 % with 20,000 requests a step and four guardrails, {count} runs.\n"
    rows = []
    for scenario in ramps.SCENARIOS:
        rolled_back, until = ramps.rollbacks(executor, scenario, count)
        of_design = scenario.design_treated
        answer: Cell = "-" if of_design is None else (until, of_design)
        rows.append([scenario.name, (rolled_back, scenario.design_rolled_back), answer])
    yield table(["treatment", "rolled back", "requests on the treatment until then"], rows, "{:,.0f}", {1: "{:.3f}"})


def large_user_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## A few large users\n\nNo difference, {count} runs each, {large_users.REQUESTS:,} requests, of which a few "
        f"users with large prompts make {large_users.SHARE:.0%}. The share of runs that ever exclude 0 (alpha is 5 %); "
        "in brackets, with a stratum of their own. Last: half a percent of the requests, each its own unit.\n"
    )
    rows: list[list[Cell]] = []
    for large in large_users.LARGE:
        rates = [large_users.rejections(executor, large, count, merge=merge) for merge in (True, False)]
        rows.append([f"{large} users", (rates[0], rates[1])])
    rates = [large_users.rejections_of_requests(executor, count, merge=merge) for merge in (True, False)]
    yield table(["large", "false"], [*rows, ["requests", (rates[0], rates[1])]], "{:.3f}")


def outage_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Outages and absolute limits\n\n{count} runs each of three hours with a request a second, of which "
        f"{outages.USUALLY_FAILS:.1%} fail; for {outages.LASTS_S / 60:.0f} minutes all do. The limit is "
        f"{outages.LIMIT:.0%}, alpha {outages.ALPHA:.0%}. The median of the treatment's requests until the alarm.\n"
    )
    rows: list[list[Cell]] = [
        [outage.name, *outages.alarms(executor, outage, count)] for outage in (*outages.OF_BOTH, *outages.OF_ONE)
    ]
    yield table(["all requests fail of", "alarms", "its requests"], rows, "{:.3f}", {2: "{:,.1f}"})


def sample_ratio_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Sample ratio\n\nUnits until the alarm where the treatment loses a share of its exposures; looked at every "
        f"25 units, up to 200,000; {count} runs, alpha 0.1 %.\n"
    )
    rows: list[list[Cell]] = []
    for (loss, weight), design in sample_ratios.DESIGN.items():
        median, share = sample_ratios.alarms(executor, loss, weight, count)
        rows.append([f"{loss:.0%}", f"{weight:.0%}", (median, design), f"{share:.0%}"])
    rows.extend(
        ["none", f"{weight:.0%}", "-", f"{sample_ratios.alarms(executor, 0.0, weight, count)[1]:.2%}"]
        for weight in (0.01, 0.5)
    )
    yield table(["loss", "weight", "units", "runs with an alarm"], rows, "{:,.0f}")
    yield (
        f"One run of {count} is {1 / count:.2%}, so a single alarm by chance is above alpha. Without a loss, "
        "`make test-simulation` checks a bound of 0.3 % with 400 runs.\n"
    )


def feedback_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        "## Delayed feedback\n\nUsers of both arms are equally content. The treatment's users give feedback twice as "
        f"fast, and discontent users sooner than content ones. False verdicts of {count} runs.\n"
    )
    rates = [feedback.false_verdicts(executor, matured, count) for matured in (True, False)]
    rows: list[list[Cell]] = [["matured exposures", (rates[0], 0.023)], ["counted at once", (rates[1], 0.55)]]
    yield table(["feedback", "false verdicts"], rows, "{:.3f}")


def delay_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Until a bad treatment is stopped\n\nThe real controller, its journal and its plans, fed by "
        f"{delays.ROUTERS} simulated routers under the default ramp: {delays.PER_S:.0f} requests a second, four "
        f"guardrails at 0.25 % each, {count} ramps. The numbers are the treatment's requests until the last router "
        "has stopped it, including those that came while records and the stop were in transit.\n"
    )
    rows: list[list[Cell]] = []
    for ill in delays.ILL:
        delayed = delays.delays(executor, ill, count)
        median: Cell = delayed.median if ill.design is None else (delayed.median, ill.design)
        rows.append([ill.name, f"{delayed.stopped:.0%}", median, delayed.ninth_tenth, f"{delayed.share:.0f} %"])
    columns = ["the treatment", "stopped", "its requests until then, median", "in nine of ten ramps, at most", "at"]
    yield table(columns, rows, "{:,.0f}")


def shadow_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Pairs of mirror traffic\n\n{count} runs of {shadows.PAIRS:,} pairs of {shadows.USERS} users, "
        f"{shadows.LOOKS} looks, alpha 5 %, smallest effect {1000 * shadows.EFFECT:.0f} ms. Missed: the true "
        "difference was outside of the confidence sequence at some look.\n"
    )
    rows: list[list[Cell]] = []
    for row in (*shadows.ROWS, shadows.LATER):
        rates = shadows.rates(executor, row, count)
        rows.append([row.name, rates.cs, rates.cs_single, rates.peeked, rates.missed])
    yield table(["world", "CS", "CS ignoring users", "peeked", "missed"], rows, "{:.3f}")
    rate = shadows.discordant_rate(executor, 5 * count)
    yield f"Equally frequent events, compared in pairs, were reported as different in {rate:.3f} of {5 * count} runs.\n"


def conversation_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        "## Prompts that hold the arm's own answers\n\n"
        f"{count} runs of {reports.CONVERSATIONS:,} conversations of "
        f"{reports.TURNS} turns, without a design of their own. The treatment is 15 % faster for a prompt of the "
        "same size and writes twice as much, so that its users wait "
        f"{100 * reports.truth():.1f} % longer. Missed: the interval of any look excludes that.\n"
    )
    rows: list[list[Cell]] = []
    for strata in ([], ["prompt_bytes"], ["prompt_bytes", "hour"]):
        rows.append([", ".join(strata) or "none", *astuple(reports.said(executor, strata, count))])
    yield table(["strata", "missed", "ever better", "worse at the end"], rows, "{:.3f}")


def answer_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Answers that are still running, or lost\n\n{count} runs of {reports.OBSERVED_S:,.0f} s with "
        f"{reports.ANSWERS_PER_S:.0f} whole answers a second of 400 users, half of which take less than "
        f"{reports.MEDIAN_S:.0f} s, and a look every {reports.EVERY_S:.0f} s. Wrong: any look had the wrong sign, or "
        "found a difference where there is none.\n"
    )
    rows: list[list[Cell]] = []
    for answers in reports.ANSWERS:
        wrong, found = reports.verdicts_on_answers(executor, answers, count)
        rows.append([answers.name, f"{math.expm1(answers.effect):+.0%}", wrong, found])
    yield table(["the treatment", "true effect", "wrong", "better or worse"], rows, "{:.3f}")


def drift_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Effects that change\n\n{count} runs of {reports.DAYS} days with {reports.REQUESTS_A_DAY:,} requests a day "
        "of 600 users. False: at any look, the word is not true of the mean effect so far, or the interval misses it. "
        "Kept: the same for the first word, if it were kept. Alarms: the share of runs with *effect changed* (at most "
        "1 % where nothing changes), and its median day.\n"
    )
    rows: list[list[Cell]] = []
    for world in reports.DRIFTS:
        drifts = reports.drifts(executor, world, count)
        day = f"{drifts.flipped:.2f}" if drifts.flipped < math.inf else "-"
        rows.append([world.name, drifts.false, drifts.first_is_false, drifts.alarmed, day])
    yield table(["the treatment", "false", "kept", "alarms", "day"], rows, "{:.3f}")


def secondary_table(executor: Executor, count: int) -> Iterator[str]:
    rate = reports.false_directions(executor, count)
    yield (
        f"## Many secondary metrics\n\nOf {2 * reports.SCORES} secondary metrics without a difference, at least one "
        f"was `better`, `worse` or `different` at any look in {rate:.3f} of {count} runs (alpha is 5 %).\n"
    )


def covariate_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## What units did before\n\n{count} runs of 30,000 requests of 2,000 users who come back, after a week of "
        "20,000 requests that all went to control; requests of a user are correlated by 0.3 in ln TTFT. Requests until "
        "the verdict, medians, with and without that history as a covariate. Variance: the adjusted one by the other, "
        "after all requests. Missed: a confidence sequence ever missed the true effect (alpha is 5 %).\n"
    )
    rows: list[list[Cell]] = []
    for row in verdicts.HISTORY_ROWS:
        adjusted = verdicts.adjusted(executor, row, count)
        ratio = f"{adjusted.ratio:.2f}" if adjusted.power_without >= 0.5 else "-"
        numbers = (adjusted.variance, adjusted.power, adjusted.power_without, adjusted.missed, adjusted.missed_without)
        rows.append([row.name, adjusted.with_history, adjusted.without, ratio, *numbers])
    columns = ["world", "with", "without", "ratio", "variance", "power", "without", "missed", "without"]
    forms = {4: "{:.2f}", 5: "{:.2f}", 6: "{:.2f}", 7: "{:.3f}", 8: "{:.3f}"}
    yield table(columns, rows, "{:,.0f}", forms)


def prompt_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## First prompts\n\n{count} runs of 6,000 requests, ln TTFT -10 %, and as many without a difference; the "
        "prompts' lengths vary by 1.2 in ln, and the time grows with the length to the power of the slope, 0.6 if none "
        "is named.\n\nStrata: five sizes of the unit's first prompt. Covariate: its ln in the regression, each unit "
        "once. "
        "Both: the covariate within the strata. By requests: the covariate alone, each unit as often as it has come. "
        "Variance by that without prompts, after all requests; requests until the verdict, medians; in brackets the "
        "share of runs that found a difference where there is none (alpha is 5 %).\n"
    )
    rows: list[list[Cell]] = []
    for row in verdicts.PROMPT_ROWS:
        each = verdicts.prompted(executor, row, count)
        requests = (f"{plan.requests:,.0f}" if plan.power >= 0.5 else "-" for plan in each)
        cells = zip(each, requests, strict=True)
        rows.append([row.name, *(f"{cell.variance:.2f}, {number} ({cell.false:.3f})" for cell, number in cells)])
    yield table(["world", *verdicts.ESTIMATORS], rows, "{:.2f}")


def hanging_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Whole answers that never come\n\nThe real controller, {delays.ROUTERS} simulated routers and the default "
        f"guardrails, {count} runs: {delays.PER_S:.0f} requests a second for whole answers, some of which never end. "
        "Medians until the last router has stopped the treatment; *slow* waits for 20 s.\n"
    )
    rows: list[list[Cell]] = []
    for world in delays.HANGING:
        delayed = delays.delays(executor, world, count)
        rows.append([world.name, f"{delayed.stopped:.0%}", delayed.seconds, delayed.median])
    yield table(["the treatment's requests that hang", "stopped", "seconds", "its requests"], rows, "{:,.0f}")


def flap_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Conversations that begin at a change\n\n{count} changes from 100 % on one deployment to 50 % on each of "
        f"two, which reach three routers within two seconds unless said otherwise. {flaps.CONVERSATIONS} conversations "
        f"of {flaps.LASTS_S:.0f} s begin around it, and each turn comes to any router. Moved: later turns on another "
        "deployment than the turn before (0.5 % are allowed). Followed: the second deployment's share of the "
        "conversations that began once every router had the change.\n"
    )
    rows: list[list[Cell]] = [[loop.name, *flaps.flaps(executor, loop, count)] for loop in flaps.LOOPS]
    yield table(["conversations", "moved", "followed"], rows, "{:.4f}", {2: "{:.2f}"})


def audit_table(executor: Executor, count: int) -> Iterator[str]:
    audited = audits.audits(executor, count)
    yield (
        f"## Reports of the past\n\n{count} histories of a controller, with redeploys, restarts, kills, decisions, "
        f"late and lost records. Of {audited.shown} reports that were read meanwhile, the report of their time from "
        f"ledger and journal alone says something else in {audited.other}.\n"
    )


def missing_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        f"## Requests that no router records\n\nThe test of units' numbers of requests, forty looks, {count} runs, "
        "alpha 1 %. A share of the treatment's requests is lost, whatever their unit.\n"
    )
    rows: list[list[Cell]] = []
    for world in sample_ratios.RETURNING:
        rows.append([world.name, f"{world.requests:,}", sample_ratios.returns(executor, world, count)])
    yield table(["world", "requests", "runs with an alarm"], rows, "{:.3f}")


def score_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        "## Scores that come from different people\n\nUsers of both arms are equally content: 30 % send a score, and "
        f"more of the treatment's content ones. The share of {count} runs with a verdict on scores.\n"
    )
    rows: list[list[Cell]] = [
        [f"{users.sends:.0%}", f"{users.minimal_effect:.0%}", reports.biased_verdicts(executor, users, count)]
        for users in reports.BIASED
    ]
    yield table(["content users who send one", "smallest effect", "verdicts"], rows, "{:.3f}")


FORMER: Sequence[tuple[str, str, str]] = (
    ("20 % faster, from the third day 50 % slower", "something false in 20 of 20 runs", "Effects that change"),
    ("answers in prompts", "`better` in 39 of 40, where worse", "Prompts that hold the arm's own answers"),
    ("280 s on 8 % of the answers", "`better` in 39 of 40, where worse", "Answers that are still running, or lost"),
    ("the slowest 1 % of rows lost", "`better` in 14 of 40, where alike", "Answers that are still running, or lost"),
    ("every whole answer hangs", "not stopped within 100 s, in 3 of 3", "Whole answers that never come"),
    ("a lowered weight, every ninth request fails", "false alarms in 6 of 6", "Guardrails"),
    ("3 users always fail", "false alarms in 10 of 100", "Guardrails"),
    ("mean TTFT, 5 % wait 8 s, at 5 %", "a false verdict in 14 of 60", "Small arms and rare values"),
    ("ln TTFT -20 %, smallest effect 1 %", "2.6 times the requests of one look", "Requests until the verdict"),
    ("reports of the past", "28 of 28 were not what had been shown", "Reports of the past"),
    ("50 secondary metrics without a difference", "a direction in 2 of 3", "Many secondary metrics"),
    ("a turn each 0.2 s", "8.3 % of the turns moved", "Conversations that begin at a change"),
    ("content users of one arm send more scores", "`better` in 3 of 3", "Scores that come from different people"),
    (
        "36 % of them in place of 30 %, smallest effect 20 %",
        "`better` in 16 of 20",
        "Scores that come from different people",
    ),
)
"""Worlds of faults that an independent check of an earlier version found, what that said there, and the table."""


def former_table(executor: Executor, count: int) -> Iterator[str]:
    yield (
        "## An earlier version in these worlds\n\nAn independent check of it found faults that have a world each, in "
        "the table that is named. In a few runs of the same worlds, that version did this:\n"
    )
    yield table(["world", "the earlier version", "table"], [list(row) for row in FORMER], "{}")
    yield (
        "Three faults are no rates. Segments of every version since the first are read, and a damaged file is named "
        "(`storage/test_versions.py`). Requests that no deployment answered are compared between the arms "
        "(`analysis/test_traffic.py`). With a small buffer, only rows that the controller does not keep are counted as "
        "lost (`exposures/test_uploader.py`).\n"
    )


TABLES: list[Callable[[Executor, int], Iterator[str]]] = [
    false_positive_table,
    small_arm_table,
    large_user_table,
    verdict_table,
    quantile_table,
    coverage_table,
    covariate_table,
    prompt_table,
    guardrail_tables,
    outage_table,
    sample_ratio_table,
    feedback_table,
    delay_table,
    shadow_table,
    conversation_table,
    answer_table,
    drift_table,
    secondary_table,
    hanging_table,
    flap_table,
    audit_table,
    missing_table,
    score_table,
    former_table,
]
SCALES: dict[Callable[[Executor, int], Iterator[str]], float] = {
    coverage_table: 1.8,
    delay_table: 0.1,
    hanging_table: 0.1,
    audit_table: 0.1,
    outage_table: 0.08,
}
"""The number of runs of tables that need more or fewer than the others, as a share of theirs. The delays state nothing
that can be false, and of a history every report is checked."""


def main(path: Path, runs: int) -> None:
    """Write the tables to `path`, each with so many runs, but for `SCALES`."""
    texts = [INTRODUCTION.format(runs=runs)]
    with processes() as executor:
        for tables in TABLES:
            for text in tables(executor, round(runs * SCALES.get(tables, 1.0))):
                texts.append(text)
                path.write_text("\n".join(texts))  # finished tables are not lost if the rest fails


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 500)
