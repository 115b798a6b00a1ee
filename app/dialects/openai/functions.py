"""OpenAI's former form of tools, `functions` and `function_call`, which vLLM does not have.

The engine gets tools, of which the model may make one call, and the client gets that call in the former form.
Contract: OpenAI's API reference, "Create chat completion", the fields that it calls deprecated.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.common.last_usage import read_chunk
from app.dialects.json_body import dump
from app.sse import encode

_CALLS = b'"tool_calls"'


def replace_functions(body: dict[str, Any]) -> bool:
    """Puts tools in the place of a checked chat body's functions, in its messages too; returns whether it had any."""
    body["messages"] = _messages(body["messages"])
    functions, choice = body.pop("functions", None), body.pop("function_call", None)
    if not functions:
        return False
    body["tools"] = [{"type": "function", "function": function} for function in functions]
    body["parallel_tool_calls"] = False
    if choice is not None:
        body["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": choice}
    return True


def _messages(messages: list[Any]) -> list[Any]:
    """The messages with tool calls for function calls. A result belongs to the last call, or stands alone."""
    replaced, call_id = [], ""
    for number, message in enumerate(messages):
        if "function_call" in message:
            call_id = f"call_{number}"
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            message = {**_without(message, "function_call"), "tool_calls": [call]}
        elif message["role"] == "function":
            message = {**message, "role": "tool", "tool_call_id": call_id or f"call_{number}"}
        replaced.append(message)
    return replaced


def whole_answer(answer: bytes) -> bytes:
    """A whole chat completion with the former form of its calls."""
    completion = from_json(answer)
    completion["choices"] = [_choice(choice, "message") for choice in completion["choices"]]
    return dump(completion)


def stream_frame(frame: bytes) -> bytes:
    """A stream's frame with the former form of its calls."""
    if _CALLS not in frame:
        return frame
    chunk = read_chunk(frame)
    return encode(dump({**chunk, "choices": [_choice(choice, "delta") for choice in chunk["choices"]]}))


def _choice(choice: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A choice whose message, or delta, has the first of its tool calls as `function_call`."""
    calls = choice[part].get("tool_calls") or []
    message = _without(choice[part], "tool_calls")
    for call in calls:
        if call.get("index", 0) == 0:
            message["function_call"] = {name: call["function"][name] for name in _MEMBERS if name in call["function"]}
            break
    ended = choice.get("finish_reason")
    return {**choice, part: message, "finish_reason": "function_call" if ended == "tool_calls" else ended}


_MEMBERS = ("name", "arguments")


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}
