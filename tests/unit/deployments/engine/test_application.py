"""The environment of an engine's replicas."""

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, when it is imported
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
