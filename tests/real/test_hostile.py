"""Requests that would end vLLM's engine, or the replica around it, are refused, and the replica goes on."""

import base64
import io
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from tests.real.conftest import Application

pytestmark = pytest.mark.real

HANGS_AFTER_S = 8.0
"""As in `deployments.engine.watchdog`: a replica ends itself after so long, if it waits for an engine's answer."""
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def as_text(tensor: torch.Tensor) -> str:
    """A tensor as vLLM takes a prompt's embeddings."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


BOMB = torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.tensor([1.0]), (2**40, 64), check_invariants=False)
"""2 KB that PyTorch makes 256 TiB of."""


def embedded(tensor: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests that may hold one."""
    messages = [{"role": "user", "content": [{"type": "prompt_embeds", "data": tensor}]}]
    for stream in (False, True):
        for embeddings in (tensor, [tensor, tensor]):
            yield COMPLETIONS, {"prompt_embeds": embeddings, "max_tokens": 1, "stream": stream}
        yield CHAT, {"messages": messages, "max_tokens": 1, "stream": stream}
        yield "/v1/responses", {"input": messages, "max_output_tokens": 1, "stream": stream}
        yield "/v1/messages", {"messages": messages, "max_tokens": 1, "stream": stream}
    yield "/v1/messages/count_tokens", {"messages": messages}
    yield "/tokenize", {"messages": messages}


@pytest.mark.parametrize("tensor", [torch.zeros(2, 64), BOMB], ids=["small", "bomb"])
def test_no_tensor_of_a_client_is_read(application: Application, tensor: torch.Tensor) -> None:
    for path, body in embedded(as_text(tensor)):
        answer = httpx.post(application.url + path, json={"model": "chat", **body}, timeout=60)
        assert answer.status_code == 400, (path, answer.text)
        assert "prompt_embeds" in answer.text, (path, answer.text)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": 10**30}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "a", "top_k": 10**30}),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "temperature": 1, "vllm_xargs": {"a": 10**30}}),
    (CHAT, {"messages": MESSAGES, "top_k": -(10**30)}),
    (
        CHAT,
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
    ),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/messages", {"messages": MESSAGES, "top_k": 10**30}),
]


def test_a_number_that_an_engine_cannot_hold_leaves_nothing_to_wait_for(application: Application) -> None:
    def engine() -> str:
        """The replica that answers."""
        answer = httpx.post(
            f"{application.url}{CHAT}", json={"model": "smollm2-blue", "messages": MESSAGES, "max_tokens": 1}
        )
        assert answer.status_code == 200, answer.text
        time.sleep(3)  # until the router has reported it
        listed = httpx.get(f"{application.url}/api/requests?id={answer.headers['x-request-id']}").json()["requests"]
        name: str = listed[0]["engine"]
        return name

    before = engine()
    assert before
    for path, body in TOO_LONG:
        answer = httpx.post(application.url + path, json={"model": "smollm2-blue", "max_tokens": 2, **body}, timeout=60)
        assert answer.status_code < 500, (body, answer.text)
    time.sleep(2 * HANGS_AFTER_S)
    assert engine() == before
