"""The default models as converted from their packages."""

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.weights.cache import prepare, prepare_tiny
from tests.support.engine import transformers_reference
from tests.support.processes.project import ROOT

pytestmark = pytest.mark.real

CACHE = ROOT / ".models"
"""Shared with `make serve`: the conversion is done once per checkout."""


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return prepare("SmolLM2-135M-Instruct", CACHE)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def test_smollm2_knows_the_capital_of_france() -> None:
    tokenizer, model = transformers_reference.smollm2()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.startswith("The capital of France is Paris.")


@pytest.mark.parametrize("text", ["😀🎉 👩‍👩‍👧", "你好世界 日本語 한국어", "  a\n\n1. b\t½"])
def test_smollm2s_tokens_decode_to_the_text(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm2s_chat_marks_are_special_and_end_the_answer(tokenizer: Any) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192


def test_smollm2_splits_digits_first(tokenizer: Any) -> None:
    assert tokenizer.tokenize("x\n\n1. 23") == ["x", "ĊĊ", "1", ".", "Ġ", "2", "3"]


def test_the_tiny_model_has_smollm2s_tokenizer(smollm2: Path) -> None:
    tiny = prepare_tiny(CACHE)
    assert (tiny / "tokenizer.json").read_bytes() == (smollm2 / "tokenizer.json").read_bytes()
    assert (tiny / "chat_template.jinja").read_bytes() == (smollm2 / "chat_template.jinja").read_bytes()
    config = json.loads((tiny / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (1, 64)
    assert config["max_position_embeddings"] == 8192


def test_minilm_keeps_its_pooling_configuration() -> None:
    folder = prepare("all-MiniLM-L6-v2", CACHE)
    modules = json.loads((folder / "modules.json").read_text())
    steps = [module["type"].rpartition(".")[2] for module in modules]
    assert steps == ["Transformer", "Pooling", "Normalize"]
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 256
