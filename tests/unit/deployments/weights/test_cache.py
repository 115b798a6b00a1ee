"""Model preparation, without converting a real model."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.weights.cache import MARKER, prepare
from deployments.weights.errors import WeightsError
from deployments.weights.gguf_llama import CONFIG, llama_config, tensor_name, unpermute
from deployments.weights.recipes import Recipe, link_folder

METADATA: dict[str, Any] = {
    "llama.vocab_size": 49152,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.dimension_count": 64,
    "llama.context_length": 8192,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
}


class Build:
    """A recipe's function that writes one small file and counts its calls."""

    def __init__(self, text: str = "weights", delay_s: float = 0.0) -> None:
        self.text = text
        self.delay_s = delay_s
        self.calls = 0

    def __call__(self, source: Path, destination: Path) -> None:
        self.calls += 1
        (destination / "sub").mkdir()
        (destination / "sub" / "model").write_text(self.text)
        time.sleep(self.delay_s)


def recipes(build: Any, **changes: Any) -> dict[str, Recipe]:
    """A table of one model, `fake`, whose source is a file that every test environment has."""
    return {"fake": Recipe(**{"package": "pytest", "source": "__init__.py", "build": build, **changes})}


# --- conversion --------------------------------------------------------------------------------------


def permute_as_llama_cpp(weight: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize(("heads", "head_dim", "hidden"), [(9, 64, 576), (3, 64, 576), (1, 2, 5), (4, 6, 3)])
def test_unpermute_is_the_inverse_of_llama_cpps_permutation(heads: int, head_dim: int, hidden: int) -> None:
    weight = np.arange(heads * head_dim * hidden).reshape(heads * head_dim, hidden)
    permuted = permute_as_llama_cpp(weight, heads)
    assert np.array_equal(unpermute(permuted, heads), weight)
    assert head_dim == 2 or not np.array_equal(permuted, weight)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.29.attn_k.weight", "model.layers.29.self_attn.k_proj.weight"),
        ("blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
    ],
)
def test_tensors_get_their_hugging_face_names(name: str, expected: str) -> None:
    assert tensor_name(name) == expected


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "v.blk.0.attn_q.weight"])
def test_a_tensor_that_no_llama_has_is_an_error(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        tensor_name(name)


def test_the_config_is_read_from_the_metadata() -> None:
    config = llama_config(METADATA, tied=True)
    assert {key: config[key] for key in CONFIG} == {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert llama_config(METADATA, tied=False)["tie_word_embeddings"] is False
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("field", METADATA)
def test_a_missing_metadata_field_is_named(field: str) -> None:
    with pytest.raises(WeightsError, match=field):
        llama_config({name: value for name, value in METADATA.items() if name != field}, tied=True)


def test_a_folder_is_linked_whole(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "modules.json").write_text("[]")
    destination.mkdir()
    link_folder(source, destination)
    assert (destination / "1_Pooling" / "config.json").read_text() == "{}"
    assert (destination / "modules.json").samefile(source / "modules.json")


# --- the cache ---------------------------------------------------------------------------------------


def test_a_model_is_built_once(tmp_path: Path) -> None:
    build = Build()
    cache = tmp_path / "not" / "there" / "yet"
    folder = prepare("fake", cache, recipes(build))
    assert folder == prepare("fake", cache, recipes(build)) == cache / "fake"
    assert (folder / "sub" / "model").read_text() == "weights"
    assert build.calls == 1


def test_a_prepared_model_needs_no_package(tmp_path: Path) -> None:
    folder = prepare("fake", tmp_path, recipes(Build()))
    assert prepare("fake", tmp_path, recipes(Build(), package="no_such_package")) == folder


def test_another_version_is_built_again(tmp_path: Path) -> None:
    prepare("fake", tmp_path, recipes(Build("old")))
    folder = prepare("fake", tmp_path, recipes(Build("new"), version=2))
    assert (folder / "sub" / "model").read_text() == "new"


@pytest.mark.parametrize("name", ["sub/model", MARKER])
@pytest.mark.parametrize("content", [None, "{"], ids=["missing", "cut short"])
def test_a_damaged_folder_is_built_again(tmp_path: Path, name: str, content: str | None) -> None:
    file = prepare("fake", tmp_path, recipes(Build())) / name
    file.unlink() if content is None else file.write_text(content)
    build = Build()
    folder = prepare("fake", tmp_path, recipes(build))
    assert build.calls == 1
    assert (folder / "sub" / "model").read_text() == "weights"


def test_a_folder_without_a_marker_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "model.safetensors").write_text("half")
    folder = prepare("fake", tmp_path, recipes(Build()))
    assert not (folder / "model.safetensors").exists()


def test_a_failed_build_keeps_the_previous_model(tmp_path: Path) -> None:
    def fail(source: Path, destination: Path) -> None:
        (destination / "half").write_text("")
        raise OSError("disk full")

    folder = prepare("fake", tmp_path, recipes(Build("old")))
    with pytest.raises(OSError, match="disk full"):
        prepare("fake", tmp_path, recipes(fail, version=2))
    assert (folder / "sub" / "model").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["fake"]


def test_files_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    for left in (".fake.partial", ".fake.stale"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "half").write_text("")
    folder = prepare("fake", tmp_path, recipes(Build()))
    assert not (folder / "half").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["fake"]


def test_concurrent_callers_wait_for_a_single_build(tmp_path: Path) -> None:
    build = Build(delay_s=0.1)
    seen: list[str] = []

    def run() -> None:
        seen.append((prepare("fake", tmp_path, recipes(build)) / "sub" / "model").read_text())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["weights"] * 4
    assert build.calls == 1


# --- errors ------------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"fake comes from the package no-such-package.*make setup"):
        prepare("fake", tmp_path, recipes(Build(), package="no_such_package"))


def test_a_package_without_the_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"pytest lacks gone\.gguf.*make setup"):
        prepare("fake", tmp_path, recipes(Build(), source="gone.gguf"))


def test_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"'\.\./gone'.*: fake$"):
        prepare("../gone", tmp_path, recipes(Build()))
