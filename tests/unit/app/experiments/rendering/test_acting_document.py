"""The acting state in words: what is in force, what was done, and what a person can do."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.experiments.contract.report import Acting, summary_of
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.rendering.reports import Action, acting_blocks, document, list_document, standing
from tests.support.experiments.reports import NOW, SHIP, START

RESUME = "To go on: switchyard experiments decide green-float32 resume --reason TEXT"


def acting(**given: Any) -> Acting:
    return Acting(**{"state": "running", "revision": 3, "step": 1, "share": 5, "next_share": 25, **given})


def lines(found: Acting, actions: Sequence[Action] = ()) -> list[str]:
    return text.text(acting_blocks(SHIP, found, actions)).splitlines()[1:]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "running at 5 % (step 2)"),
        ({"step": None}, "running at 5 %"),
        ({"state": "paused"}, "paused at 5 %"),
        ({"state": "paused", "share": 0, "until": NOW + 3600}, "paused at 0 % until 13 Nov 17:20"),
        ({"state": "paused", "stopped": ["green", "red"]}, "paused at 5 %, no traffic for green and red"),
        ({"state": "stopped"}, "stopped at 5 %"),
    ],
)
def test_the_state_in_a_few_words(given: dict[str, Any], words: str) -> None:
    assert standing(acting(**given), NOW) == words


def test_a_ramp_on_its_way() -> None:
    assert lines(acting()) == ["Running: the ramp is at step 2, and the treatment has 5 % of the traffic."]
    before = acting(step=None, share=0, next_share=1)
    assert lines(before) == ["Running: the ramp is before its first step, and the treatment has 0 % of the traffic."]
    assert lines(acting(step=None, next_share=None, share=50)) == ["Running: the treatment has 50 % of the traffic."]


def test_a_rollback_shows_its_freeze_its_actions_and_how_to_resume() -> None:
    found = acting(state="paused", cause="alarm", until=NOW + 3600, share=0, stopped=["smollm2-green"])
    actions = [(START, "The ramp begins"), (START + 60, "smollm2-green exceeds the guardrail error")]
    assert lines(found, actions) == [
        "Paused until 13 November 17:20 UTC: the ramp is at step 2, and the treatment has 0 % of the traffic.",
        "Routers give smollm2-green nothing, and its traffic to smollm2-blue, until the plan says the same.",
        RESUME,
        "",
        "- 12 November 14:05: The ramp begins",
        "- 12 November 14:06: smollm2-green exceeds the guardrail error",
    ]


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"state": "paused", "cause": "decision", "by": "ann"}, RESUME),
        ({"state": "paused", "cause": "file"}, None),
        ({"waits_for": ["a manager's `advance`"]}, "advance --reason TEXT"),
        ({"waits_for": ["a manager's `promote`, of a or b"]}, "promote --treatment NAME --reason TEXT"),
        ({"waits_for": ["12 more units"]}, None),
        ({"state": "stopped", "cause": "decision"}, None),
    ],
)
def test_the_command_is_shown_if_a_person_has_to_decide(given: dict[str, Any], command: str | None) -> None:
    last = lines(acting(**given))[-1]
    assert ("switchyard experiments decide green-float32" in last) == (command is not None)
    assert command is None or last.endswith(command)


def test_the_author_of_a_decision_is_named() -> None:
    assert lines(acting(state="paused", cause="decision", by="ann"))[0].startswith("Paused, by ann: ")


def test_the_report_has_it_before_the_tables() -> None:
    shown = markdown.markdown(document(SHIP, acting(state="paused"), [(START, "The ramp begins")]))
    assert shown.index("## What is done about it") < shown.index("- 12 November 14:05: The ramp begins")
    assert shown.index("The ramp begins") < shown.index("## Arms")
    assert "Paused experiment, since 12 November 14:05" in shown
    assert "What is done" not in markdown.markdown(document(SHIP))


def test_the_list_has_the_state_that_acting_gives_it() -> None:
    summary = summary_of(SHIP, acting(state="paused", until=NOW))
    row = text.text(list_document([summary])).splitlines()[1]
    assert "paused at 5 % until 13 Nov 2025 16:20" in row
