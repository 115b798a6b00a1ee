"""A tiny model with random weights, whose text hardly repeats: an error of one token shows in all that follow.

Its tokenizer is that of the tiny model, with the two tokens that DeepSeek R1's parser of reasoning looks for.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, LAYERS, KEYS = 64, 128, 2, 32
THINK = {"<issue_start>": "<think>", "<issue_comment>": "</think>"}
"""SmolLM2's special tokens, which stand in for those of a reasoning model."""


def write_random_model(folder: Path, tiny: Path) -> Path:
    """Writes a model of Llama's architecture, with the tokenizer of `tiny`. Returns `folder`."""
    folder.mkdir(parents=True)
    for file in tiny.iterdir():
        if file.suffix in (".json", ".jinja") and file.name != "tokenizer.json":
            shutil.copy(file, folder)
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if (name := THINK.get(token["content"])) is not None:
            del tokenizer["model"]["vocab"][token["content"]]
            tokenizer["model"]["vocab"][name] = token["id"]
            token.update(content=name, special=False)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(config["vocab_size"]), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(vocabulary: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def normal(*shape: int, scale: float = 0.35) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    weights = {"model.embed_tokens.weight": normal(vocabulary, HIDDEN, scale=0.5)}
    weights["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        part = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", KEYS, HIDDEN),
            ("self_attn.v_proj", KEYS, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ):
            weights[f"{part}.{name}.weight"] = normal(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{part}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return weights
