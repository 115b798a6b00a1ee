"""Deployments that answer with status 200 and anything: clients get an error in their dialect's form."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from app.internal_api import MODEL_PATH
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.hostile.client import Client, Reply
from tests.router.hostile.engine import compact
from tests.router.hostile.errors import dialects, in_events
from tests.support.engine.fake_engine import CARD, CONTEXT, stream
from tests.support.processes.servers import serve

SAY: Mapping[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOKENS = {"tokens": [5, 6, 7], "count": 3, "max_model_len": CONTEXT}
AZURE = "?api-version=2024-05-01-preview"


@dataclass(frozen=True)
class Ask:
    """A request, the dialect of its errors, and the first event of a valid stream of the engine's."""

    dialect: str
    path: str
    body: Mapping[str, Any]
    first: bytes | None = None
    breaks: bool = False
    """The dialect has no error event: a stream that fails is cut off."""

    @property
    def name(self) -> str:
        return f"{self.path}{' stream' if self.first else ''}"


def event(**fields: Any) -> bytes:
    name = b"event: %b\n" % fields["type"].encode() if "type" in fields else b""
    return name + b"data: " + compact(fields) + b"\n\n"


CHAT = event(id="c", object="chat.completion.chunk", created=1, model="m", choices=[
    {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None},
])  # fmt: skip
TEXT = event(id="c", object="text_completion", created=1, model="m", choices=[
    {"index": 0, "text": "Hi", "finish_reason": None, "token_ids": [5], "prompt_token_ids": [5], "logprobs": None},
])  # fmt: skip
RESPONSE = event(type="response.output_text.delta", delta="Hi", item_id="m", output_index=0, sequence_number=1)
MESSAGE = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
LONG = {"max_tokens": 5}
ASKS = [
    Ask("openai", "/v1/chat/completions", SAY, CHAT),
    Ask("openai", "/v1/completions", {"prompt": "hi"}, TEXT),
    Ask("openai", "/v1/responses", {"input": "hi"}, RESPONSE),
    Ask("openai", "/v1/embeddings", {"model": "embed", "input": "hi"}),
    Ask("openai", "/v1/rerank", {"model": "embed", "query": "a", "documents": ["b"]}),
    Ask("openai", "/score", {"model": "embed", "queries": "a", "documents": ["b"]}),
    Ask("openai", "/tokenize", {"model": "chat", "prompt": "a"}),
    Ask("anthropic", "/v1/messages", {**SAY, **LONG}, MESSAGE),
    Ask("anthropic", "/v1/messages/count_tokens", SAY),
    Ask("azure", f"/azure/chat/completions{AZURE}", SAY, CHAT, breaks=True),
    Ask("azure", f"/azure/completions{AZURE}", {"prompt": "hi", **LONG}, TEXT, breaks=True),
    Ask("azure", f"/azure/embeddings{AZURE}", {"model": "embed", "input": ["hi"]}),
    Ask("databricks", "/serving-endpoints/chat/invocations", SAY, CHAT),
    Ask("databricks", "/serving-endpoints/chat/invocations", {"prompt": "hi", **LONG}, TEXT),
    Ask("databricks", "/serving-endpoints/responses", {"model": "chat", "input": "hi"}, RESPONSE),
    Ask("databricks", "/serving-endpoints/embed/invocations", {"input": "hi"}),
    Ask("tgi", "/tgi/chat/v1/chat/completions", SAY, CHAT),
    Ask("tgi", "/tgi/chat/v1/completions", {"prompt": "hi", **LONG}, TEXT),
    Ask("tgi", "/tgi/chat/generate", {"inputs": "hi", "parameters": {"max_new_tokens": 5}}),
    Ask("tgi", "/tgi/chat/generate_stream", {"inputs": "hi", "parameters": {"max_new_tokens": 5}}, TEXT),
    Ask("friendli", "/dedicated/v1/chat/completions", SAY, CHAT),
    Ask("friendli", "/dedicated/v1/completions", {"prompt": "hi", **LONG}, TEXT, breaks=True),
]

JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True)
class Garbage:
    """What an engine sends as the body of its answer."""

    name: str
    body: bytes
    media_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    of_stream: bool | None = None
    """Whether it is for streams, or for whole answers; None: for both."""


SHAPES = (b"[]", b"{}", b'"text"', b"5", b"null", b"true", b'{"choices":5}', b'{"choices":[5]}', b'{"data":{}}',
          b'{"output":5}', b'{"content":"x"}', b'{"results":{}}', b'{"object":"error","message":"x"}')  # fmt: skip
WHOLE = [
    Garbage("html", b"<html><h1>It works!</h1></html>", "text/html"),
    Garbage("html as json", b"<html><h1>It works!</h1></html>"),
    Garbage("empty", b""),
    Garbage("truncated", b'{"id":"c","choices":[{"index":0,"message":{"role":"assist', of_stream=False),
    Garbage("truncated at a bracket", b'{"id":"c","choices":[{"index":0,"message":{"a":{}}', of_stream=False),
    Garbage("another charset", '{"choices":[{"message":{"content":"é"},"text":"é"}]}'.encode("latin-1")),
    Garbage("utf-16", '{"choices":[{"message":{"content":"a"},"text":"a"}]}'.encode("utf-16")),
    Garbage("gzip", b"\x1f\x8b\x08\x00" + bytes(range(128)), headers={"content-encoding": "gzip"}),
    Garbage("huge", b"<p>" * 700_000, "text/html"),
    Garbage("huge json", b'{"choices":[' + b"{}," * 300_000 + b"5]}"),
    Garbage("plain text", b'{"choices":[{"message":{},"text":"a"}],"data":[{}]}', "text/plain", of_stream=False),
    Garbage("events", CHAT + b"data: [DONE]\n\n", EVENTS, of_stream=False),
    *(Garbage(f"shape {it.decode()}", it, of_stream=False) for it in SHAPES),
]
FRAMES = [
    Garbage("a line", b"garbage\n\n"),
    Garbage("html", b"<html>\n\n</html>\n\n"),
    Garbage("no json", b"data: {not json}\n\n"),
    Garbage("cut", CHAT[:40] + b"\n\n"),
    Garbage("another charset", b'data: {"choices":[{"index":0,"delta":{"content":"\xe9"},"text":"\xe9"}]}\n\n'),
    Garbage("a control character", b'data: {"choices":[{"index":0,"delta":{"content":"\x01"}}]}\n\n'),
    Garbage("two lines", b"<b>\n" + CHAT),
    Garbage("no end", b"data: {\n"),
    *(Garbage(f"shape {it.decode()}", b"data: " + it + b"\n\n") for it in SHAPES),
]


class Liar:
    """An engine that says 200 and sends `body` to every request but lookups; its model card and token counts are right.

    `good`: the valid events before the garbage.
    """

    def __init__(self) -> None:
        self.garbage = WHOLE[0]
        self.good = b""
        self.calls = 0

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route(MODEL_PATH, lambda request: JSONResponse(CARD)),
                Route("/{path:path}", self._call, methods=["POST"]),
            ]
        )

    async def _call(self, request: Request) -> Response:
        body = await request.json()
        if request.url.path.endswith("/tokenize") and body.get("prompt") != "a":
            return JSONResponse(TOKENS)
        self.calls += 1
        garbage, is_stream = self.garbage, bool(body.get("stream"))
        media_type = garbage.media_type or (EVENTS if is_stream else JSON)
        if self.good:
            return stream([self.good, garbage.body])
        return Response(garbage.body, headers={"content-type": media_type, **garbage.headers})


@dataclass
class Lied:
    """A router in front of a liar."""

    liar: Liar
    router: Router
    client: Client

    def ask(self, ask: Ask, *, stream: bool) -> Reply:
        body = {"model": "chat", **ask.body, **({"stream": True} if stream else {})}
        body.pop("model" if ask.path.endswith("invocations") else "", None)
        reply = self.client.request("POST", ask.path, compact(body), [(b"content-type", b"application/json")])
        assert self.liar.calls > 0, (reply.status, reply.body)
        self.liar.calls = 0
        return reply

    def faults(self) -> float:
        """The failed attempts that the metrics have counted."""
        text = self.client.request("GET", "/metrics").body.decode()
        begins = ("switchyard_errors_total{", "switchyard_retries_total{")
        return sum(float(it.rpartition(" ")[2]) for it in text.splitlines() if it.startswith(begins))


@pytest.fixture(scope="module")
def lied() -> Iterator[Lied]:
    liar, router = Liar(), Router(RuntimeEnvironment(), random=Random(7))
    with serve(Starlette(routes=[Mount("/e", liar.app)])) as engine:
        tasks = {"chat": ["chat", "completions", "responses"], "embed": ["embeddings", "rerank"]}
        router.reconfigure(
            {
                "endpoints": {name: {"tasks": its, "traffic": {f"{name}-1": 100}} for name, its in tasks.items()},
                "deployments": {
                    f"{name}-1": {"url": f"{engine}/e", "model": "m", "tasks": its} for name, its in tasks.items()
                },
                "defaults": {"chat": "chat", "completions": "chat", "responses": "chat", "embeddings": "embed"},
            }
        )
        with serve(router.app) as url:
            host, _, port = url.removeprefix("http://").partition(":")
            client = Client(host, int(port))
            yield Lied(liar, router, client)
            client.close()


def is_error(reply: Reply, ask: Ask) -> bool:
    """Whether the client sees a failure, in the form of its dialect."""
    if reply.status >= 500 or (ask.dialect == "tgi" and reply.status == 424):
        return ask.dialect in dialects(reply)
    return ask.dialect in in_events(reply.body)  # TGI's streams have status 200 whatever happens


def deployment(ask: Ask) -> str:
    return "embed-1" if ask.body.get("model") == "embed" or "/embed/" in ask.path else "chat-1"


@contextmanager
def counted(lied: Lied, ask: Ask, count: int) -> Iterator[None]:
    """Asserts that the block's requests are failures of the deployment, for the metrics and its breaker."""
    before = lied.faults()
    yield
    assert lied.faults() >= before + count
    breaker = lied.router.state.health._breakers.of(deployment(ask))
    assert breaker.faults > 0 or breaker.is_open


@pytest.mark.parametrize("ask", ASKS, ids=lambda it: it.name)
def test_a_whole_answer_that_is_none_is_an_error(lied: Lied, ask: Ask) -> None:
    lied.liar.good = b""
    kinds: Sequence[bool] = [True] if "generate_stream" in ask.path else [False, True] if ask.first else [False]
    for streamed in kinds:
        garbage = [it for it in WHOLE if it.of_stream in (None, streamed)]
        with counted(lied, ask, len(garbage)):
            for lied.liar.garbage in garbage:
                reply = lied.ask(ask, stream=streamed)
                assert is_error(reply, ask), (lied.liar.garbage.name, reply.status, reply.body[:200])
                assert b"<" not in reply.body


@pytest.mark.parametrize("ask", [it for it in ASKS if it.first], ids=lambda it: it.name)
def test_a_stream_that_begins_with_garbage_is_an_error(lied: Lied, ask: Ask) -> None:
    lied.liar.good = b""
    with counted(lied, ask, len(FRAMES)):
        for lied.liar.garbage in FRAMES:
            reply = lied.ask(ask, stream=True)
            assert is_error(reply, ask), (lied.liar.garbage.name, reply.status, reply.body)


@pytest.mark.parametrize("ask", [it for it in ASKS if it.first], ids=lambda it: it.name)
def test_garbage_in_a_stream_ends_it_with_an_error_event(lied: Lied, ask: Ask) -> None:
    assert ask.first is not None
    lied.liar.good = ask.first * 3
    with counted(lied, ask, len(FRAMES)):
        for lied.liar.garbage in FRAMES:
            reply = lied.ask(ask, stream=True)
            assert reply.status == 200
            lines = [line for line in reply.body.splitlines() if line and not line.startswith(b"event: ")]
            assert all(isinstance(json.loads(line.removeprefix(b"data:")), dict) for line in lines), "without [DONE]"
            assert not reply.complete if ask.breaks else ask.dialect in in_events(reply.body), reply.body
