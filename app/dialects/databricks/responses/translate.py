"""Databricks' Responses API, translated into the one that vLLM speaks."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.base import Stream
from app.dialects.common.single_tool_call import with_one_call
from app.dialects.databricks.answer import RequestContext
from app.dialects.databricks.fields import checked
from app.dialects.databricks.responses import fields
from app.dialects.databricks.responses.stream import ResponseStream
from app.dialects.json_body import dump
from app.dialects.legacy import Call
from app.errors import BadRequest

REFUSED: Mapping[str, str] = {
    "background": "not supported; every response is made while the client waits",
    "conversation": "not supported; send the conversation's items in `input`",
    "previous_response_id": "not supported, responses are not stored; send the conversation's items in `input`",
    "prompt": "not supported, there are no stored prompts; write it into `instructions` and `input`",
    "service_tier": "not supported",
    "store": "not supported; responses are not stored",
}
"""Refused whatever their value is: `store` false, too."""

_SENT = (
    "include instructions max_output_tokens max_tool_calls model parallel_tool_calls stream temperature text "
    "tool_choice tools top_logprobs top_p"
).split()

_LOGPROBS = "message.output_text.logprobs"

_DEFAULTS: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""What a response says of its request where the request says nothing."""

_ONLY_WHERE_GIVEN = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user")


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """The answer to a Responses request. `echo` is what it says of the request, in the client's own form."""

    asked: RequestContext
    echo: Mapping[str, Any]

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        told = {**answer, **self.echo, "error": None, "store": False}
        if not self.echo["parallel_tool_calls"]:
            told["output"] = with_one_call(answer["output"])
        if answer["status"] == "incomplete":
            told["output"] = _with_an_open_end(told["output"])
        if (usage := answer.get("usage")) is not None:
            told["usage"] = _counts(usage)
        return told

    def stream(self) -> Stream:
        one_call = not self.echo["parallel_tool_calls"]
        return ResponseStream(self.whole, request_id=self.asked.request_id, one_call=one_call)


def responses(body: dict[str, Any], asked: RequestContext) -> Call:
    """A Responses request as vLLM reads it. Raises BadRequest.

    `truncation` "auto" is taken and changes nothing, since the engine would cut off the end of the conversation; one
    that is too long is refused. Asking for `top_logprobs` asks for log-probabilities.
    """
    for name, reason in REFUSED.items():
        if name in body:
            raise BadRequest(f"{name}: {reason}", param=name)
    flat = fields.flat(body)
    request = checked(fields.Responses, flat)
    sent = {name: flat[name] for name in _SENT if name in flat}
    sent |= {"input": _input(request.input), "store": False}
    if request.top_logprobs:
        sent["include"] = list(dict.fromkeys([*sent.get("include", []), _LOGPROBS]))
    if request.reasoning is not None and request.reasoning.effort is not None:
        sent["reasoning"] = {"effort": request.reasoning.effort}
    echo = {name: body.get(name, default) for name, default in _DEFAULTS.items()}
    echo |= {name: body[name] for name in _ONLY_WHERE_GIVEN if name in body}
    return Call("responses", "/v1/responses", sent, stream=request.stream, note=ResponseAnswer(asked, echo))


def _input(conversation: str | list[fields.Item]) -> str | list[dict[str, Any]]:
    if isinstance(conversation, str):
        return conversation
    return [sent for at, item in enumerate(conversation) for sent in _item(item, f"input[{at}]")]


def _item(item: fields.Item, path: str) -> Iterator[dict[str, Any]]:
    """An item as vLLM reads it; a message's calls become items of their own."""
    if isinstance(item, fields.Message):
        yield from _message(item, path)
    elif isinstance(item, fields.Reasoning):
        if item.content or item.summary:
            yield item.model_dump(exclude_none=True)
    else:
        yield _call(item)


def _call(item: fields.FunctionCall | fields.FunctionCallOutput) -> dict[str, Any]:
    if isinstance(item, fields.FunctionCall):
        return {**item.model_dump(exclude_none=True), "arguments": _text(item.arguments)}
    return {**item.model_dump(), "output": _text(item.output)}


def _text(value: Any) -> str:
    """Text as it is, a list of text blocks as their texts, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(block, dict) and "text" in block for block in value):
        return "".join(str(block["text"]) for block in value)
    return dump(value).decode()


def _message(message: fields.Message, path: str) -> Iterator[dict[str, Any]]:
    head = {"type": "message", "role": message.role}
    if isinstance(message.content, str):
        yield {**head, "content": message.content}
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        if isinstance(block, fields.FunctionCall | fields.FunctionCallOutput):
            calls.append(_call(block))
        else:
            parts.append(_part(block, f"{path}.content[{at}]"))
    if message.role == "assistant":
        # vLLM reads one text of an assistant's message.
        parts = [{"text": text}] if (text := "".join(part.get("text", "") for part in parts)) else []
    if parts:
        yield {**head, "content": parts[0]["text"] if message.role == "assistant" else parts}
    yield from calls


def _part(block: fields.TextBlock | fields.ImageBlock | fields.FileBlock, path: str) -> dict[str, Any]:
    if isinstance(block, fields.TextBlock):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, fields.ImageBlock):
        return block.model_dump()
    return {"type": "input_text", "text": _file(block, path)}


def _file(block: fields.FileBlock, path: str) -> str:
    """The text of a file, below its name where it has one. Raises BadRequest for a file that is not text."""
    if block.file_data is None:
        raise BadRequest(f"{path}.file_data: required; files are not stored", param=f"{path}.file_data")
    data = block.file_data.rpartition(",")[2] if block.file_data.startswith("data:") else block.file_data
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        text = "\0"
    if "\0" in text:
        raise BadRequest(
            f"{path}.file_data: must be a text file in UTF-8, in base64 or a base64 data URL", param=f"{path}.file_data"
        )
    return f"{block.filename}:\n{text}" if block.filename else text


def _with_an_open_end(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`output` whose last item says that it was cut short."""
    return [*output[:-1], *({**item, "status": "incomplete"} for item in output[-1:])]


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage under OpenAI's names and under Databricks'."""
    told = {**usage, "prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
    if reasoning := usage.get("output_tokens_details", {}).get("reasoning_tokens"):
        told["reasoning_tokens"] = reasoning
    return told
