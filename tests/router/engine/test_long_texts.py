"""No text reaches an engine that would keep its tokenizer from others, whatever the dialect and the field."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.engine.pieces import MOST_CHARACTERS, MOST_TOKENS
from app.engine.texts import fitting
from app.internal_api import APP_PREFIX
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.hostile.engine import HostileEngine
from tests.support.engine.fake_engine import CARD, CONTEXT, FakeEngine, refuse
from tests.support.processes.servers import ServerPool

TEXT = "All work and no play makes Jack a dull boy. "
OVER = TEXT * (1 + MOST_CHARACTERS // len(TEXT))
IMAGE = "data:image/png;base64," + "QUJD" * (MOST_CHARACTERS // 2)


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "chat", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], **fields}


def _said(content: Any) -> dict[str, Any]:
    return _chat(messages=[{"role": "user", "content": content}])


_COUNTED = {"model": "chat", "messages": [{"role": "user", "content": OVER}]}


_TOOL = {"type": "function", "function": {"name": "f", "description": OVER, "parameters": {"type": "object"}}}
_AZURE = "?api-version=2024-05-01-preview"
_TURNS = [{"role": role, "content": OVER[:9000]} for role in ("user", "assistant") * 30]

REFUSED: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", _said(OVER), "messages"),
    "chat, parts": ("/v1/chat/completions", _said([{"type": "text", "text": OVER}]), "messages"),
    "chat, turns": ("/v1/chat/completions", _chat(messages=_TURNS), "messages"),
    "chat, tools": ("/v1/chat/completions", _chat(tools=[_TOOL]), "tools"),
    "chat, words": ("/v1/chat/completions", _chat(bad_words=[OVER]), "bad_words"),
    "chat, arguments of a template": (
        "/v1/chat/completions",
        _chat(chat_template_kwargs={"a": OVER}),
        "chat_template_kwargs",
    ),
    "completions": ("/v1/completions", {"model": "chat", "prompt": OVER}, "prompt"),
    "completions, two long ones": (
        "/v1/completions",
        {"model": "chat", "prompt": ["hi", OVER[:-9000], OVER[:20_000]]},
        "prompt",
    ),
    "completions, cut": ("/v1/completions", {"model": "chat", "prompt": OVER, "truncate_prompt_tokens": 5}, "prompt"),
    "responses": ("/v1/responses", {"model": "chat", "input": OVER}, "input"),
    "responses, instructions": (
        "/v1/responses",
        {"model": "chat", "input": "hi", "instructions": OVER},
        "instructions",
    ),
    "tokens of a response": ("/v1/responses/input_tokens", {"model": "chat", "input": OVER}, "input"),
    "tokenize": ("/tokenize", {"model": "chat", "prompt": OVER}, "prompt"),
    "tokenize, chat": ("/tokenize", _COUNTED, "messages"),
    "messages": ("/v1/messages", _said(OVER), "messages"),
    "messages, system": ("/v1/messages", _chat(system=OVER), "system"),
    "count tokens": ("/v1/messages/count_tokens", _COUNTED, "messages"),
    "azure, chat": (f"/models/chat/completions{_AZURE}", _said(OVER), "messages"),
    "azure, completions": (f"/completions{_AZURE}", {"prompt": OVER}, "prompt"),
    "azure, embeddings": (f"/embeddings{_AZURE}", {"model": "embed", "input": [OVER]}, "input"),
    "databricks, chat": ("/serving-endpoints/chat/invocations", _said(OVER), "messages"),
    "databricks, completions": ("/serving-endpoints/chat/invocations", {"prompt": OVER}, "prompt"),
    "databricks, prompts": ("/serving-endpoints/chat/invocations", {"prompt": [OVER[:-9000], OVER[:20_000]]}, "prompt"),
    "databricks, responses": ("/serving-endpoints/responses", {"model": "chat", "input": OVER}, "input"),
    "databricks, embeddings": ("/serving-endpoints/embed/invocations", {"input": OVER}, "input"),
    "databricks, an instruction for each": (
        "/serving-endpoints/embed/invocations",
        {"instruction": TEXT * 400, "input": ["a"] * 40},
        "input",
    ),
    "tgi": ("/generate", {"inputs": OVER}, "inputs"),
    "tgi, chat": ("/tgi/v1/chat/completions", _said(OVER), "messages"),
    "tgi, tokens of a chat": ("/tgi/chat_tokenize", _said(OVER), "messages"),
    "vertex": ("/vertex", {"instances": [_said(OVER)]}, "messages"),
    "friendli, chat": ("/serverless/v1/chat/completions", _said(OVER), "messages"),
    "friendli, completions": ("/serverless/v1/completions", {"model": "chat", "prompt": OVER}, "prompt"),
    "friendli, render": ("/dedicated/v1/chat/render", _COUNTED, "messages"),
    "embeddings": ("/v1/embeddings", {"model": "embed", "input": OVER}, "input"),
    "embeddings, cut": ("/v1/embeddings", {"model": "embed", "input": [OVER], "truncate_prompt_tokens": 5}, "input"),
    "cohere": ("/v2/embed", {"model": "embed", "input_type": "search_query", "texts": [OVER]}, "texts"),
    "pooling": ("/pooling", {"model": "embed", "input": OVER}, "input"),
    "classify": ("/classify", {"model": "embed", "input": OVER}, "input"),
    "tei": ("/embed", {"inputs": OVER, "truncate": True}, "inputs"),
    "rerank": ("/v1/rerank", {"model": "embed", "query": "a", "documents": ["b", OVER]}, "documents"),
    "rerank, a query for each": (
        "/v1/rerank",
        {"model": "embed", "query": OVER[: MOST_CHARACTERS // 2], "documents": ["b"] * 3},
        "query",
    ),
    "score": ("/score", {"model": "embed", "text_1": OVER, "text_2": "b"}, "text_1"),
}

SERVED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a long text": ("/v1/embeddings", {"model": "embed", "input": OVER[:MOST_CHARACTERS]}),
    "many inputs": ("/v1/embeddings", {"model": "embed", "input": [TEXT * (fitting(CONTEXT) // len(TEXT))] * 250}),
    "token ids": ("/v1/embeddings", {"model": "embed", "input": [5] * 300_000}),
    "an image": ("/v1/chat/completions", _said([{"type": "image_url", "image_url": {"url": IMAGE}}])),
    "an image, Responses": (
        "/v1/responses",
        {
            "model": "chat",
            "input": [{"role": "user", "content": [{"type": "input_image", "detail": "auto", "image_url": IMAGE}]}],
        },
    ),
    "an image, Anthropic": (
        "/v1/messages",
        _said([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 300_000}}]),
    ),
    "a sound": (
        "/v1/chat/completions",
        _said([{"type": "input_audio", "input_audio": {"format": "wav", "data": "QUJD" * 300_000}}]),
    ),
}


class LongTextRig:
    """A router with deployments of this project, `chat` and `embed`, and one elsewhere, `far`."""

    def __init__(self, router: Router, engine: HostileEngine, url: str, client: httpx.Client) -> None:
        self.engine, self.client = engine, client
        generation, pooling = ["chat", "completions", "responses"], ["embeddings", "classify", "rerank"]
        router.reconfigure(
            {
                "endpoints": {
                    "chat": {"tasks": generation, "traffic": {"blue": 100}},
                    "embed": {"tasks": pooling, "traffic": {"mini": 100}},
                },
                "deployments": {
                    "blue": {"app": "blue", "model": "m", "tasks": generation},
                    "mini": {"app": "blue", "model": "m", "tasks": pooling},
                    "far": {"url": f"{url}{APP_PREFIX}blue", "model": "m", "tasks": generation},
                },
                "defaults": {"chat": "chat", "completions": "chat", "embeddings": "embed"},
            }
        )

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """`engine.headers` are empty afterwards if it was not asked."""
        self.engine.headers = {}
        return self.client.post(path, json=body)


@pytest.fixture(scope="module")
def rig(servers: ServerPool) -> Iterator[LongTextRig]:
    engine = HostileEngine()
    with servers.host(Starlette(routes=[Mount(f"{APP_PREFIX}blue", engine.app)])) as ingress:
        router = Router(RuntimeEnvironment(ingress, internal_key="internal"))
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            yield LongTextRig(router, engine, ingress, client)


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_no_context_holds_is_refused_by_its_field_before_an_engine_sees_it(
    rig: LongTextRig, name: str
) -> None:
    path, body, field = REFUSED[name]
    answer = rig.post(path, body)
    assert answer.status_code in (400, 422), answer.text[:300]
    assert field in answer.text
    assert str(MOST_CHARACTERS) in answer.text
    assert not rig.engine.headers
    assert len(answer.content) < 1000


@pytest.mark.parametrize(("count", "status"), [(MOST_TOKENS, 200), (MOST_TOKENS + 1, 400)])
def test_a_text_is_put_together_from_a_bounded_number_of_tokens(rig: LongTextRig, count: int, status: int) -> None:
    answer = rig.post("/detokenize", {"model": "chat", "tokens": [5] * count})
    assert answer.status_code == status, answer.text[:300]
    assert bool(rig.engine.headers) is (status == 200)
    assert status == 200 or ("tokens" in answer.text and str(MOST_TOKENS) in answer.text)


@pytest.mark.parametrize("name", SERVED)
def test_media_token_ids_and_batches_of_texts_that_fit_may_be_as_long_as_a_body(rig: LongTextRig, name: str) -> None:
    answer = rig.post(*SERVED[name])
    assert rig.engine.headers, answer.text[:300]


def test_what_a_server_elsewhere_takes_is_its_own_to_say(rig: LongTextRig) -> None:
    assert rig.post("/v1/chat/completions", {**_said(OVER), "model": "far"}).status_code == 200


@pytest.mark.parametrize(("length", "is_counted"), [(100_000, True), (200_000, False)])
def test_an_engine_that_refuses_a_long_prompt_is_not_asked_to_count_it(
    servers: ServerPool, length: int, is_counted: bool
) -> None:
    engine = FakeEngine(card=CARD)
    sentence = f"This model's maximum context length is {CONTEXT} tokens. However, you requested 9 output tokens."
    engine.answer = refuse(400, sentence)
    with servers.host(Starlette(routes=[Mount(f"{APP_PREFIX}blue", engine.app)])) as ingress:
        router = Router(RuntimeEnvironment(ingress, internal_key="internal"))
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=30) as client:
            LongTextRig(router, HostileEngine(), ingress, client)
            answer = client.post("/v1/completions", json={"model": "chat", "prompt": "a" * length})
    assert answer.status_code == 400, json.dumps(answer.json())
    assert (len(engine.requests) > 1) is is_counted


DEEP, WIDE, LONG = "[" * 2000 + "]" * 2000, "[" + "[]," * 100_000 + "1]", "9" * 5000


def _called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]


@pytest.mark.parametrize("arguments", [DEEP, WIDE, LONG], ids=["deep", "wide", "long"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        f"/azure/chat/completions{_AZURE}",
        "/serverless/v1/chat/completions",
        "/serving-endpoints/chat/invocations",
        "/tgi/chat/v1/chat/completions",
        "/tokenize",
    ],
)
def test_a_calls_arguments_are_read_in_a_moment_or_refused(rig: LongTextRig, path: str, arguments: str) -> None:
    """An engine reads them as JSON, in the thread of all its streams, and fails at a thousand levels."""
    answer = rig.post(path, {"model": "chat", "messages": _called(arguments)})
    assert answer.status_code in (400, 422), answer.text[:300]
    assert "messages[1].tool_calls[0].function.arguments" in answer.text
    assert not rig.engine.headers
    assert rig.post(path, {"model": "chat", "messages": _called(json.dumps({"a": "b" * 3000}))}).status_code == 200


@pytest.mark.parametrize("arguments", [DEEP, WIDE, LONG], ids=["deep", "wide", "long"])
def test_so_are_those_of_responses(rig: LongTextRig, arguments: str) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    answer = rig.post("/v1/responses", {"model": "chat", "input": [item]})
    assert (answer.status_code, "input[0].arguments" in answer.text) == (400, True), answer.text[:300]
    assert not rig.engine.headers
