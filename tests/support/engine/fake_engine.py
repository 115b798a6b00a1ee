"""A fake vLLM deployment that answers, streams, rejects or breaks off as the test configures it."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.engine.expected import choices_of, count_of
from app.engine.model import Model
from app.internal_api import CONTINUATION_HEADER, CONTINUES, HEAD_FIRST_HEADER, MODEL_PATH, REPLICA_HEADER
from app.sse import DONE
from deployments.engine.head_first import HeadFirstMiddleware
from tests.support.clients.samples import MODEL, PROCESSORS, tokenizer
from tests.support.engine import engine_answers as completions
from tests.support.engine.marked import Fate, MarkedResponse, grouped, rest

Answer = Callable[[dict[str, Any]], Response]

CONTEXT = 100
"""The context length of its models, in tokens."""

CARD = {
    "tokenizer": tokenizer().to_str(),
    "eos_token_ids": [0],
    "max_model_len": CONTEXT,
    "hidden_size": 4,
    "vocab_size": MODEL.vocab_size,
    "logprobs_mode": "raw_logprobs",
    "processors": sorted(PROCESSORS),
}
"""The model card of a model application of this project."""


def chunk(content: str, *, model: str = "m", finish_reason: str | None = None, index: int = 0) -> str:
    """One frame of a chat stream, spaced as vLLM does."""
    choice = {"index": index, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
    return frame(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
    )


def frame(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def chat(body: dict[str, Any]) -> Response:
    """A valid answer, streamed or whole, with the requested model name in its text. A whole one is valid on every route
    that generates text or embeds it."""
    text = ["Hel", "lo ", body["model"]]
    indices = range(choices_of(body) if "prompt" in body else body.get("n", 1))
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(text)}
        choice = {"message": message, "logprobs": None, "finish_reason": "stop"}
        if "prompt" in body:
            choice["text"] = message["content"]
        choices = [{"index": index, **choice} for index in indices]
        answer: dict[str, Any] = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": choices,
        }
        if "max_tokens" in body:
            answer["content"] = [{"type": "text", "text": message["content"]}]
        if "input" in body:
            vectors = [{"index": index, "embedding": [0.5]} for index in range(count_of("/v1/embeddings", body) or 1)]
            answer |= {"status": "completed", "output": [], "data": vectors}
        return JSONResponse({**answer, "usage": USAGE})
    frames = [chunk(part, index=index) for part in text for index in indices]
    frames += [chunk("", finish_reason="stop", index=index) for index in indices]
    if body.get("stream_options", {}).get("include_usage"):
        frames.append(frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}))
    return stream([*frames, "data: [DONE]\n\n"])


def stream(parts: Sequence[str | bytes | float]) -> Response:
    """An event stream of these parts; a number is a pause in seconds."""

    async def body() -> AsyncIterator[str | bytes]:
        for part in parts:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                yield part
                await asyncio.sleep(0)

    return StreamingResponse(body(), media_type="text/event-stream")


def speaks(
    model: Model,
    text: str,
    *,
    in_one: bool = False,
    finish_reason: str = "stop",
    eos: Sequence[int] = (),
    sent: Callable[[list[str | bytes | float]], list[str | bytes | float]] = list,
) -> Answer:
    """A completion that says `text` in `model`'s tokens, as many as are allowed; streamed, in portions or one chunk.

    Several choices have the same text, and their portions alternate. `eos` comes after the text. `sent` selects the
    parts of a stream that are sent.
    """

    def answer(body: dict[str, Any]) -> Response:
        ids = [*model.encode(text), *eos]
        reason = finish_reason if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        added = completions.texts(model, body["prompt"], ids)
        stop = next((stop for stop in body.get("stop", []) if stop in "".join(added)), None)
        if stop is not None:
            ids = next(ids[:n] for n in range(1, len(ids) + 1) if stop in "".join(added[:n]))
        choices = [
            completions.choice(
                model, body["prompt"], ids, index=n, finish_reason=reason, stop=stop, top=body.get("logprobs")
            )
            for n in range(body.get("n", len(body.get("seeds", [0]))))
        ]
        if stop is not None and not body.get("include_stop_str_in_output"):
            choices = [{**choice, "text": choice["text"].removesuffix(stop)} for choice in choices]
        if body["stream"]:
            portions = [completions.portions(model, choice, [] if in_one else [1, 2, 1, 3, 1]) for choice in choices]
            parts = [part for together in zip(*portions, strict=True) for part in together]
            return stream(sent([*(completions.stream([part]).removesuffix(DONE) for part in parts), DONE]))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return JSONResponse({"id": "c", "object": "text_completion", "choices": choices, "usage": usage})

    return answer


def refuse(status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> Answer:
    """vLLM's error object."""
    return lambda body: JSONResponse(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status_code=status
    )


def broken_after(*parts: str) -> bytes:
    """A raw HTTP answer that breaks off after `parts`, in the middle of a chunked body."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part.encode()), part.encode()) for part in parts)


@dataclass
class FakeEngine:
    """One deployment. `answer` makes its responses; `requests`, `paths` and `headers` record what it received.

    With a `card` it is a model application of this project, which serves that card. With a `tokenizer` it shows those
    settings. If it `continues`, it is all replicas of such an application: it marks streams, with `pause_s` seconds
    after each group, and continues them; `fates` befall its streams in turn, and its whole answers but for tokens: then
    an engine dies, each time another one. `known` are the tokens with which a stream was to be continued, None for a
    new one.
    """

    answer: Answer = chat
    healthy: bool = True
    card: dict[str, Any] | None = None
    tokenizer: dict[str, Any] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    continues: bool = False
    pause_s: float = 0.0
    fates: list[Fate] = field(default_factory=list)
    known: list[list[int] | None] = field(default_factory=list)

    def reset(self) -> None:
        """Restores the defaults, and forgets all requests."""
        vars(self).update(vars(FakeEngine()))

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ping", self._health, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/tokenize", self._call, methods=["POST"]),
                Route("/detokenize", self._call, methods=["POST"]),
                Route("/pooling", self._call, methods=["POST"]),
                Route("/classify", self._call, methods=["POST"]),
                Route("/version", self._version),
                Route("/tokenizer_info", self._tokenizer_info),
                Route("/score", self._call, methods=["POST"]),
                Route("/v1/{path:path}", self._call, methods=["POST"]),
                Route(MODEL_PATH, self._model),
                Route("/switchyard/completions", self._call, methods=["POST"]),
            ],
            middleware=[Middleware(_Names), Middleware(HeadFirstMiddleware)] if self.continues else [],
        )

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _models(self, request: Request) -> Response:
        cards = [{"id": f"{name}-model", "max_model_len": CONTEXT} for name in ("blue", "green", "mini")]
        return JSONResponse({"object": "list", "data": cards})

    async def _model(self, request: Request) -> Response:
        card = {**self.card, CONTINUES: True} if self.card and self.continues else self.card
        return JSONResponse(card, status_code=200 if card else 404)

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": "0.29.0"})

    async def _tokenizer_info(self, request: Request) -> Response:
        return JSONResponse(self.tokenizer or {"detail": "Not Found"}, status_code=200 if self.tokenizer else 404)

    async def _call(self, request: Request) -> Response:
        content, asked = await request.body(), request.headers.get(CONTINUATION_HEADER)
        known = None
        if self.continues and asked and asked.isdigit():
            end = len(content) - 4 * int(asked)
            content, known = content[:end], list(struct.unpack(f"<{asked}I", content[end:]))
        body = json.loads(content)
        self.known.append(known)
        self.requests.append(body)
        self.paths.append(request.scope["path"].removeprefix(request.scope["root_path"]))
        self.headers.append(dict(request.headers))
        response = self.answer(body)
        if HEAD_FIRST_HEADER in request.headers and self.fates and "tokenize" not in request.url.path:
            await asyncio.sleep(self.fates.pop(0).pause_s)
            return _Dead()
        if self.continues and asked and isinstance(response, StreamingResponse):
            return await self._marked(response, known)
        return response

    async def _marked(self, response: StreamingResponse, known: list[int] | None) -> Response:
        parts = [part if isinstance(part, bytes) else str(part).encode() async for part in response.body_iterator]
        groups = grouped(b"".join(parts))
        ids = [id for group in groups for id in group.ids]
        fate = self.fates.pop(0) if self.fates else None
        if fate is not None and fate.how == "held":
            await asyncio.sleep(fate.pause_s)
            fate = self.fates.pop(0) if self.fates else None
        if fate is not None and fate.how == "queued":
            return Response(
                "Request dropped due to backpressure (num_queued_requests=64, max_queued_requests=64).", 503
            )
        if fate is not None and fate.how == "busy":
            return refuse(503, "at capacity")({})
        if fate is not None and fate.how == "absent":
            return Response("no replica", 503)
        if fate is not None and fate.how == "dying":
            await asyncio.sleep(fate.pause_s)
            return Response("no answer", 502)  # the ingress's, whose connection to the replica is closed
        if (fate is not None and fate.how == "refused") or (known and known != ids[: len(known)]):
            return refuse(400, "these are not the tokens")({})
        name = f"engine-{len(self.paths) if fate is None or fate.of is None else -fate.of}"
        return MarkedResponse(groups if known is None else rest(groups, len(known)), fate, self.pause_s, name)


class _Names:
    """Gives each answer whose head comes first an engine's name of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._count = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if (HEAD_FIRST_HEADER.encode(), b"1") in message.get("headers", ()):
                self._count += 1
                name = (REPLICA_HEADER.encode(), b"whole-%d" % self._count)
                message = {**message, "headers": [*message["headers"], name]}
            await send(message)

        await self._app(scope, receive, named)


class _Dead(Response):
    """The answer of an engine that dies of the request: the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


class RawServer:
    """Accepts connections, reads a request, sends given bytes and closes: an upstream that breaks off."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.connections = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._data)
        await writer.drain()
        # A reset, not an orderly end, after the reader has had time to read the data.
        await asyncio.sleep(0.05)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()
