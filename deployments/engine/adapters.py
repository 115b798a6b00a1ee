"""LoRA adapters of an engine: the engine arguments that follow from `engine_kwargs.lora_modules`.

Every replica loads all adapters before it is ready, so that each can answer for each of them.
"""

from collections.abc import Mapping
from typing import Any

from app.config.adapters import adapters_of, engine_problems, is_on_cpu


def adapter_kwargs(llm_config: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments that follow from the adapters; none without. Raises ValueError if they cannot be served.

    All adapters fit into one batch, and stay in memory. On a CPU there is a slot more, which stays empty: vLLM 0.29
    computes requests without an adapter with the last one.
    """
    if problems := list(engine_problems(llm_config)):
        raise ValueError("\n".join(problems))
    count = len(adapters_of(llm_config))
    given = llm_config.get("engine_kwargs") or {}
    if not count:
        return {"enable_prompt_embeds": False} if given.get("enable_lora") else {}
    slots = count + 1 if is_on_cpu(llm_config) else count
    return {
        "enable_lora": True,
        "enable_prompt_embeds": False,
        "max_loras": slots,
        "max_cpu_loras": max(slots, given.get("max_loras") or 0),
    }


def prepare_modules(llm_config: Any) -> None:
    """Converts the adapters of an `LLMConfig` to vLLM's type: Ray passes the YAML's mappings on unchanged."""
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath

    frontend = llm_config.get_engine_config().frontend_kwargs
    if modules := frontend.get("lora_modules"):
        frontend["lora_modules"] = [LoRAModulePath(**module) for module in modules]
