"""Databricks' Responses API, translated to vLLM's.

Streams of Responses events: vLLM's, with Databricks' response objects and the right last event.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Call, Reply, ServingContext, Stream, immutable
from app.dialects.bodies import dump
from app.dialects.common.requests import DirectTranslation, SingleCallFilter, with_parameters, with_single_call
from app.dialects.common.streams import FrameStream, StreamedItems
from app.dialects.databricks import response_fields
from app.dialects.databricks.chat import RequestContext, json_reply, with_served_model
from app.dialects.databricks.errors import error_body
from app.dialects.databricks.fields import checked
from app.engine.output import find_usage
from app.errors import BadRequest, SwitchyardError
from app.sse import encode

# vLLM ends every stream with `response.completed`, renames the items in it, and has no event for a failure.

_INTERESTING = re.compile(
    rb'^event: response\.(?:created|in_progress|completed|output_item\.(?:added|done))$|"error"|^:', re.M
)
Reword = Callable[[dict[str, Any]], dict[str, Any]]


class DatabricksResponseStream(FrameStream):
    """A `Stream` that translates the few events with a response object, and passes the others.

    `reword` translates a response object. `one_call`: the events of every function call after the first are left out.
    """

    def __init__(self, reword: Reword, *, request_id: str, one_call: bool) -> None:
        super().__init__(self._failed_event, "/v1/responses")
        self._reword = reword
        self._request_id = request_id
        self._one_call = SingleCallFilter() if one_call else None
        self._response: dict[str, Any] = {}
        self._items = StreamedItems()
        self._events = 0

    def feed(self, chunk: bytes) -> bytes:
        frames = super().feed(chunk)
        self._events += frames.count(b"\n\n")
        return frames

    def _passes(self, frames: bytes) -> bool:
        return self._one_call is None and not _INTERESTING.search(frames)

    def _failed_event(self, error: SwitchyardError) -> bytes:
        body = error_body(error, request_id=self._request_id)
        # OpenAI's SDK has its own set of codes.
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        described = {"code": code, "message": body["message"], "param": error.param, "type": body["error_code"]}
        if not self._response:
            return self._event("error", {**described, "type": "error"})
        failed = {**self._response, "status": "failed", "error": described}
        return self._event("response.failed", {"response": failed})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return encode(dump({**fields, "type": name, "sequence_number": self._events}), type=name)

    def _frame(self, frame: bytes) -> bytes:
        if self._one_call is not None and self._one_call.drops(frame):
            return b""
        if not _INTERESTING.match(frame):
            return frame
        head, _, data = frame.partition(b"\ndata: ")
        name, event = head.removeprefix(b"event: ").decode(), from_json(data)
        if "item" in event:
            self._items.note(event)
            return frame
        if name == "response.completed":
            self.usage = find_usage(frame)
        return self._response_event(name, event)

    def _response_event(self, name: str, event: dict[str, Any]) -> bytes:
        response = {**event["response"], "output": self._items.output(event["response"])}
        last = name == "response.completed"
        if response["status"] == "incomplete":
            name = "response.incomplete"
        self._response = self._reword(response)
        self._ended = last
        return encode(dump({**event, "type": name, "response": self._response}), type=name)


_SENT = (
    "include instructions max_output_tokens max_tool_calls model parallel_tool_calls stream temperature text "
    "tool_choice tools top_logprobs top_p"
).split()

_TEXTUAL = frozenset(
    f"application/{name}"
    for name in "javascript json octet-stream sql toml x-ndjson x-python x-sh x-yaml xml yaml".split()
)
"""Media types of text outside ``text/``, and the one of unknown content."""

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
"""The fields of its request that a response repeats, and their values if the request has none."""

_REPEATED_IF_GIVEN = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user")


@immutable
class DatabricksResponsesTranslation(DirectTranslation):
    """Responses. `echo` is what the response repeats of its request, in the client's own form.

    `truncation` "auto" changes nothing: the engine would cut off the end of the conversation. One that is too long is
    rejected.
    """

    context: RequestContext
    echo: Mapping[str, Any]
    stream: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        flat = response_fields.flat(body)
        request = checked(response_fields.Responses, flat)
        sent = {name: flat[name] for name in _SENT if name in flat}
        sent |= {"input": _input(request.input), "store": False}
        if request.tools:
            sent["tools"] = [with_parameters(tool, f"tools[{at}]") for at, tool in enumerate(flat["tools"])]
        if request.top_logprobs:
            sent["include"] = list(dict.fromkeys([*sent.get("include", []), _LOGPROBS]))
        if request.reasoning is not None and request.reasoning.effort is not None:
            sent["reasoning"] = {"effort": request.reasoning.effort}
        echo = {name: body.get(name, default) for name, default in _DEFAULTS.items()}
        echo |= {name: body[name] for name in _REPEATED_IF_GIVEN if name in body}
        return Call("responses", sent, cls("/v1/responses", sent, context, echo, request.stream))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return json_reply(self._response(from_json(answer)), serving)

    def open_stream(self, serving: ServingContext) -> Stream:
        one_call = not self.echo["parallel_tool_calls"]
        stream = DatabricksResponseStream(self._response, request_id=self.context.request_id, one_call=one_call)
        return with_served_model(stream, serving)

    def _response(self, answer: dict[str, Any]) -> dict[str, Any]:
        """vLLM's response object as Databricks'."""
        response = {**answer, **self.echo, "error": None, "store": False}
        if not self.echo["parallel_tool_calls"]:
            response["output"] = with_single_call(answer["output"])
        if answer["status"] == "incomplete":
            response["output"] = _with_last_incomplete(response["output"])
        if (usage := answer.get("usage")) is not None:
            response["usage"] = _counts(usage)
        return response


def _input(conversation: str | list[response_fields.Item]) -> str | list[dict[str, Any]]:
    if isinstance(conversation, str):
        return conversation
    return [sent for at, item in enumerate(conversation) for sent in _item(item, f"input[{at}]")]


def _item(item: response_fields.Item, path: str) -> Iterator[dict[str, Any]]:
    """An item for vLLM; a message's calls become separate items."""
    if isinstance(item, response_fields.Message):
        yield from _message(item, path)
    elif isinstance(item, response_fields.Reasoning):
        if item.content or item.summary:
            yield item.model_dump(exclude_none=True)
    else:
        yield _call(item)


def _call(item: response_fields.FunctionCall | response_fields.FunctionCallOutput) -> dict[str, Any]:
    if isinstance(item, response_fields.FunctionCall):
        return {**item.model_dump(exclude_none=True), "arguments": _text(item.arguments)}
    return {**item.model_dump(), "output": _text(item.output)}


def _text(value: Any) -> str:
    """Text unchanged, a list of text blocks joined, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(block, dict) and "text" in block for block in value):
        return "".join(str(block["text"]) for block in value)
    return dump(value).decode()


def _message(message: response_fields.Message, path: str) -> Iterator[dict[str, Any]]:
    head = {"type": "message", "role": message.role}
    if isinstance(message.content, str):
        yield {**head, "content": message.content}
        return
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(message.content):
        if isinstance(block, response_fields.FunctionCall | response_fields.FunctionCallOutput):
            calls.append(_call(block))
        else:
            parts.append(_part(block, f"{path}.content[{at}]"))
    if message.role == "assistant":
        # vLLM reads only one text of an assistant's message.
        parts = [{"text": text}] if (text := "".join(part.get("text", "") for part in parts)) else []
    if parts:
        yield {**head, "content": parts[0]["text"] if message.role == "assistant" else parts}
    yield from calls


def _part(
    block: response_fields.TextBlock | response_fields.ImageBlock | response_fields.FileBlock, path: str
) -> dict[str, Any]:
    if isinstance(block, response_fields.TextBlock):
        return {"type": "input_text", "text": block.text}
    if isinstance(block, response_fields.ImageBlock):
        return block.model_dump()
    return {"type": "input_text", "text": _file(block, path)}


def _file(block: response_fields.FileBlock, path: str) -> str:
    """The text of a file, after its name if it has one. Raises BadRequest for a file that is not text."""
    if block.file_data is None:
        raise BadRequest(f"{path}.file_data: required; files are not stored", param=f"{path}.file_data")
    data = block.file_data.rpartition(",")[2] if block.file_data.startswith("data:") else block.file_data
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        text = "\0"
    # A small PDF may be valid UTF-8.
    if "\0" in text or text.startswith("%PDF-") or not _is_textual(block.file_data):
        raise BadRequest(
            f"{path}.file_data: must be a text file in UTF-8, in base64 or a base64 data URL", param=f"{path}.file_data"
        )
    return f"{block.filename}:\n{text}" if block.filename else text


def _is_textual(file_data: str) -> bool:
    """Whether a data URL's media type is that of text, or unknown."""
    if not file_data.startswith("data:"):
        return True
    media_type = re.split("[;,]", file_data.removeprefix("data:"), maxsplit=1)[0].strip().lower()
    if not media_type or media_type in _TEXTUAL:
        return True
    return media_type.startswith("text/") or media_type.endswith(("+json", "+xml"))


def _with_last_incomplete(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`output` with its last item marked as cut short."""
    return [*output[:-1], *({**item, "status": "incomplete"} for item in output[-1:])]


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage under OpenAI's names and under Databricks'."""
    counts = {**usage, "prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
    if reasoning := usage.get("output_tokens_details", {}).get("reasoning_tokens"):
        counts["reasoning_tokens"] = reasoning
    return counts
