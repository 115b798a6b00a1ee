"""No report prints a word that its own interval denies."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.experiments.analysis import reporting
from app.experiments.analysis.comparing import (
    RECORDED,
    SCORED,
    VALUED,
    Doubt,
    decision_of,
    effect_of,
    is_non_inferior,
    verdict_of,
)
from app.experiments.analysis.metrics import Measure
from app.experiments.contract.report import (
    WORDS,
    Better,
    Comparison,
    Effect,
    Report,
    Scale,
    SubgroupEffect,
    Subgroups,
)
from app.experiments.rendering import document as text
from app.experiments.rendering.reports import document
from app.experiments.statistics.sequences import confidence_sequence
from tests.conftest import NIGHTLY
from tests.support.experiments.printed import contradictions, statements
from tests.support.experiments.reports import BLUE, GREEN, SHIP, TTFT

ROOT = Path(__file__).parents[5]
ALPHA = 0.05
METRICS: list[tuple[str, str, Better, Scale]] = [
    ("ttft", "geometric_mean", "lower", "relative"),
    ("tokens_per_second", "ratio", "higher", "relative"),
    ("output_tokens", "mean", "neither", "relative"),
    ("duration.p95", "p95", "lower", "relative"),
    ("error", "proportion", "lower", "relative"),
    ("stars", "mean", "higher", "absolute"),
]
DOUBTS = (
    Doubt(VALUED, "Requests without a value could explain it, had they been the slowest or the fastest of all."),
    Doubt(SCORED, "It is not shown that equally many answers get it on both arms."),
    Doubt(RECORDED, "Units of green make fewer requests: of 500 units with at least 3, 200 are green's."),
)
estimates = st.one_of(st.floats(-2, 2), st.floats(-0.1, 0.1), st.floats(-0.002, 0.002))
errors = st.one_of(st.floats(1e-5, 0.01), st.floats(0.01, 0.5))


@st.composite
def comparisons(draw: Any, metric: tuple[str, str, Better, Scale], treatment: str) -> Comparison:
    """A comparison that follows from a look, as analyses make them."""
    key, statistic, better, scale = metric
    est, se, nu = draw(estimates), draw(errors), draw(st.floats(11, 5000))
    bounds = confidence_sequence(est, se, nu, effect=0.05, alpha=ALPHA)
    effect = effect_of(est, bounds, scale)
    if draw(st.integers(0, 9)) == 0:
        effect = Effect()
    measure = _measure(better)
    doubt = draw(st.sampled_from([None, None, *DOUBTS]))
    measured = verdict_of(effect, measure)
    verdict = "undecided" if doubt is not None and measured in WORDS else measured
    return replace(
        TTFT,
        metric=key,
        statistic=statistic,
        treatment=treatment,
        better=better,
        scale=scale,
        effect=effect,
        verdict=verdict,
        withheld=measured if measured != verdict else None,
        doubt="" if doubt is None else doubt.text,
        measured_on="" if doubt is None else doubt.measured_on,
        non_inferior=is_non_inferior(effect, measure),
        since=None,
        without_cold=None,
        values=[],
    )


def _measure(better: Better) -> Measure:
    return Measure(
        key="m", metric="m", statistic="mean", kind="mean", better=better, scale="relative", minimal_effect=0.05,
        role="primary",
    )  # fmt: skip


@st.composite
def reports(draw: Any) -> Report:
    treatments = draw(st.sampled_from([[GREEN], [GREEN, "smollm2-red"]]))
    metrics = draw(st.lists(st.sampled_from(METRICS), min_size=1, max_size=2, unique=True))
    primary = [draw(comparisons(metric, treatment)) for treatment in treatments for metric in metrics]
    decisions = {
        name: decision_of(
            [comparison for comparison in primary if comparison.treatment == name],
            acted=False,
            quiet=True,
            changed=False,
            same_length=True,
            settled=True,
            comparable=True,
            invalid=False,
            long_enough=draw(st.booleans()),
        )
        for name in treatments
    }
    report = replace(
        SHIP,
        treatments=treatments,
        primary=primary,
        secondary=[],
        guardrails=[],
        decisions=decisions,
        decision="keep_going",
        subgroups=Subgroups(
            looked_at=SHIP.at, outdated=False, alpha=ALPHA, effects=draw(st.lists(subgroups(), max_size=3))
        ),
        units={name: 1000 for name in (BLUE, *treatments)},
    )
    return replace(
        report, headline=reporting.headline(report), details=reporting.details(report, ALPHA, "users"), next=""
    )


@st.composite
def subgroups(draw: Any) -> SubgroupEffect:
    parts = []
    for _ in range(2):
        est, se = draw(estimates), draw(errors)
        parts.append(effect_of(est, confidence_sequence(est, se, 500, effect=0.05, alpha=ALPHA), "relative"))
    effect, difference = parts
    return SubgroupEffect(
        attribute="dialect",
        name="anthropic",
        metric="ttft",
        treatment=GREEN,
        scale="relative",
        units={BLUE: 100, GREEN: 100},
        effect=effect,
        difference=difference,
        log_e_value=1.0,
        differs=difference.lower is not None and (difference.lower > 0 or (difference.upper or 0.0) < 0),
    )


@settings(max_examples=400 if NIGHTLY else 50, deadline=None)
@given(reports())
def test_no_report_says_what_its_own_interval_denies(report: Report) -> None:
    printed = text.text(document(report))
    assert contradictions(printed) == []
    known = [primary for primary in report.primary if primary.effect.estimate is not None]
    said = statements(printed)
    assert len(said) == len(known), "every known effect has its sentence"
    for comparison, line in zip(known, said, strict=True):
        shown = 100 if comparison.scale == "relative" else 1
        for value, number in (
            (comparison.effect.estimate, line.estimate),
            (comparison.effect.lower, line.lower),
            (comparison.effect.upper, line.upper),
        ):
            if value is not None:
                assert number == pytest.approx(shown * value, rel=0.051, abs=0.051)


@settings(max_examples=200 if NIGHTLY else 25, deadline=None)
@given(reports())
def test_a_doubt_is_in_the_sentence_of_its_effect_and_takes_the_word_from_every_page(report: Report) -> None:
    printed = re.sub(r"\s+", " ", text.text(document(report)))
    for primary in report.primary:
        if primary.doubt and primary.effect.estimate is not None:
            assert primary.doubt[1:] in printed
            assert primary.verdict not in WORDS
    if all(comparison.doubt for comparison in report.primary):
        assert not re.search(r"\b(better|worse|equivalent|differs from)\b", printed.replace("non-inferior", ""))


@pytest.mark.parametrize(
    "denied",
    [
        "x on chat: green is better than blue.\n\nFirst token 27.6 % later (between 24.4 % and 30.9 % later).",
        "x on chat: green is worse than blue.\n\n"
        "First token 30.0 % later (between 19.1 % earlier and 560 % later). True at any time you look.",
        "x on chat: green is better than blue.\n\nFirst token 8.0 % earlier (between 1.7 % earlier and 3.4 % later).",
        "x on chat: no verdict on green against blue yet.\n\nFirst token 8.0 % earlier (between 1 % and 9 % earlier).",
        "x on chat: green is better than blue.\n\n"
        "Of the requests that have a value, first token 8.0 % earlier (between 1 % and 9 % earlier); …",
        "x on chat: green differs from blue.\n\nAnswers 8.0 % longer (between 1.7 % shorter and 19 % longer).",
        "x on chat: no verdict on green against blue yet.\n\nFirst token 8.0 % later (between 9 % and 12 % later).",
        "Dialect tgi: ttft changes by +8.0 % (+1.0 % to +9.0 %), against all others by +2.0 % (-1.0 % to +5.0 %).",
        "ttft      312 ms     288 ms  -7.7 %  -13.4 % to +1.7 %  better since 13 Nov 13:58",
        "ttft.p95  1.42 s     1.35 s  -5.0 %  -19.0 % to -1.0 %  undecided: about 3,200 more units",
        "goodput   91.0 %     88.2 %  -3.1 %    -4.4 % to -1.7 %  better",
        "ttft      312 ms     288 ms  -7.7 %    -4.4 % to +1.7 %  undecided",
    ],
)
def test_the_reader_finds_what_was_wrong_once(denied: str) -> None:
    assert contradictions(denied)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/operate/console.md",
        *sorted(f"docs/split/{page.name}" for page in (ROOT / "docs" / "split").glob("*.md")),
    ],
)
def test_no_example_in_the_documentation_denies_itself(page: str) -> None:
    blocks = re.findall(r"```text\n(.*?)```|((?:^> .*\n)+)", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    for fenced, quoted in blocks:
        example = fenced or re.sub(r"^> ?", "", quoted, flags=re.MULTILINE)
        assert contradictions(example) == []


@pytest.mark.parametrize("decision", ["ship", "do_not_ship", "keep_going", "invalid"])
@pytest.mark.parametrize("state", ["running", "paused", "stopped", "draft"])
def test_only_a_run_that_has_not_ended_has_a_decision(state: str, decision: Any) -> None:
    printed = text.text(document(replace(SHIP, state=state, decision=decision, decisions={GREEN: decision})))
    assert ("Decision: " in printed) == (state in ("running", "paused"))
