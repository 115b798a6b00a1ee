"""An engine that plays a model with one tool call: it calls the client's shell, then says what that printed.

It answers the streams of `/v1/messages` and `/v1/responses` as vLLM does.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.support.engine.fake_engine import Answer, FakeEngine, frame, stream

COMMAND = "printf loop-%s 42"
PRINTED = "loop-42"
"""What the command prints; it is no part of the command itself."""

SAID = f"The command printed {PRINTED}."
_SHELLS = ("Bash", "exec_command", "shell_command", "shell")


def scripted(engine: FakeEngine) -> Answer:
    """The answers of `engine`."""

    def answer(body: dict[str, Any]) -> Response:
        path = engine.paths[-1]
        if path == "/v1/messages/count_tokens":
            return JSONResponse({"input_tokens": 9})
        conversation = json.dumps(body.get("messages") or body.get("input"))
        is_called = '"tool_result"' in conversation or '"function_call_output"' in conversation
        shells = [tool for tool in body.get("tools") or () if tool.get("name") in _SHELLS]
        shell = None if is_called or not shells else shells[0]
        text = SAID if PRINTED in conversation else "Nothing was printed."
        return _sent(_response(shell, text) if path == "/v1/responses" else _message(shell, text))

    return answer


def _arguments(shell: Mapping[str, Any]) -> str:
    parameters = shell.get("input_schema") or shell["parameters"]
    name = "cmd" if "cmd" in parameters["properties"] else "command"
    is_list = parameters["properties"][name].get("type") == "array"
    return json.dumps({name: ["sh", "-c", COMMAND] if is_list else COMMAND})


def _message(shell: Mapping[str, Any] | None, text: str) -> Iterator[dict[str, Any]]:
    head: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    usage = {"input_tokens": 9, "output_tokens": 3}
    yield {"type": "message_start", "message": {**head, "usage": usage}}
    if shell is None:
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": text}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": shell["name"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": _arguments(shell)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn" if shell is None else "tool_use"},
        "usage": usage,
    }
    yield {"type": "message_stop"}


def _response(shell: Mapping[str, Any] | None, said: str) -> Iterator[dict[str, Any]]:
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
    yield {"type": "response.created", "response": {**response, "status": "in_progress"}}
    about: dict[str, Any] = {"output_index": 0, "item_id": "item_1"}
    if shell is None:
        text = {"type": "output_text", "text": said, "annotations": []}
        item: dict[str, Any] = {"type": "message", "id": "item_1", "role": "assistant", "content": [text]}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
        yield {"type": "response.output_text.delta", **about, "content_index": 0, "delta": said}
    else:
        item = {"type": "function_call", "id": "item_1", "call_id": "call_1", "name": shell["name"]}
        item["arguments"] = _arguments(shell)
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
        yield {"type": "response.function_call_arguments.delta", **about, "delta": item["arguments"]}
    item["status"] = "completed"
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": [item], "usage": usage},
    }


def _sent(events: Iterator[dict[str, Any]]) -> Response:
    return stream(
        [
            f"event: {event['type']}\n{frame({**event, 'sequence_number': number})}"
            for number, event in enumerate(events)
        ]
    )
