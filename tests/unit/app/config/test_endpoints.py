"""Mirrors that a configuration rejects, and mirrors that it warns about.

The section `plan` of an endpoint.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.base import ConfigError
from app.config.endpoints import mirror_warnings
from app.config.file_check import check_file
from app.config.schema import Config, parse

DEPLOYMENTS: dict[str, Any] = {
    "blue": {"url": "http://blue", "model": "m"},
    "green": {"url": "http://green", "model": "m"},
    "text": {"url": "http://text", "model": "t", "tasks": ["completions"]},
    "mini": {"url": "http://mini", "model": "e", "tasks": ["embeddings"], "space_id": "a"},
    "maxi": {"url": "http://maxi", "model": "e", "tasks": ["embeddings"], "space_id": "b"},
}


def config(mirror: Any, *, endpoint: str = "chat", **deployments: Any) -> Config:
    endpoints = {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 100}},
        "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
    }
    traffic = mirror.pop("traffic", None)
    endpoints[endpoint] |= {"mirror": {"percent": 5, **mirror}} | ({"traffic": traffic} if traffic else {})
    return parse({"endpoints": endpoints, "deployments": {**DEPLOYMENTS, **deployments}})


def warnings(config: Config) -> list[str]:
    return list(mirror_warnings(config.endpoints, config.deployments))


@pytest.mark.parametrize(
    ("mirror", "problem"),
    [
        (
            {"deployment": "red"},
            "endpoints.chat.mirror.deployment: unknown deployment 'red'; declare it under deployments",
        ),
        (
            {"deployment": "text"},
            "endpoints.chat.mirror.deployment: deployment 'text' does completions, the endpoint promises chat",
        ),
        (
            {"deployment": "blue"},
            "endpoints.chat.mirror.deployment: 'blue' answers all of the traffic, and copies would be compared with "
            "themselves; name another deployment, or remove the mirror",
        ),
        ({"deployment": "green", "percent": 0}, "endpoints.chat.mirror.percent"),
        ({"deployment": "green", "max_concurrent": 0}, "endpoints.chat.mirror.max_concurrent"),
        ({"deployment": "green", "tokens_per_minute": 0}, "endpoints.chat.mirror.tokens_per_minute"),
    ],
)
def test_a_mirror_that_cannot_work_is_refused(mirror: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(mirror)
    assert [line[: len(problem)] for line in refused.value.problems] == [problem]


def test_a_shadow_outside_of_the_traffic_is_what_mirrors_are_for() -> None:
    assert warnings(config({"deployment": "green"})) == []
    assert warnings(config({"deployment": "green", "traffic": {"blue": 100, "green": 0}})) == []


def test_a_shadow_with_traffic_is_allowed_and_warned_of() -> None:
    (warning,) = warnings(config({"deployment": "green", "traffic": {"blue": 90, "green": 10}}))
    assert warning.startswith("endpoints.chat.mirror.deployment: 'green' has 10 % of the traffic, too; ")


def test_embeddings_of_other_spaces_are_allowed_and_warned_of() -> None:
    (warning,) = warnings(config({"deployment": "maxi"}, endpoint="embed"))
    assert "'maxi' embeds into the space 'b', 'mini' into 'a'" in warning
    same = {**DEPLOYMENTS["maxi"], "space_id": "a"}
    undeclared = {**DEPLOYMENTS["maxi"], "space_id": None}
    for maxi in (same, undeclared):
        assert warnings(config({"deployment": "maxi"}, endpoint="embed", maxi=maxi)) == []


def test_pairs_need_the_application_that_keeps_them(tmp_path: Path) -> None:
    user_config = config({"deployment": "green"}).model_dump(mode="json", exclude_defaults=True)
    router: dict[str, Any] = {"name": "router", "route_prefix": "/", "import_path": "deployments.router:build"}
    router |= {"deployments": [{"name": "Router", "user_config": user_config}]}
    file = tmp_path / "serve.yaml"
    file.write_text(json.dumps({"applications": [router]}))
    (problem,) = check_file(file)
    assert ": endpoints.chat.mirror: no application is named 'experiments'" in problem
    experiments = {"name": "experiments", "route_prefix": "/deployments/experiments"}
    experiments["import_path"] = "deployments.experiments:build"
    file.write_text(json.dumps({"applications": [router, experiments]}))
    assert check_file(file) == []


OVERRIDE = {"unit": "00000000000000ab", "deployment": "green"}
EXPIRES = {"at": 2e9, "generation": 3, "weights": {"blue": 100, "green": 0}, "overrides": [OVERRIDE]}


def config_plans(**plan: Any) -> Config:
    endpoint = {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "plan": plan}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")}
    deployments["mini"] = {"url": "http://mini", "model": "m", "tasks": ["embeddings"]}  # type: ignore[dict-item]
    return parse({"endpoints": {"chat": endpoint}, "deployments": deployments})


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = (
        config_plans(generation=4, overrides=[OVERRIDE], expires=EXPIRES, by="ann", reason="more", since=1e9)
        .endpoints["chat"]
        .plan
    )
    written = plan.model_dump(mode="json", exclude_defaults=True)
    assert config_plans(**written).endpoints["chat"].plan == plan
    assert config_plans().endpoints["chat"].plan.model_dump(exclude_defaults=True) == {}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"overrides": [{**OVERRIDE, "deployment": "red"}]},
            "plan.overrides[0].deployment: 'red' is not in the traffic",
        ),
        ({"overrides": [{**OVERRIDE, "unit": "ab"}]}, "plan.overrides[0].unit: "),
        ({"overrides": [OVERRIDE] * 1001}, "plan.overrides: "),
        ({"generation": -1}, "plan.generation: "),
        (
            {"expires": {**EXPIRES, "weights": {"blue": 99}}},
            "plan.expires.weights: sums to 99 (blue 99), it must be",
        ),
        ({"expires": {**EXPIRES, "weights": {"red": 100}}}, "plan.expires.weights: unknown deployment 'red'"),
        (
            {"expires": {**EXPIRES, "weights": {"mini": 100}, "overrides": []}},
            "plan.expires.weights: deployment 'mini'",
        ),
        ({"expires": {**EXPIRES, "weights": {"blue": 100}}}, "plan.expires.overrides[0].deployment: 'green' is not"),
        ({"wieghts": {}}, "plan.wieghts: unknown key"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_path(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_plans(**plan)
    assert f"endpoints.chat.{message}" in "\n".join(raised.value.problems)
