"""A fake vLLM's answers at `/v1/messages`, `/v1/responses`, `/v1/completions` and `/v1/embeddings`, and at
every route."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import Answer, FakeEngine, chat, frame, speaks, stream

HELLO = "Hello blue-model"


def message(body: dict[str, Any]) -> Response:
    """A message with the text `HELLO`."""
    return message_with(body, {"type": "text", "text": HELLO})


def message_with(body: dict[str, Any], block: Mapping[str, Any], *, stop_reason: str = "end_turn") -> Response:
    """A message of one content block, streamed or whole, as vLLM has it at `/v1/messages`.

    A block of type `tool_use` may have its input as a list of pieces of JSON, which is how the stream sends it.
    """
    usage = {"input_tokens": 9, "output_tokens": 3}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    if not body.get("stream"):
        return JSONResponse({**head, "content": [block], "stop_reason": stop_reason, "usage": usage})
    if block["type"] == "text":
        begun, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    else:
        pieces = block["input"] if isinstance(block["input"], list) else [json.dumps(block["input"])]
        begun = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {**head, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}},
        },
        {"type": "content_block_start", "index": 0, "content_block": begun},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage},
        {"type": "message_stop"},
    ]
    return stream([f"event: {event['type']}\n{frame(event)}" for event in events])


def response(body: dict[str, Any]) -> Response:
    """A response, streamed or whole, as vLLM has it at `/v1/responses`."""
    text = {"type": "output_text", "text": HELLO, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    begun: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": body["model"], "tools": []}
    begun |= {"status": "in_progress", "output": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    done = {**begun, "status": "completed", "output": [item]}
    if not body.get("stream"):
        return JSONResponse(done)
    part = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return response_of(
        [
            {"type": "response.created", "response": begun},
            {"type": "response.output_text.delta", **part, "delta": HELLO, "logprobs": []},
            {"type": "response.completed", "response": done},
        ]
    )


def response_of(events: Iterable[Mapping[str, Any]]) -> Response:
    """The stream of a response with these events, which vLLM numbers."""
    return stream(
        [f"event: {event['type']}\n" + frame({**event, "sequence_number": n}) for n, event in enumerate(events)]
    )


def completion(body: dict[str, Any]) -> Response:
    """A completion of a text, streamed or whole, as vLLM has it at `/v1/completions`."""
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    choice = {"index": 0, "text": HELLO, "logprobs": None, "finish_reason": "stop"}
    whole = {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice], "usage": usage}
    return stream([frame(whole), "data: [DONE]\n\n"]) if body.get("stream") else JSONResponse(whole)


def embedding(body: dict[str, Any]) -> Response:
    """One vector for each input."""
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": n, "embedding": [0.5, 0.25]} for n in range(len(inputs))]
    usage = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}
    return JSONResponse({"id": "embd-1", "object": "list", "created": 1, "model": "m", "data": data, "usage": usage})


def every_route(engine: FakeEngine) -> Answer:
    """Answers requests of `engine` on every route."""

    def answer(body: dict[str, Any]) -> Response:
        path = engine.paths[-1]
        if path == "/v1/messages":
            return message(body)
        if path == "/v1/responses":
            return response(body)
        if path == "/v1/embeddings":
            return embedding(body)
        if isinstance(body.get("prompt"), str):
            return completion(body)
        return chat(body) if "messages" in body else speaks(MODEL, "hello")(body)

    return answer
