"""The engine arguments that follow from adapters."""

from typing import Any

import pytest

from deployments.engine.adapters import adapter_kwargs

CPU = {"accelerator_config": {"kind": "cpu"}}
MODULES = [{"name": name, "path": f"/models/{name}"} for name in ("french", "german", "spanish")]


def of(**kwargs: Any) -> dict[str, Any]:
    return {"model_loading_config": {"model_id": "m", "model_source": "/models/m"}, "engine_kwargs": kwargs}


def test_all_adapters_fit_into_a_batch_and_stay_in_memory() -> None:
    arguments = adapter_kwargs(of(lora_modules=MODULES))
    assert (arguments["enable_lora"], arguments["max_loras"], arguments["max_cpu_loras"]) == (True, 3, 3)
    assert adapter_kwargs(of(lora_modules=MODULES, max_loras=8))["max_cpu_loras"] == 8


def test_a_cpus_last_slot_stays_empty() -> None:
    arguments = adapter_kwargs({**of(lora_modules=MODULES), **CPU})
    assert (arguments["max_loras"], arguments["max_cpu_loras"]) == (4, 4)


def test_an_engine_without_adapters_has_no_such_arguments() -> None:
    assert adapter_kwargs(of()) == {}
    assert adapter_kwargs(of(enable_lora=True)) == {"enable_prompt_embeds": False}


def test_adapters_that_cannot_be_served_are_rejected() -> None:
    with pytest.raises(ValueError, match="enable_prompt_embeds: vLLM crashes"):
        adapter_kwargs(of(lora_modules=MODULES, enable_prompt_embeds=True))
