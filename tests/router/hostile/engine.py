"""A fake deployment for hostile requests: it answers every route correctly, or with the bytes that a test sets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from app.dialects.common.requests import encoded
from app.internal_api import MODEL_PATH
from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import CARD, CONTEXT, USAGE, chat, frame, refuse, speaks, stream

MAX_LOGPROBS = 20
"""vLLM's default. Without a bound, one generated number makes this fake fill the machine's memory."""

MAX_CHOICES = 128
"""The most choices of one request. vLLM allows 16,384, which would take this fake minutes."""

MAX_DIMENSIONS = 384
"""The most numbers in a vector."""


def _completions(body: dict[str, Any]) -> Response:
    prompt, n = body["prompt"], body.get("n", len(body.get("seeds", [0])))
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    if (body.get("logprobs") or 0) > MAX_LOGPROBS:
        return refuse(400, f"Requested sample logprobs are greater than max allowed: {MAX_LOGPROBS}")(body)
    if n * len(prompts) > MAX_CHOICES:
        return refuse(400, "n: this engine makes fewer choices")(body)
    ids = MODEL.encode(prompts[0]) if isinstance(prompts[0], str) else prompts[0]
    if not all(0 <= id < MODEL.vocab_size for id in ids):
        return refuse(400, "prompt: a token id is out of vocabulary")(body)
    completion = {"max_tokens": 16, "stream": False, **body, "prompt": ids, "n": n * len(prompts)}
    answer = speaks(MODEL, "hello there")(completion)
    if completion["stream"]:
        return answer
    whole = json.loads(bytes(answer.body))
    return JSONResponse({**whole, "created": 1, "model": "m", "usage": {**whole["usage"], "total_tokens": 12}})


def _embeddings(body: dict[str, Any]) -> Response:
    given = body["input"]
    count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1
    numbers = [0.6, 0.8, 0.0, 0.0, *[0.6123456789012345] * (min(body.get("dimensions", 4), MAX_DIMENSIONS) - 4)]
    vector = encoded(numbers, body.get("encoding_format", "float"))
    data = [{"object": "embedding", "index": n, "embedding": vector} for n in range(count)]
    return JSONResponse({"id": "e", "object": "list", "created": 1, "model": "m", "data": data, "usage": USAGE})


def _responses(body: dict[str, Any]) -> Response:
    message = {
        "type": "message",
        "id": "msg",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    }
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    whole = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None}
    answer = {**whole, "output": [message], "usage": usage, "incomplete_details": None}
    if not body.get("stream"):
        return JSONResponse(answer)
    event = {"type": "response.completed", "sequence_number": 1, "response": answer}
    return stream([f"event: response.completed\n{frame(event)}"])


def _messages(body: dict[str, Any]) -> Response:
    usage = {"input_tokens": 9, "output_tokens": 3}
    answer = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}]}
    if not body.get("stream"):
        return JSONResponse({**answer, "model": "m", "stop_reason": "end_turn", "usage": usage})
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}
    return stream([f"event: {event['type']}\n{frame(event)}" for event in (ended, {"type": "message_stop"})])


ANSWERS: dict[str, Callable[[dict[str, Any]], Response]] = {
    "/v1/chat/completions": chat,
    "/v1/chat/completions/render": lambda body: JSONResponse({"token_ids": [5, 6], "token_offsets": [[0, 1], [1, 2]]}),
    "/v1/completions": _completions,
    "/switchyard/completions": _completions,
    "/v1/embeddings": _embeddings,
    "/v1/responses": _responses,
    "/v1/messages": _messages,
    "/v1/messages/count_tokens": lambda body: JSONResponse({"input_tokens": 3}),
    "/tokenize": lambda body: JSONResponse({"count": 3, "max_model_len": CONTEXT, "tokens": [5, 6, 7]}),
    "/detokenize": lambda body: JSONResponse({"prompt": "a"}),
    "/ping": lambda body: Response(),
}


class HostileEngine:
    """It keeps only the headers of the last request: memory that grows is the router's.

    `pieces`: those of every answer, as `media_type` and with the `extra` headers; None for valid answers. It takes
    `pause_s` for each.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self.pieces: Sequence[bytes] | None = None
        self.media_type = "text/event-stream"
        self.extra: dict[str, str] = {}
        self.headers: dict[str, str] = {}

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route(MODEL_PATH, self._card),
                Route("/version", self._version),
                Route("/{path:path}", self._call, methods=["POST"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _card(self, request: Request) -> Response:
        return JSONResponse(CARD)

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": "0.29.0"})

    async def _call(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        body = await request.json()
        path = "/" + request.path_params["path"]
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        if self.pieces is not None:
            return StreamingResponse(self._pieces(self.pieces), media_type=self.media_type, headers=self.extra)
        # The fake refuses what it cannot do, because its own failure would look like the router's.
        with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
            return ANSWERS[path](body)
        return refuse(400, "this engine cannot do that")(body)

    async def _pieces(self, pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)


def compact(value: Any) -> bytes:
    """JSON as a client sends it."""
    return json.dumps(value, separators=(",", ":")).encode()
