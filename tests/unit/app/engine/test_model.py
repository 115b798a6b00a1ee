"""A model as the router knows it, from a model application's card or from a directory."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.engine.model import Model
from app.errors import Broken
from tests.support.clients.samples import EOS, MODEL, tokenizer

CARD: dict[str, Any] = {
    "tokenizer": tokenizer().to_str(),
    "eos_token_ids": [0, 7],
    "max_model_len": 100,
    "hidden_size": 8,
}


def test_a_card_describes_the_model() -> None:
    model = Model.read(json.dumps(CARD).encode())
    assert (model.eos_ids, model.special_ids) == (frozenset({0, 7}), frozenset({0}))
    assert (model.max_len, model.hidden_size) == (100, 8)
    assert model.encode("hello") == MODEL.encode("hello")


def test_a_card_lists_the_supported_xargs() -> None:
    answer = Model.read(json.dumps({**CARD, "processors": ["watermark"]}).encode())
    assert (answer.is_extended, answer.processors) == (True, frozenset({"watermark"}))
    assert Model.read(json.dumps(CARD).encode()).processors == frozenset()


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        *(json.dumps({**CARD, name: None}).encode() for name in ("tokenizer", "eos_token_ids", "processors")),
        json.dumps({**CARD, "tokenizer": "{}"}).encode(),
    ],
)
def test_a_malformed_card_is_the_deployments_fault(card: bytes) -> None:
    with pytest.raises(Broken):
        Model.read(card)


@pytest.mark.parametrize(
    ("files", "eos_ids"),
    [
        ({"generation_config.json": {"eos_token_id": 0}}, {0}),
        ({"generation_config.json": {"eos_token_id": [0, 5]}, "config.json": {"eos_token_id": 9}}, {0, 5}),
        ({"config.json": {"eos_token_id": 9, "hidden_size": 8}}, {9}),
        ({"config.json": {"eos_token_id": None}}, set()),
        ({}, set()),
    ],
)
def test_a_model_is_loaded_from_a_directory(tmp_path: Path, files: dict[str, Any], eos_ids: set[int]) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    model = Model.load(tmp_path, 50)
    assert (set(model.eos_ids), model.max_len) == (eos_ids, 50)


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        Model.load(tmp_path, 50)


def test_ids_and_texts() -> None:
    assert MODEL.decode([*MODEL.encode("hello 日本 😀"), 0]) == "hello 日本 😀"
    assert MODEL.decode_one(0) == EOS
    assert MODEL.decode_one(MODEL.encode("😀")[0]) == "\ufffd"


@pytest.mark.parametrize("call", [lambda text: MODEL.encode(text), lambda text: MODEL.decode([260] * len(text))])
def test_other_threads_run_while_a_long_text_is_tokenized(call: Callable[[str], object]) -> None:
    worker = Thread(target=call, args=("hello there " * 50_000,))
    worker.start()
    steps = 0
    while worker.is_alive():
        steps += 1
        time.sleep(0)
    assert steps > 100


def test_a_tokenizers_own_truncation_and_padding_do_not_count() -> None:
    made = tokenizer()
    made.enable_truncation(2)
    made.enable_padding(length=50)
    model = Model.build(made.to_str(), eos_ids=[0], max_len=100)
    assert model.encode("hello there world") == MODEL.encode("hello there world")
