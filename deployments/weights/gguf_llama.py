import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.weights.errors import WeightsError

SEED = 20240229
"""The seed of the tiny model's weights: benchmarks of different days run the same model."""

TENSORS: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

LAYER_TENSORS: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

CONFIG: Mapping[str, str] = {
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.rope.dimension_count",
    "max_position_embeddings": "llama.context_length",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}

TINY_CONFIG: Mapping[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
}


def tensor_name(name: str) -> str:
    """The Hugging Face name of llama.cpp's tensor `name`. Raises WeightsError for one a Llama lacks."""
    if name in TENSORS:
        return TENSORS[name]
    block, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    if block != "blk" or part not in LAYER_TENSORS:
        raise WeightsError(f"The GGUF file holds a tensor that a Llama does not have: {name}")
    return f"model.layers.{number}.{LAYER_TENSORS[part]}"


def unpermute(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undoes llama.cpp's row order of a Q or K projection, of shape (heads * head_dim, hidden).

    llama.cpp rotates neighbouring rows of a head as a pair, Hugging Face row i with row i + head_dim / 2:
    its converter (`LlamaModel.permute` of convert_hf_to_gguf.py) interleaves the two halves of each head.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama_config(metadata: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """`config.json` from a GGUF file's metadata; `tied` when the embedding is the output layer too.

    Raises WeightsError for a missing field.
    """

    def field(name: str) -> Any:
        if name not in metadata:
            raise WeightsError(f"The GGUF file lacks the field {name}")
        return metadata[name]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        **{key: int(field(name)) for key, name in CONFIG.items()},
        # GGUF keeps a float32: 1e-05 must not become 9.999999747378752e-06.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(field("llama.rope.freq_base"))},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
    }


def convert_llama(source: Path, destination: Path) -> None:
    """Converts the GGUF file `source` to a bfloat16 model folder. Raises WeightsError if it is not a Llama."""
    import gguf
    import torch
    from tqdm import tqdm

    reader = gguf.GGUFReader(source)
    config = _config(reader)
    heads = {"attn_q.weight": config["num_attention_heads"], "attn_k.weight": config["num_key_value_heads"]}
    tensors = {}
    for tensor in tqdm(reader.tensors, desc=source.stem, unit="tensor", file=sys.stderr, disable=None):
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.partition(".")[2].partition(".")[2]
        if part in heads:
            weight = unpermute(weight, heads[part])
        # The copy: unquantised tensors are read-only views of the file.
        tensors[tensor_name(tensor.name)] = torch.from_numpy(np.array(weight)).to(torch.bfloat16)
    _save_llama(config, tensors, source, destination)


def build_tiny(source: Path, destination: Path) -> None:
    """A random Llama of one narrow layer with the tokenizer of the GGUF file `source`."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {**_config(gguf.GGUFReader(source)), **TINY_CONFIG, "tie_word_embeddings": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    _save_llama(config, tensors, source, destination)


def _config(reader: Any) -> dict[str, Any]:
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    return llama_config(metadata, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))


def _save_llama(config: Mapping[str, Any], tensors: dict[str, Any], source: Path, destination: Path) -> None:
    from safetensors.torch import save_file

    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (destination / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (destination / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    (destination / "model.safetensors").chmod(0o644)  # safetensors creates it readable by its owner only
    _save_tokenizer(source, config["max_position_embeddings"], destination)


def _save_tokenizer(gguf_file: Path, context_length: int, destination: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokenizer.model_max_length = context_length
    # transformers takes every GGUF BPE tokenizer for GPT-2's. This one ("tokenizer.ggml.pre": "smollm") sets
    # digits apart first; without that the blank line before "1." is two tokens, which the model never saw.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(destination)
