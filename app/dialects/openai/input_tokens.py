"""POST /v1/responses/input_tokens: the size of the prompt that a Responses request would have.

vLLM has no such route, so the request's items become the chat messages that vLLM makes of them, which `/tokenize`
counts. Contract: OpenAI's API reference, "Get input token counts"; vLLM 0.29, `entrypoints/openai/responses/utils.py`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Reply, ServingContext, immutable
from app.dialects.bodies import dump
from app.dialects.common.requests import DirectTranslation
from app.engine.output import MALFORMED
from app.errors import BadRequest

PASSED = frozenset({"chat_template_kwargs", "model"})
"""The fields that `/tokenize` has too."""


@immutable
class CountTranslation(DirectTranslation):
    """The count; `body` is `tokenized`'s."""

    generates = False

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        count = len(from_json(answer)["tokens"])
        return Reply(dump({"object": "response.input_tokens", "input_tokens": count}))


def tokenized(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body for `/tokenize` of a Responses body whose `input` is a text or a list. Raises BadRequest."""
    sent = {name: value for name, value in body.items() if name in PASSED}
    try:
        sent["messages"] = _messages(body.get("instructions"), body["input"])
    except MALFORMED:
        raise BadRequest("input: has an item that is none of the API's", param="input") from None
    try:
        tools = [tool for given in body.get("tools") or () for tool in _tools(given, "")]
    except MALFORMED:
        raise BadRequest("tools: has a tool that is none of the API's", param="tools") from None
    return {**sent, "tools": tools} if tools else sent


def _messages(instructions: str | None, items: Any) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": instructions}] if instructions else []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        _add(messages, item)
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Adds an item: calls, reasoning and texts of the model that follow one another are one message."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        return
    if kind == "function_call":
        function = {"name": _named(item.get("namespace", ""), item.get("name")), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _model_message(messages, "").setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or [{}]
        _model_message(messages, "reasoning")["reasoning"] = parts[0].get("text")
    elif item.get("role") == "assistant":
        content = item.get("content")
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
        _model_message(messages, "content")["content"] = text
    elif "role" in item:
        messages.append({"role": item["role"], "content": _content(item.get("content"))})


def _model_message(messages: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The last message, if it is the model's and has no member `name` yet; else a new one."""
    if not messages or messages[-1]["role"] != "assistant" or name in messages[-1]:
        messages.append({"role": "assistant"})
    return messages[-1]


def _content(content: Any) -> Any:
    """A message's content in the form of chats."""
    if not isinstance(content, list):
        return content
    return [_part(part) if isinstance(part, dict) else part for part in content]


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _tools(tool: Mapping[str, Any], namespace: str) -> list[dict[str, Any]]:
    """A function, or those of a namespace, in the form of chats."""
    if tool.get("type") == "namespace":
        return [inner for given in tool.get("tools") or () for inner in _tools(given, tool.get("name", ""))]
    function = {name: value for name, value in tool.items() if name != "type"}
    return [{"type": "function", "function": {**function, "name": _named(namespace, tool.get("name"))}}]


def _named(namespace: str, name: Any) -> Any:
    return f"{namespace}__{name}" if namespace else name
