"""Experiments that a configuration rejects, and experiments that it warns about."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.base import ConfigError
from app.config.experiments import EVENTS, STATISTICS, experiment_warnings, is_active, statistics_of
from app.config.file_check import check_file
from app.config.schema import Config, parse

FOUR_LINES: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}
BASE: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "conversation"}},
        "embed": {"tasks": ["embeddings"], "traffic": {"mini": 50, "maxi": 50}},
    },
    "deployments": {
        "blue": {"app": "blue", "model": "m"},
        "green": {"app": "green", "model": "m"},
        "mini": {"app": "mini", "model": "e", "tasks": ["embeddings"]},
        "maxi": {"app": "maxi", "model": "e", "tasks": ["embeddings"]},
    },
}
EMBEDDINGS = {
    "endpoint": "embed",
    "control": "mini",
    "treatments": ["maxi"],
    "primary": [{"metric": "duration", "minimal_effect": 0.05}],
}


def with_experiments(base: dict[str, Any] = BASE, /, **experiments: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(base))
    document["experiments"] = {
        name.replace("_", "-"): experiment_of_name for name, experiment_of_name in experiments.items()
    }
    return document


def problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(document)
    return raised.value.problems


def warnings(config: Config) -> list[str]:
    return experiment_warnings(config.experiments, config.endpoints)


def changed(key: str, value: object, of: dict[str, Any] = BASE) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(of))
    *parents, last = key.split(".")
    node = document
    for name in parents:
        node = node[name]
    node[last] = value
    return document


def test_a_minimal_experiment_has_four_lines() -> None:
    config = parse(with_experiments(first=FOUR_LINES))
    experiment = config.experiments["first"]
    assert experiment.arms == ("blue", "green")
    assert (experiment.state, experiment.mode, experiment.alpha) == ("running", "ab", 0.05)
    assert [guardrail.event for guardrail in experiment.guardrails] == [
        "error",
        "slow",
        "empty",
        "unfinished",
        "stalled",
    ]
    assert warnings(config) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoint": "gone"}, "experiments.first.endpoint: unknown endpoint 'gone'; known: chat, embed"),
        (
            {"control": "mini"},
            "experiments.first.control: 'mini' is not in the traffic of 'chat' (blue, green); add it",
        ),
        ({"treatments": ["gone"]}, "experiments.first.treatments[0]: 'gone' is not in the traffic of 'chat'"),
        ({"treatments": ["blue"]}, "experiments.first.treatments[0]: 'blue' is listed twice or is the control"),
        ({"treatments": ["green", "green"]}, "experiments.first.treatments[1]: 'green' is listed twice"),
        ({"treatments": []}, "experiments.first.treatments: expected at least 1, not 0"),
        ({"primary": []}, "experiments.first.primary: expected at least 1, not 0"),
        (
            {"primary": [{"metric": "speed", "minimal_effect": 0.1}]},
            "experiments.first.primary[0].metric: unknown metric 'speed'; declare it under feedback (known: ttft",
        ),
        (
            {"primary": [{"metric": "ttft", "minimal_effect": 1.0}]},
            "experiments.first.primary[0].minimal_effect: expected less than 1",
        ),
        (
            {"primary": [{"metric": "error", "statistic": "p95", "minimal_effect": 0.1}]},
            "experiments.first.primary[0].statistic: 'error' has proportion; choose one of them",
        ),
        (
            {"secondary": [{"metric": "ttft", "statistic": "geometric_mean", "minimal_effect": 0.1}]},
            "experiments.first.secondary[0]: the same metric and statistic as primary[0]; remove one",
        ),
        (
            {"primary": [{"metric": "goodput", "minimal_effect": 0.1}]},
            "experiments.first.primary[0]: `goodput` needs `within: {ttft_s, itl_s}`",
        ),
        (
            {"primary": [{"metric": "cost", "minimal_effect": 0.1}]},
            "deployments.green.price: 'experiments.first' compares `cost`; declare `price:",
        ),
        ({"feedback": {"error": {}}}, "experiments.first.feedback.error: there is a built-in metric of this name"),
        ({"feedback": {"stars": {"type": "number"}}}, "experiments.first.feedback.stars: `type: number` needs `min`"),
        ({"feedback": {"stars": {"min": 1}}}, "experiments.first.feedback.stars: `min` and `max` need `type: number`"),
        ({"feedback": {"Stars!": {}}}, "experiments.first.feedback.Stars!: 'Stars!' is no metric's name"),
        ({"guardrails": [{"event": "slow"}]}, "experiments.first.guardrails[0]: `slow` needs `ttft_above_s`"),
        ({"guardrails": [{"event": "late"}]}, "experiments.first.guardrails[0].event: expected one of error, "),
        (
            {"guardrails": [], "secondary": [{"metric": "slow", "minimal_effect": 0.1}]},
            "experiments.first.secondary[0]: `slow` needs a limit; declare the guardrail `{event: slow",
        ),
        ({"ramp": {"steps": [5, 5]}}, "experiments.first.ramp: `steps` must rise"),
        ({"ramp": {"steps": [50, 101]}}, "experiments.first.ramp.steps[1]: expected at most 100, not 101"),
        ({"mode": "aa"}, "experiments.first.treatments[0]: 'green' is a deployment; in mode aa a treatment is a label"),
        ({"mode": "aa", "treatments": ["label"], "ramp": {}}, "experiments.first.ramp: mode aa routes nothing"),
        ({"primry": []}, "experiments.first.primry: unknown key; did you mean primary"),
    ],
)
def test_an_invalid_experiment_is_refused_with_path_and_fix(change: dict[str, Any], message: str) -> None:
    reported = problems(with_experiments(first={**FOUR_LINES, **change}))
    assert any(line.startswith(message) for line in reported), reported


def test_all_problems_are_reported_at_once() -> None:
    broken = {
        **FOUR_LINES,
        "control": "mini",
        "treatments": ["gone"],
        "primary": [{"metric": "speed", "minimal_effect": 0.1}, {"metric": "cost", "minimal_effect": 0.1}],
    }
    assert [line.partition(": ")[0] for line in problems(with_experiments(first=broken))] == [
        "experiments.first.control",
        "experiments.first.treatments[0]",
        "experiments.first.primary[0].metric",
        "deployments.mini.price",
    ]


def test_an_endpoint_has_one_active_experiment() -> None:
    (problem,) = problems(with_experiments(first=FOUR_LINES, second={**FOUR_LINES, "state": "paused"}))
    assert problem.startswith("experiments.second.endpoint: 'chat' already has the experiment 'first'; set the state")
    for state in ("draft", "stopped"):
        config = parse(with_experiments(first=FOUR_LINES, second={**FOUR_LINES, "state": state}))
        assert not is_active(config.experiments["second"])


def test_embeddings_are_compared_only_within_one_space() -> None:
    (problem,) = problems(with_experiments(first=EMBEDDINGS))
    assert problem.startswith(
        "experiments.first: the arms of an embeddings endpoint need the same `space_id` (mini: no"
    )
    other = changed("deployments.mini.space_id", "a", changed("deployments.maxi.space_id", "b"))
    (problem,) = problems(with_experiments(other, first=EMBEDDINGS))
    assert "(mini: a, maxi: b)" in problem
    same = changed("deployments.mini.space_id", "a", changed("deployments.maxi.space_id", "a"))
    assert warnings(parse(with_experiments(same, first=EMBEDDINGS))) == []
    assert parse(with_experiments(first={**EMBEDDINGS, "mode": "aa", "treatments": ["label"]}))


def test_embeddings_have_no_metric_of_streams() -> None:
    streams = {**EMBEDDINGS, "mode": "aa", "treatments": ["label"], "primary": FOUR_LINES["primary"]}
    (problem,) = problems(with_experiments(first=streams))
    assert problem.startswith(
        "experiments.first.primary[0]: 'ttft' has values for streams only, and embeddings are nev"
    )


def test_reranking_has_no_metric_of_streams_and_needs_no_sticky_key() -> None:
    reranking = changed("endpoints.embed.tasks", ["rerank"])
    for name in ("mini", "maxi"):
        reranking = changed(f"deployments.{name}.tasks", ["rerank"], reranking)
    streams = {**EMBEDDINGS, "primary": FOUR_LINES["primary"]}
    (problem,) = problems(with_experiments(reranking, first=streams))
    assert "'ttft' has values for streams only, and scores are never streamed" in problem
    assert warnings(parse(with_experiments(reranking, first=EMBEDDINGS))) == []


def test_cost_in_mode_aa_needs_the_price_of_control_alone() -> None:
    cost = {
        **FOUR_LINES,
        "mode": "aa",
        "treatments": ["label"],
        "primary": [{"metric": "cost", "minimal_effect": 0.1}],
    }
    priced = changed("deployments.blue.price", {"input_per_million": 1, "output_per_million": 2})
    assert parse(with_experiments(priced, first=cost))


def test_feedback_has_the_statistic_of_its_type() -> None:
    feedback = {"thumbs": {}, "stars": {"type": "number", "min": 1, "max": 5, "window_s": 60}}
    metrics = [{"metric": name, "minimal_effect": 0.02} for name in feedback]
    experiment = parse(with_experiments(it={**FOUR_LINES, "feedback": feedback, "secondary": metrics})).experiments[
        "it"
    ]
    assert statistics_of("thumbs", experiment) == ("proportion",)
    assert statistics_of("stars", experiment) == ("mean",)
    assert statistics_of("gone", experiment) == ()
    assert {event: STATISTICS[event] for event in EVENTS} == {event: ("proportion",) for event in EVENTS}


def test_an_endpoint_without_sticky_and_an_arm_without_traffic_are_warned_of() -> None:
    loose = changed("endpoints.chat.sticky", None)
    (warning,) = warnings(parse(with_experiments(loose, first=FOUR_LINES)))
    assert warning.startswith(
        "experiments.first: 'chat' has no `sticky`, so that the unit is the request, and a chat's "
    )
    idle = changed("endpoints.chat.traffic", {"blue": 100, "green": 0})
    (warning,) = warnings(parse(with_experiments(idle, first=FOUR_LINES)))
    assert warning.startswith("experiments.first: 'green' has 0 % of the traffic of 'chat'")
    assert warnings(parse(with_experiments(idle, first={**FOUR_LINES, "ramp": {}}))) == []
    assert warnings(parse(with_experiments(idle, first={**FOUR_LINES, "state": "draft"}))) == []


def ramped(green: int, **more: Any) -> list[str]:
    base = changed("endpoints.chat.traffic", {"blue": 100 - green, "green": green})
    return warnings(parse(with_experiments(base, first={**FOUR_LINES, "ramp": {}, **more})))


def test_a_ramp_that_begins_above_its_first_steps() -> None:
    assert ramped(1) == []
    (warning,) = ramped(25)
    assert warning == (
        "experiments.first.ramp.steps: 'chat' begins with 25 % on the treatments, so that there are no steps to 1, 5 "
        "%; lower their `traffic` to 1 % or less"
    )


def test_steps_that_the_holdout_makes_the_same() -> None:
    assert ramped(0, holdout=10) == []
    (warning,) = ramped(0, holdout=10, ramp={"steps": [5, 50, 90, 95, 100]})
    assert warning.startswith("experiments.first.ramp.steps: treatments get at most 90 % (100 % of the traffic is ")
    assert "the steps to 90, 95, 100 % are the same" in warning
    (warning,) = ramped(0, holdout=60)
    assert "the steps to 50, 100 % are the same" in warning


def test_a_ramp_that_outlasts_its_experiment() -> None:
    day = 86400
    assert ramped(0, max_duration_s=None, min_duration_s=30 * day) == []
    (warning,) = ramped(0, ramp={"min_step_s": 4 * day})
    assert warning.startswith("experiments.first.ramp.min_step_s: the steps take 1.3824e+06 s at least")
    (warning,) = ramped(0, min_duration_s=14 * day)
    assert warning.startswith("experiments.first.min_duration_s: all traffic waits for 1.2096e+06 s")
    assert ramped(0, min_duration_s=14 * day, ramp={"steps": [5, 50]}) == []


def test_a_ramp_without_sticky_changes_the_model_of_chats_with_every_step() -> None:
    loose = changed("endpoints.chat.sticky", None)
    (warning,) = warnings(parse(with_experiments(loose, first={**FOUR_LINES, "ramp": {"steps": [50, 100]}})))
    assert "will change model, with every step of the ramp, too; add `sticky:" in warning


def test_nothing_rolls_back_in_mode_aa() -> None:
    rig = {**FOUR_LINES, "treatments": ["label"], "mode": "aa"}
    assert warnings(parse(with_experiments(first=rig))) == []
    guarded = {**rig, "guardrails": [{"event": "error", "action": "rollback"}]}
    (warning,) = warnings(parse(with_experiments(first=guarded)))
    assert warning.startswith("experiments.first.guardrails: mode aa routes nothing")


def serve_file(config: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    router: dict[str, Any] = {"name": "router", "route_prefix": "/", "import_path": "deployments.router:build"}
    router |= {"deployments": [{"name": "Router", "user_config": config}]}
    models = [
        {"name": name, "route_prefix": f"/deployments/{name}", "import_path": "own:build"}
        for name in config["deployments"]
    ]
    return {"applications": [router, *models, *more]}


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (with_experiments(first=FOUR_LINES), "experiments"),
        (changed("endpoints.embed.ledger", "always"), "endpoints.embed.ledger"),
        (changed("endpoints.embed.record", {}), "endpoints.embed.record"),
    ],
)
def test_a_serve_file_with_exposures_needs_the_application_that_keeps_them(
    tmp_path: Path, config: dict[str, Any], where: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(serve_file(config)))
    (problem,) = check_file(file)
    assert f": {where}: no application is named 'experiments', which keeps what routers record; declare" in problem
    there = {"name": "experiments", "import_path": "deployments.experiments:build", "route_prefix": "/x"}
    file.write_text(yaml.safe_dump(serve_file(config, there)))
    (problem,) = check_file(file)
    assert ": applications.experiments.route_prefix: must be /deployments/experiments" in problem
    there["route_prefix"] = "/deployments/experiments"
    file.write_text(yaml.safe_dump(serve_file(config, there)))
    assert check_file(file) == []
    several = {**there, "deployments": [{"name": "Experiments", "num_replicas": 2}]}
    file.write_text(yaml.safe_dump(serve_file(config, several)))
    (problem,) = check_file(file)
    assert problem.endswith(".deployments[0].num_replicas: the controller of experiments is one replica; set 1")
