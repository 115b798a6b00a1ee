"""Untrained, random LoRA adapters, large enough that each changes a model's greedy answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4
_TARGETS = ("q_proj", "v_proj", "o_proj")


def write_adapter(folder: Path, base: Path, seed: int) -> Path:
    """An adapter for the model in `base` (of Llama's architecture), in the files that peft writes. Returns `folder`."""
    folder.mkdir(parents=True)
    config = json.loads((base / "config.json").read_text())
    random = np.random.default_rng(seed)
    weights = {}
    for module, rows, columns in _linears(config):
        weights[f"{module}.lora_A.weight"] = random.standard_normal((RANK, columns), dtype=np.float32)
        weights[f"{module}.lora_B.weight"] = random.standard_normal((rows, RANK), dtype=np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(_TARGETS),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _linears(config: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """The adapted layers: name, rows and columns of their weights."""
    hidden = config["hidden_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        for target in _TARGETS:
            rows = keys if target == "v_proj" else hidden
            yield f"base_model.model.model.layers.{layer}.self_attn.{target}", rows, hidden
