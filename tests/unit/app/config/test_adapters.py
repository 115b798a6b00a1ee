"""LoRA adapters in the configuration: rejected values, with the path and the fix."""

import re
from copy import deepcopy
from typing import Any

import pytest

from app.config.adapters import Adapter, adapters_of, engine_problems
from app.config.base import ConfigError
from app.config.loading import load_document
from app.config.schema import parse

ENGINE: dict[str, Any] = {
    "model_loading_config": {"model_id": "llama", "model_source": "/models/llama"},
    "engine_kwargs": {
        "lora_modules": [{"name": "french", "path": "/models/french"}, {"name": "german", "path": "acme/german"}]
    },
}
ROUTER: dict[str, Any] = {
    "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"fr": 50, "de": 50}}},
    "deployments": {
        "base": {"app": "llama", "model": "llama"},
        "fr": {"app": "llama", "model": "french", "parent": "base"},
        "de": {"app": "llama", "model": "german", "parent": "base"},
        "elsewhere": {"app": "other", "model": "llama"},
    },
}


def engine(**changed: Any) -> dict[str, Any]:
    return {**ENGINE, **changed}


def kwargs(**changed: Any) -> dict[str, Any]:
    return engine(engine_kwargs={**ENGINE["engine_kwargs"], **changed})


def serve_file(llm_config: Any = ENGINE, **deployments: Any) -> dict[str, Any]:
    router = {**ROUTER, "deployments": {**ROUTER["deployments"], **deployments}}
    return {
        "applications": [
            {"name": "router", "route_prefix": "/", "deployments": [{"name": "Router", "user_config": router}]},
            {"name": "llama", "route_prefix": "/deployments/llama", "args": {"llm_config": llm_config}},
            {"name": "other", "route_prefix": "/deployments/other"},
        ]
    }


def test_several_deployments_may_share_an_application() -> None:
    config = load_document(serve_file())
    assert {deployment.app for name, deployment in config.deployments.items() if name != "elsewhere"} == {"llama"}
    assert adapters_of(ENGINE) == [Adapter("french", "/models/french"), Adapter("german", "acme/german")]


@pytest.mark.parametrize(
    ("llm_config", "message"),
    [
        (engine(lora_config={}), "llm_config.lora_config: only Ray's own ingress .*engine_kwargs.lora_modules"),
        (kwargs(lora_modules={"french": "/p"}), "lora_modules: expected a list"),
        (kwargs(lora_modules=["french=/p"]), r"lora_modules\[0\]: expected `name` and `path`"),
        (kwargs(lora_modules=[{"name": "french"}]), r"lora_modules\[0\]: expected `name` and `path`"),
        (kwargs(lora_modules=[{"name": "f", "path": "/p", "pat": 1}]), r"lora_modules\[0\].pat: unknown key"),
        (kwargs(lora_modules=[{"name": "llama", "path": "/p"}]), r"lora_modules\[0\].name: 'llama' is another model"),
        (kwargs(lora_modules=[{"name": "f", "path": "/p"}] * 2), r"lora_modules\[1\].name: 'f' is another model"),
        (kwargs(enable_lora=False), "enable_lora: false, and there are lora_modules"),
        (kwargs(enable_prompt_embeds=True), "enable_prompt_embeds: vLLM crashes"),
        (
            engine(engine_kwargs={"enable_lora": True, "enable_prompt_embeds": True}),
            "enable_prompt_embeds: vLLM crashes",
        ),
        (kwargs(max_loras=2) | {"accelerator_config": {"kind": "cpu"}}, "max_loras: 2 for 2 adapters; .* or set 3"),
    ],
)
def test_an_engine_that_cannot_serve_its_adapters_is_refused(llm_config: dict[str, Any], message: str) -> None:
    (problem,) = engine_problems(llm_config)
    assert re.search(message, problem), problem
    with pytest.raises(ConfigError, match=r"applications\[1\]\.args\.llm_config\."):
        load_document(serve_file(llm_config))


@pytest.mark.parametrize("llm_config", [{}, {"engine_kwargs": None}, {"engine_kwargs": "x"}, engine(engine_kwargs={})])
def test_an_engine_without_adapters_is_not_checked(llm_config: dict[str, Any]) -> None:
    assert list(engine_problems(llm_config)) == []
    assert adapters_of(llm_config) == []


def test_on_gpus_every_slot_may_be_an_adapters() -> None:
    assert list(engine_problems(kwargs(max_loras=2))) == []


@pytest.mark.parametrize(
    ("name", "deployment", "message"),
    [
        (
            "fr",
            {"app": "llama", "model": "frech"},
            "deployments.fr.model: .* does not serve 'frech', only llama, french",
        ),
        ("fr", {"app": "llama", "model": "llama", "parent": "base"}, "deployments.fr.parent: 'base' is not a model"),
        ("base", {"app": "llama", "model": "french", "parent": "gone"}, "base.parent: unknown deployment 'gone'"),
        (
            "fr",
            {"app": "llama", "model": "french", "parent": "elsewhere"},
            "'elsewhere' belongs to another engine",
        ),
        ("fr", {"app": "llama", "model": "french", "parent": "de"}, "fr.parent: 'de' is not a model that 'fr' adapts"),
        ("base", {"app": "llama", "model": "llama", "parent": "plain"}, "base.parent: .* own model, no adapter"),
    ],
)
def test_a_wrong_model_or_parent_is_refused(name: str, deployment: dict[str, Any], message: str) -> None:
    document = serve_file(**{name: deployment, "plain": {"app": "llama", "model": "french"}})
    if name == "base":
        for adapter in ("fr", "de"):
            document["applications"][0]["deployments"][0]["user_config"] = without_parent(document, adapter)
    with pytest.raises(ConfigError) as raised:
        load_document(document)
    assert len(raised.value.problems) == 1
    assert re.search(message, raised.value.problems[0]), raised.value.problems


def without_parent(document: dict[str, Any], name: str) -> dict[str, Any]:
    router = deepcopy(document["applications"][0]["deployments"][0]["user_config"])
    router["deployments"][name].pop("parent", None)
    changed: dict[str, Any] = router
    return changed


def test_a_server_elsewhere_may_have_adapters_too() -> None:
    there = "http://vllm.example.com"
    deployments = {"base": {"url": there, "model": "m"}, "fr": {"url": there, "model": "french", "parent": "base"}}
    endpoints = {"chat": {"tasks": ["chat"], "traffic": {"fr": 100}}}
    assert parse({"endpoints": endpoints, "deployments": deployments}).deployments["fr"].parent == "base"
