"""The metrics that judge a replay: an experiment's, or times."""

from typing import Any

import pytest

from app.config.experiments import Experiment
from app.experiments.replay.traces import NothingToCompare, config_of, section_of
from tests.unit.app.experiments.replay.test_requests import request

ARMS = ["blue", "green", "red"]


def declared(**fields: Any) -> Experiment:
    given = {
        "endpoint": "elsewhere",
        "control": "a",
        "treatments": ["b"],
        "primary": [{"metric": "goodput", "minimal_effect": 0.1, "within": {"ttft_s": 1, "itl_s": 1}}],
        "alpha": 0.01,
        "ramp": {"steps": [1, 5]},
        "mode": "aa",
        "feedback": {"thumbs": {}},
        "strata": ["stream"],
    }
    return Experiment.model_validate(given | fields)


def test_without_an_experiment_streams_are_judged_by_the_first_token_and_others_by_the_duration() -> None:
    streams = section_of(ARMS, [request(), request(stream=False)], None)
    assert [it.key for it in streams.primary] == ["ttft"]
    whole = section_of(ARMS, [request("embeddings", stream=False)], None)
    assert [it.key for it in whole.primary] == ["duration"]
    assert (whole.endpoint, whole.control, whole.treatments) == ("chat", "blue", ("green", "red"))


def test_an_experiments_metrics_are_taken_and_its_actions_are_not() -> None:
    section = section_of(ARMS, [request()], declared(secondary=[{"metric": "thumbs", "minimal_effect": 0.1}]))
    assert [it.key for it in section.primary] == ["goodput"]
    assert (section.secondary, section.feedback) == ((), {})
    assert (section.alpha, section.strata, section.mode, section.ramp) == (0.01, ("stream",), "ab", None)
    assert (section.endpoint, section.arms) == ("chat", ("blue", "green", "red"))
    for it in (section, section_of(ARMS, [request()], None)):
        assert {guardrail.action for guardrail in it.guardrails} == {"alert"}


def test_an_experiment_that_only_users_judge_cannot_be_replayed() -> None:
    with pytest.raises(NothingToCompare, match="feedback"):
        section_of(ARMS, [request()], declared(primary=[{"metric": "thumbs", "minimal_effect": 0.1}]))


def test_the_configuration_of_a_replay_splits_evenly_and_knows_prices() -> None:
    section = section_of(ARMS, [request()], declared(primary=[{"metric": "cost", "minimal_effect": 0.1}]))
    prices = {arm: {"input_per_million": 1.0, "output_per_million": 2.0} for arm in ARMS}
    config = config_of("first", section, "somewhere", prices=prices, total_s=60)
    assert config.endpoints["chat"].traffic == {"blue": 34, "green": 33, "red": 33}
    assert config.ledger.url == "somewhere"
    assert config.deployments["red"].price is not None
