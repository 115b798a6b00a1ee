"""The resources that deployments request from Ray."""

from typing import Any

import pytest

from deployments.kubernetes.demands import Demand, demands


def application(**changes: Any) -> dict[str, Any]:
    return {"name": "llama", "deployments": [{"name": "Engine"}], "args": {"llm_config": {}}} | changes


def demand(**changes: Any) -> Demand:
    (demanded,) = demands({"applications": [application(**changes)]})
    return demanded


def engine(**config: Any) -> Demand:
    return demand(args={"llm_config": config})


@pytest.mark.parametrize(
    ("config", "bundles"),
    [
        ({}, [{"CPU": 1, "GPU": 1}]),
        ({"accelerator_type": "L4"}, [{"CPU": 1, "GPU": 1, "accelerator_type:L4": 0.001}]),
        (
            {"accelerator_type": "H100", "engine_kwargs": {"tensor_parallel_size": 2}},
            [{"CPU": 1, "GPU": 1, "accelerator_type:H100": 0.001}, {"GPU": 1, "accelerator_type:H100": 0.001}],
        ),
        (
            {"engine_kwargs": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}},
            [{"CPU": 1, "GPU": 1}, *[{"GPU": 1}] * 3],
        ),
        ({"accelerator_config": {"kind": "cpu"}}, [{"CPU": 2}]),
        (
            {
                "accelerator_config": {"kind": "cpu"},
                "placement_group_config": {"bundle_per_worker": {"CPU": 1, "engines": 0.001}},
                "deployment_config": {"ray_actor_options": {"num_cpus": 0.5, "memory": 100}},
            },
            [{"CPU": 1.5, "engines": 0.001, "memory": 100}],
        ),
        (
            {"placement_group_config": {"bundles": [{"GPU": 0.5}, {"GPU": 0.5}]}, "accelerator_type": "L4"},
            [{"CPU": 1, "GPU": 0.5, "accelerator_type:L4": 0.001}, {"GPU": 0.5, "accelerator_type:L4": 0.001}],
        ),
    ],
)
def test_an_engine_asks_for_its_processes(config: dict[str, Any], bundles: list[dict[str, float]]) -> None:
    assert list(engine(**config).bundles) == bundles


def test_another_deployment_asks_for_what_its_options_say() -> None:
    options = {"num_cpus": 0.2, "resources": {"disk": 1}, "label_selector": {"ray.io/node-group": "cpu"}}
    deployment = {"name": "Router", "ray_actor_options": options, "max_replicas_per_node": 1}
    demanded = demand(args={}, deployments=[deployment])
    assert demanded == Demand(
        "llama", "Router", ({"CPU": 0.2, "disk": 1},), 1, 1, 0.2, labels={"ray.io/node-group": "cpu"}, per_node=1
    )
    assert demanded.resources == {"disk"}


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({}, 1, 1),
        ({"num_replicas": 3}, 3, 3),
        ({"num_replicas": "auto"}, 1, 100),
        ({"num_replicas": "auto", "autoscaling_config": {"max_replicas": 4}}, 1, 4),
        ({"autoscaling_config": {"min_replicas": 0, "max_replicas": 4}}, 0, 4),
    ],
)
def test_replicas_are_those_of_the_file(settings: dict[str, Any], least: int, most: int) -> None:
    demanded = demand(deployments=[{"name": "Engine", **settings}])
    assert (demanded.min_replicas, demanded.max_replicas) == (least, most)


def test_a_file_takes_precedence_over_an_llm_config() -> None:
    config = {"deployment_config": {"num_replicas": 2, "ray_actor_options": {"num_cpus": 4}}}
    assert demand(args={"llm_config": config}).max_replicas == 2
    assert demand(args={"llm_config": config}, deployments=[{"name": "Engine", "num_replicas": 5}]).max_replicas == 5
    assert demand(args={"llm_config": config}, deployments=[]).bundles == ({"CPU": 4, "GPU": 1},)


def test_a_replica_and_each_of_its_gpus_keep_a_core_busy() -> None:
    assert engine(engine_kwargs={"tensor_parallel_size": 4}).processes == 5
    assert engine(accelerator_config={"kind": "cpu"}).processes == 1


def test_deployments_that_share_an_engine_ask_for_it_once() -> None:
    adapters = {f"adapter-{number}": {"app": "llama", "model": f"a{number}", "parent": "base"} for number in range(10)}
    user_config = {"deployments": {"base": {"app": "llama", "model": "llama"}, **adapters}}
    modules = [{"name": adapter["model"], "path": f"/models/{adapter['model']}"} for adapter in adapters.values()]
    llm_config = {"accelerator_type": "L4", "engine_kwargs": {"lora_modules": modules}}
    router = {"name": "router", "deployments": [{"name": "Router", "user_config": user_config}]}
    demanded = demands({"applications": [router, application(args={"llm_config": llm_config})]})
    assert sum(bundle.get("GPU", 0) for demand in demanded for bundle in demand.bundles) == 1
