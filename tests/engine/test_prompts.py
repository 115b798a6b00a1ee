"""Prompts of which an engine would die are refused, in every form."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from deployments.weights.cache import prepare_tiny
from tests.support.processes.project import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_no_id_beyond_the_vocabulary_reaches_the_engine(text: httpx.Client) -> None:
    size = json.loads((prepare_tiny(ROOT / ".models") / "config.json").read_text())["vocab_size"]
    for id in (size, size + 1, 2**31 - 1):
        for prompt in ([id], [1, id, 2], [[1, 2], [id]]):
            for stream in (False, True):
                body = {"model": "text", "prompt": prompt, "max_tokens": 1, "stream": stream}
                answer = text.post("/v1/completions", json=body)
                assert answer.status_code == 400, (body, answer.text)
                assert "vocabulary" in answer.text
    answer = text.post("/v1/completions", json={"model": "text", "prompt": [size - 1], "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def as_text(tensor: torch.Tensor) -> str:
    """A tensor as vLLM takes a prompt's embeddings."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


def embedded(tensor: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests that may hold one."""
    part = {"type": "prompt_embeds", "prompt_embeds": tensor}
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]
    for stream in (False, True):
        for embeddings in (tensor, [tensor, tensor]):
            yield "/v1/completions", {"prompt_embeds": embeddings, "max_tokens": 1, "stream": stream}
        yield "/v1/chat/completions", {"messages": messages, "max_tokens": 1, "stream": stream}
        yield "/v1/responses", {"input": messages, "max_output_tokens": 1, "stream": stream}
        yield "/v1/messages", {"messages": messages, "max_tokens": 1, "stream": stream}
    yield "/v1/messages/count_tokens", {"messages": messages}
    yield "/tokenize", {"messages": messages}


BOMB = torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.tensor([1.0]), (2**40, 64), check_invariants=False)
"""2 KB that PyTorch makes 256 TiB of."""

TENSORS = {"a small one": torch.zeros(2, 64), "a bomb": BOMB}


@pytest.mark.parametrize("name", TENSORS)
def test_no_tensor_of_a_client_is_read(text: httpx.Client, name: str) -> None:
    for path, body in embedded(as_text(TENSORS[name])):
        answer = text.post(path, json={"model": "text", **body})
        assert answer.status_code == 400, (path, answer.text)
        assert "prompt_embeds" in answer.text, (path, answer.text)
