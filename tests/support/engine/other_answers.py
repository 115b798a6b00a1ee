"""A fake vLLM's answers at `/v1/messages`, `/v1/responses`, `/v1/completions` and `/v1/embeddings`, and at
every route."""

from typing import Any

from starlette.responses import JSONResponse, Response

from tests.support.clients.samples import MODEL
from tests.support.engine.fake_engine import Answer, FakeEngine, chat, frame, speaks, stream

HELLO = "Hello blue-model"


def message(body: dict[str, Any]) -> Response:
    """Anthropic's answer, streamed or whole, as vLLM has it at `/v1/messages`."""
    usage = {"input_tokens": 9, "output_tokens": 3}
    whole: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    whole |= {"content": [{"type": "text", "text": HELLO}], "stop_reason": "end_turn", "usage": usage}
    if not body.get("stream"):
        return JSONResponse(whole)
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": HELLO}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
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
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_text.delta", **part, "delta": HELLO, "logprobs": []},
        {"type": "response.completed", "response": done},
    ]
    return stream([f"event: {it['type']}\n" + frame({**it, "sequence_number": n}) for n, it in enumerate(events)])


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
