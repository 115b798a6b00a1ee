"""An engine that plays a model with one tool call: it calls the client's shell, then says what that printed.

It answers the streams of `/v1/messages` and `/v1/responses` as vLLM does.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.support.engine.fake_engine import Answer, FakeEngine
from tests.support.engine.other_answers import HELLO, every_route, message_with, response_of

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
        return response_of(_events(shell, text)) if path == "/v1/responses" else _message(body, shell, text)

    return answer


def talking(engine: FakeEngine) -> Answer:
    """Answers requests of `engine` on every route with a greeting. Codex needs more of a response's events."""
    others = every_route(engine)

    def answer(body: dict[str, Any]) -> Response:
        is_response = engine.paths[-1] == "/v1/responses"
        return response_of(_events(None, HELLO)) if is_response and body.get("stream") else others(body)

    return answer


def _arguments(shell: Mapping[str, Any]) -> dict[str, Any]:
    parameters = shell.get("input_schema") or shell["parameters"]
    name = "cmd" if "cmd" in parameters["properties"] else "command"
    is_list = parameters["properties"][name].get("type") == "array"
    return {name: ["sh", "-c", COMMAND] if is_list else COMMAND}


def _message(body: dict[str, Any], shell: Mapping[str, Any] | None, text: str) -> Response:
    if shell is None:
        return message_with(body, {"type": "text", "text": text})
    call = {"type": "tool_use", "id": "toolu_1", "name": shell["name"], "input": _arguments(shell)}
    return message_with(body, call, stop_reason="tool_use")


def _events(shell: Mapping[str, Any] | None, said: str) -> Iterator[dict[str, Any]]:
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
        item["arguments"] = json.dumps(_arguments(shell))
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
        yield {"type": "response.function_call_arguments.delta", **about, "delta": item["arguments"]}
    item["status"] = "completed"
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": [item], "usage": usage},
    }
