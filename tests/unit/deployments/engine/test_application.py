"""The environment of an engine's replicas.

An engine's application, compared with the one that Ray Serve LLM's own builder makes.
"""

import dataclasses
import json
import subprocess
import sys
import warnings
from typing import Any

import pytest
import yaml

from tests.support.processes.project import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from deployments import embedding, llm
    from deployments.engine.application import EngineArgs, engine_config

MODEL = {"model_loading_config": {"model_id": "m", "model_source": "org/m"}}
EAGER = {"engine_kwargs": {"enforce_eager": True}}
CPU = {"accelerator_config": {"kind": "cpu"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**CPU, **EAGER}, "1"),
        ({**CPU, **EAGER, "runtime_env": {"env_vars": {"TORCH_COMPILE_DISABLE": "0"}}}, "0"),
        ({**CPU, "engine_kwargs": {"enforce_eager": False}}, None),
        (CPU, None),
        (EAGER, None),
        ({**EAGER, "accelerator_type": "L4"}, None),
    ],
)
def test_only_an_eager_engine_on_cpus_compiles_nothing(given: dict[str, Any], expected: str | None) -> None:
    config = engine_config(EngineArgs(llm_config={**MODEL, **given}))
    assert config.runtime_env["env_vars"].get("TORCH_COMPILE_DISABLE") == expected


def test_an_engine_fetches_no_url_unless_the_operator_says_so() -> None:
    def built(**fields: Any) -> tuple[Any, Any]:
        config = engine_config(EngineArgs(llm_config={"model_loading_config": {"model_id": "m"}, **fields}))
        redirects = config.runtime_env["env_vars"]["VLLM_MEDIA_URL_ALLOW_REDIRECTS"]
        return config.engine_kwargs["allowed_media_domains"], redirects

    (domain,), redirects = built()
    assert domain.endswith(".invalid"), "an empty list would allow every domain"
    assert redirects == "0"
    own = {"env_vars": {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "1"}}
    for domains in (["images.example"], [], None):
        assert built(engine_kwargs={"allowed_media_domains": domains}, runtime_env=own) == (domains, "1")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
    from ray.llm._internal.common.utils.import_utils import load_class
    from ray.serve._private.application_state import override_deployment_info
    from ray.serve._private.config import ReplicaConfig
    from ray.serve._private.deployment_info import DeploymentInfo
    from ray.serve._private.replica import _load_deployment_def_from_import_path
    from ray.serve.llm import LLMConfig, build_llm_deployment
    from ray.serve.schema import ServeApplicationSchema
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    from deployments.engine import application as ray_llm
    from deployments.engine.application import DEPLOYMENT, PACKAGED_WEIGHTS, SERVER
    from deployments.engine.server import EngineServer, PackagedWeights

CONFIGS: dict[str, dict[str, Any]] = {
    "nothing but the model": {},
    "a CPU": {
        "accelerator_config": {"kind": "cpu"},
        "deployment_config": {"ray_actor_options": {"num_cpus": 0.5}},
        "runtime_env": {"env_vars": {"A": "1"}},
    },
    "several GPUs": {
        "accelerator_type": "L4",
        "engine_kwargs": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "max_num_seqs": 4},
        "deployment_config": {
            "autoscaling_config": {"min_replicas": 0, "max_replicas": 4, "target_ongoing_requests": 8},
            "max_ongoing_requests": 32,
            "ray_actor_options": {
                "memory": 1000,
                "resources": {"disk": 1},
                "runtime_env": {"working_dir": "s3://b/a.zip"},
            },
        },
    },
    "a number of replicas": {"deployment_config": {"num_replicas": 2, "health_check_period_s": 3}},
    "a share of a GPU": {  # as deployments.local.accelerator places engines
        "accelerator_config": {"kind": "gpu"},
        "engine_kwargs": {"gpu_memory_utilization": 0.3},
        "placement_group_config": {"bundle_per_worker": {"GPU": 0.333}},
        "deployment_config": {"ray_actor_options": {"num_cpus": 0.5}},
    },
    "bundles for each worker": {
        "accelerator_type": "H100",
        "engine_kwargs": {"tensor_parallel_size": 2},
        "placement_group_config": {"bundle_per_worker": {"GPU": 0.5, "CPU": 2}, "strategy": "SPREAD"},
    },
    "bundles": {
        "accelerator_type": "L4",
        "placement_group_config": {"bundles": [{"GPU": 1}, {"GPU": 1, "accelerator_type:L4": 0.5}]},
    },
    "bundles without GPUs": {"placement_group_config": {"bundles": [{"CPU": 2}, {"CPU": 1}]}},
    "a TPU": {"accelerator_type": "TPU-V6E", "engine_kwargs": {"tensor_parallel_size": 4}},
    "a slice of TPUs": {
        "accelerator_type": "TPU-V6E",
        "accelerator_config": {"kind": "tpu", "topology": "4x4"},
        "engine_kwargs": {"tensor_parallel_size": 16},
    },
}


def options(application: Any) -> Any:
    """An application's options for Serve, without its class and that class's argument."""
    deployment = application._bound_deployment
    replica = deployment._replica_config
    return (
        deployment.name,
        deployment._deployment_config,
        deployment._deployment_config.user_configured_option_names,
        replica.ray_actor_options,
        replica.placement_group_bundles,
        replica.placement_group_strategy,
        replica.max_replicas_per_node,
    )


@pytest.mark.parametrize("given", CONFIGS.values(), ids=CONFIGS)
def test_the_application_equals_that_of_rays_builder(given: dict[str, Any]) -> None:
    """Except for Ray's default autoscaling, which Serve would prefer over the file's `num_replicas`."""
    config = {**MODEL, **given}
    made = build_llm_deployment(
        LLMConfig.model_validate(config), deployment_cls=EngineServer, override_serve_options={"name": DEPLOYMENT}
    )
    name, expected, configured, *others = options(made)
    if "autoscaling_config" not in given.get("deployment_config", {}):
        expected = expected.model_copy(update={"autoscaling_config": None})
        configured = configured - {"autoscaling_config"}
    built = options(ray_llm.build(ray_llm.llm_config(config), SERVER, DEPLOYMENT))
    assert built == (
        name,
        expected.model_copy(update={"user_configured_option_names": configured}),
        configured,
        *others,
    )


@pytest.mark.parametrize(
    ("given", "after_s"),
    [
        ({}, 30.0),
        ({"hand_over_after_s": 0}, 0.0),
        ({"drain": "hand_over", "hand_over_after_s": 2.5}, 2.5),
        ({"drain": "finish"}, None),
    ],
)
def test_a_replica_learns_when_it_hands_its_streams_over(given: dict[str, Any], after_s: float | None) -> None:
    application = llm.build(llm.GenerationArgs.model_validate({"llm_config": MODEL, **given}))
    assert application._bound_deployment.init_kwargs["hand_over_after_s"] == after_s


@pytest.mark.parametrize("takes", [None, False, True])
def test_callers_send_prompts_as_tensors_only_where_the_yaml_says_so(takes: bool | None) -> None:
    """Not by our own default, which is for replaced embeddings."""
    given = {**MODEL, "engine_kwargs": {} if takes is None else {"enable_prompt_embeds": takes}}
    for application in (llm.build(llm.GenerationArgs(llm_config=given)), embedding.build(EngineArgs(llm_config=given))):
        assert application._bound_deployment.init_kwargs["takes_embeddings"] is bool(takes)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"drain": "never"}, "drain"),
        ({"hand_over_after_s": -1}, "hand_over_after_s"),
        ({"hand_over_after_s": float("inf")}, "hand_over_after_s"),
        ({"hand_over_after_s": "soon"}, "hand_over_after_s"),
    ],
)
def test_another_way_to_drain_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        llm.GenerationArgs.model_validate({"llm_config": MODEL, **given})


@pytest.mark.parametrize(("in_file", "replicas"), [(2, (2, 2)), ("auto", (1, 100)), (None, (1, 1))])
def test_the_files_number_of_replicas_holds(in_file: Any, replicas: tuple[int, int]) -> None:
    """Serve applies a file's `deployments:` to what the builder returned."""
    built = options(ray_llm.build(ray_llm.llm_config(MODEL), SERVER, DEPLOYMENT))[1]
    info = DeploymentInfo(
        deployment_config=built, replica_config=ReplicaConfig.create(EngineServer), start_time_ms=0, deployer_job_id=""
    )
    overrides = {} if in_file is None else {"num_replicas": in_file}
    schema = ServeApplicationSchema(import_path="a:b", deployments=[{"name": DEPLOYMENT, **overrides}])
    config = override_deployment_info({DEPLOYMENT: info}, schema)[DEPLOYMENT].deployment_config
    scaling = config.autoscaling_config
    bounds = (config.num_replicas,) * 2 if scaling is None else (scaling.min_replicas, scaling.max_replicas)
    assert bounds == replicas


def test_replicas_find_the_classes_by_their_names() -> None:
    assert _load_deployment_def_from_import_path(SERVER) is EngineServer
    assert load_class(PACKAGED_WEIGHTS) is PackagedWeights


def test_the_arguments_are_those_that_vllm_takes() -> None:
    taken = {field.name for declared in (AsyncEngineArgs, FrontendArgs) for field in dataclasses.fields(declared)}
    assert ray_llm.engine_arguments() == {name for name in taken if not name.startswith("_")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine_kwargs": {"max_modle_len": 1}}, "Unknown engine argument: max_modle_len"),
        ({"engine_kwarg": {}}, "engine_kwarg"),
        ({"model_loading_config": {"model": "m"}}, "model_loading_config"),
        ({"deployment_config": {"max_ongoing_requests": -1}}, "deployment config"),
        ({"accelerator_type": "L4", "accelerator_config": {"kind": "cpu"}}, "cannot be used with CPU-only"),
        ({"placement_group_config": {"bundles": [], "bundle_per_worker": {}}}, "Cannot specify both"),
        ({"deployment_config": {"placement_group_strategy": "PACK"}}, "placement_group_config"),
    ],
)
def test_mistakes_are_found_before_a_replica_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ray_llm.build(ray_llm.llm_config({**MODEL, **given}), SERVER, DEPLOYMENT)


BUILD = """
import json, sys
from deployments import embedding, llm
from deployments.engine.application import EngineArgs
from deployments.llm import GenerationArgs
takers = (llm, GenerationArgs), (llm, GenerationArgs), (embedding, EngineArgs)
for (module, arguments), args in zip(takers, json.load(sys.stdin), strict=True):
    module.build(arguments(**args))
print(sorted({"torch", "transformers", "vllm"} & set(sys.modules)))
"""


def test_building_an_application_imports_neither_torch_nor_vllm() -> None:
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    engines = [application["args"] for application in document["applications"] if "llm_config" in application["args"]]
    completed = subprocess.run(
        [sys.executable, "-c", BUILD], input=json.dumps(engines), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[-1] == "[]"
