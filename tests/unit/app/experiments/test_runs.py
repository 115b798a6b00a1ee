"""Runs start, stop and resume with the configuration, and are restored from the journal."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.config.base import ConfigError
from app.config.schema import Config
from app.experiments.contract.journal import JournalEntry
from app.experiments.runs import BEGUN, CHANGED, STATE, ExperimentRun, next_run, runs_of
from tests.support.experiments.fake_analysis import same_run
from tests.unit.app.experiments.test_controller import configuration


class RunHistory:
    """One experiment's configurations, one after another, ten seconds apart."""

    def __init__(self) -> None:
        self.run: ExperimentRun | None = None
        self.entries: list[JournalEntry] = []
        self.now = 0.0

    def goes_on(self, config: Config, **lost: int) -> ExperimentRun | None:
        self.now += 10.0
        self.run, answer = next_run("trial", config, self.run, now=self.now, lost=lost, same_run=same_run)
        self.entries += answer
        assert runs_of(self.entries).get("trial") == self.run
        return self.run

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.entries]


def sticky(config: Config, by: str) -> Config:
    plain: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    plain["endpoints"]["chat"]["sticky"] = {"by": by}
    return Config.model_validate(plain)


def test_a_draft_has_no_run() -> None:
    story = RunHistory()
    assert story.goes_on(configuration(state="draft")) is None
    assert story.entries == []


def test_runs_are_restored_from_the_journal() -> None:
    story = RunHistory()
    first = story.goes_on(configuration(), blue=3)
    assert first is not None
    assert (first.started_at, first.lost_before) == (10.0, {"blue": 3})
    assert story.goes_on(configuration()) == first
    assert story.goes_on(configuration(state="stopped")) == replace(first, stopped_at=30.0)
    assert story.goes_on(configuration(state="draft")) == replace(first, stopped_at=30.0)
    resumed = story.goes_on(configuration())
    assert resumed == replace(first, pauses=((30.0, 50.0),))
    changed = story.goes_on(configuration(alpha_guardrails=0.01))
    assert changed is not None
    assert (changed.started_at, changed.experiment.alpha_guardrails) == (10.0, 0.01)
    new = story.goes_on(configuration(alpha=0.01))
    assert new is not None
    assert (new.started_at, new.pauses) == (70.0, ())
    assert story.kinds() == [BEGUN, STATE, STATE, CHANGED, BEGUN]


def test_another_unit_is_another_run() -> None:
    story = RunHistory()
    story.goes_on(sticky(configuration(), "user"))
    assert story.goes_on(sticky(configuration(), "user")) == story.run
    by_conversation = story.goes_on(sticky(configuration(), "conversation"))
    assert by_conversation is not None
    assert by_conversation.started_at == 30.0


def test_a_declared_start_counts_from_then_on() -> None:
    run = RunHistory().goes_on(configuration(starts_at=5.0))
    assert run is not None
    assert run.started_at == 5.0


def test_only_times_outside_its_pauses_belong_to_a_run() -> None:
    run = RunHistory().goes_on(configuration())
    assert run is not None
    at = np.array([11.0, 20.0, 29.9, 30.0, 41.0])
    assert run.covers(at) is None
    paused = replace(run, pauses=((20.0, 30.0),), stopped_at=40.0).covers(at)
    assert paused is not None
    assert paused.tolist() == [True, False, False, True, False]


def test_a_section_that_is_no_longer_valid_is_no_run() -> None:
    story = RunHistory()
    story.goes_on(configuration())
    (begun,) = story.entries
    broken = {**begun.detail, "section": {**begun.detail["section"], "control": None}}
    assert runs_of([begun, replace_detail(begun, broken)]) == {}
    assert runs_of([replace_detail(begun, {})]) == {}
    assert runs_of([JournalEntry(1.0, STATE, "trial", {"state": "stopped"})]) == {}


def replace_detail(entry: JournalEntry, detail: dict[str, Any]) -> JournalEntry:
    return JournalEntry(entry.at, entry.kind, entry.experiment, detail, entry.writer)


def test_a_journal_with_the_former_names_of_settings_is_read() -> None:
    detail = {
        "section": {
            "endpoint": "chat",
            "control": "blue",
            "treatments": ["green"],
            "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
            "ramp": {"steps": [5, 50], "hold_s": 60.0, "advance": "not_worse", "freeze_s": 3600.0},
            "ends": {"after_s": 500.0, "units": None, "errors": 7, "tokens": None},
        },
        "unit": "",
        "started_at": 10.0,
        "lost_before": {},
    }
    experiment = runs_of([JournalEntry(10.0, BEGUN, "trial", detail)])["trial"].experiment
    assert experiment.ramp is not None
    assert (experiment.ramp.min_step_s, experiment.ramp.cooldown_s, experiment.ramp.advance) == (
        60.0,
        3600.0,
        "non_inferior",
    )
    assert (experiment.max_duration_s, experiment.harm_budget.errors) == (500.0, 7)


@pytest.mark.parametrize(
    ("former", "says"),
    [
        ({"ramp": {"hold_s": 60, "min_step_s": 60}}, "`hold_s` is the former name of `min_step_s`"),
        ({"ends": {"errors": 5}, "harm_budget": {"errors": 5}}, "`ends` is the former name"),
        ({"ends": {"erors": 5}}, "harm_budget.erors: unknown key; did you mean errors?"),
    ],
)
def test_a_former_name_beside_the_present_one_is_a_problem(former: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        configuration(**former)
