"""The section `plan` of an endpoint."""

from typing import Any

import pytest

from app.config.base import ConfigError
from app.config.schema import Config, parse

OVERRIDE = {"unit": "00000000000000ab", "deployment": "green"}
EXPIRES = {"at": 2e9, "generation": 3, "weights": {"blue": 100, "green": 0}, "overrides": [OVERRIDE]}


def config(**plan: Any) -> Config:
    endpoint = {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "plan": plan}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")}
    deployments["mini"] = {"url": "http://mini", "model": "m", "tasks": ["embeddings"]}  # type: ignore[dict-item]
    return parse({"endpoints": {"chat": endpoint}, "deployments": deployments})


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = (
        config(generation=4, overrides=[OVERRIDE], expires=EXPIRES, by="ann", reason="more", since=1e9)
        .endpoints["chat"]
        .plan
    )
    written = plan.model_dump(mode="json", exclude_defaults=True)
    assert config(**written).endpoints["chat"].plan == plan
    assert config().endpoints["chat"].plan.model_dump(exclude_defaults=True) == {}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"overrides": [{**OVERRIDE, "deployment": "red"}]},
            "plan.overrides.0.deployment: 'red' is not in the traffic",
        ),
        ({"overrides": [{**OVERRIDE, "unit": "ab"}]}, "plan.overrides.0.unit: "),
        ({"overrides": [OVERRIDE] * 1001}, "plan.overrides: "),
        ({"generation": -1}, "plan.generation: "),
        ({"expires": {**EXPIRES, "weights": {"blue": 99}}}, "plan.expires: weights sums to 99, it must be 100"),
        ({"expires": {**EXPIRES, "weights": {"red": 100}}}, "plan.expires.weights: unknown deployment 'red'"),
        (
            {"expires": {**EXPIRES, "weights": {"mini": 100}, "overrides": []}},
            "plan.expires.weights: deployment 'mini'",
        ),
        ({"expires": {**EXPIRES, "weights": {"blue": 100}}}, "plan.expires.overrides.0.deployment: 'green' is not"),
        ({"wieghts": {}}, "plan.wieghts: unknown key"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_path(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(**plan)
    assert f"endpoints.chat.{message}" in "\n".join(raised.value.problems)
