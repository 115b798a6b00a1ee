"""Collects a stream of vLLM's chat chunks into the body of the whole response.

Contract: vLLM 0.29, `entrypoints/openai/chat_completion`.

- Whole answers that are collected from a stream of vLLM's. Pure: bytes in, a body out.
- Collects a stream of vLLM's completion chunks into the body of the unary response, complete or partial.
- Collects a stream of vLLM's `/v1/messages` into the body of the whole message.
- Collects a stream of vLLM's `/v1/responses` into the whole response object.
- Whole answers with a tool call that `max_tokens` may cut short.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from app.engine.errors import ENDED_EARLY, MALFORMED_RESPONSE, engine_error
from app.engine.expected import choices_of
from app.engine.output import forces_a_call
from app.errors import Broken, Incomplete
from app.sse import Decoder, Event

_ERROR = re.compile(r'\{("type": ?"error", ?)?"error"')


class StreamCollector(ABC):
    """Collects one request's stream. `request` is the body to send."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self._decoder = Decoder()
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Raises Rejected or Broken on the engine's error event, and Broken on a malformed stream."""
        try:
            for event in self._decoder.feed(chunk):
                if self._is_last(event):
                    self._ended = True
                elif _ERROR.match(event.data):
                    raise engine_error(event.data.encode(), status=500)
                else:
                    self._add(from_json(event.data))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise Broken(MALFORMED_RESPONSE) from error

    @property
    def has_ended(self) -> bool:
        """Whether the last event has come."""
        return self._ended

    def complete(self) -> bytes:
        """The complete body. Raises Incomplete if the stream has not ended in order, and Broken if it is malformed."""
        if not self._ended:
            raise Incomplete(ENDED_EARLY)
        try:
            return self._body()
        except (ValueError, KeyError, TypeError) as error:
            raise Broken(MALFORMED_RESPONSE) from error

    def at_deadline(self) -> bytes | None:
        """The body to answer with when the time is up; None if the request fails then."""
        return None

    def _is_last(self, event: Event) -> bool:
        return event.data == "[DONE]"

    @abstractmethod
    def _add(self, chunk: dict[str, Any]) -> None:
        """Takes the data of one event."""

    @abstractmethod
    def _body(self) -> bytes:
        """The body so far."""


# The fields that vLLM's whole response always has, in its order.
_BODY = (
    "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids "
    "prompt_text kv_transfer_params ec_transfer_params metrics"
).split()
_TOKEN_IDS = "return_token_ids"


class ChatCollector(StreamCollector):
    """Collects one chat request's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        if body.get("logprobs"):
            # Otherwise vLLM leaves out the chunks of tokens that are only markup, and their logprobs.
            request[_TOKEN_IDS] = True
        super().__init__(request)
        self._with_token_ids = bool(body.get(_TOKEN_IDS))
        self._count = body.get("n", 1)
        self._fields: dict[str, Any] = dict.fromkeys(_BODY)
        self._choices: dict[int, _ChatChoice] = {}

    def _add(self, chunk: dict[str, Any]) -> None:
        parts = chunk.pop("choices")
        self._fields |= {name: value for name, value in chunk.items() if value is not None}
        for part in parts:
            if not 0 <= (index := part["index"]) < self._count:
                raise IndexError(index)
            self._choices.setdefault(index, _ChatChoice()).add(part)

    def _body(self) -> bytes:
        if not self._choices or self._fields["usage"] is None:
            raise ValueError("no choices or no usage")
        choices = [{"index": index, **choice.fields()} for index, choice in sorted(self._choices.items())]
        body = {**self._fields, "object": "chat.completion", "choices": choices}
        body["usage"] = {"prompt_tokens_details": None, **body["usage"]}
        if not self._with_token_ids:
            body["prompt_token_ids"] = None
            for choice in choices:
                choice["token_ids"] = None
        return to_json(body)


class _ChatChoice:
    """One choice as it grows."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: dict[int, _ToolCall] = {}
        self._logprobs: list[Any] | None = None
        self._token_ids: list[int] | None = None
        self._end: dict[str, Any] = {"finish_reason": None, "stop_reason": None}

    def add(self, part: Mapping[str, Any]) -> None:
        delta = part["delta"]
        self._content.append(delta.get("content") or "")
        self._reasoning.append(delta.get("reasoning") or "")
        for call in delta.get("tool_calls") or ():
            self._tool_calls.setdefault(call["index"], _ToolCall()).add(call)
        if (logprobs := part.get("logprobs")) is not None:
            self._logprobs = (self._logprobs or []) + logprobs["content"]
        if (ids := part.get("token_ids")) is not None:
            self._token_ids = (self._token_ids or []) + ids
        if part.get("finish_reason") is not None:
            self._end = {name: part.get(name) for name in self._end}

    def fields(self) -> dict[str, Any]:
        if self._end["finish_reason"] is None:
            raise ValueError("the choice has no finish reason")
        return {
            "message": self._message(),
            "logprobs": None if self._logprobs is None else {"content": self._logprobs},
            **self._end,
            "token_ids": self._token_ids,
            "routed_experts": None,
        }

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
        if self._tool_calls:
            message["tool_calls"] = [call.fields() for _, call in sorted(self._tool_calls.items())]
        return {**message, "reasoning": "".join(self._reasoning) or None}


class _ToolCall:
    """One tool call as it grows."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._name: str | None = None
        self._arguments: list[str] = []

    def add(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function") or {}
        self._id = self._id or delta.get("id")
        self._name = self._name or function.get("name")
        self._arguments.append(function.get("arguments") or "")

    def fields(self) -> dict[str, Any]:
        if self._id is None or self._name is None:
            raise ValueError("the tool call has no id or no name")
        function = {"name": self._name, "arguments": "".join(self._arguments)}
        return {"id": self._id, "type": "function", "function": function}


# Pure: bytes in, a body out. Contract: vLLM 0.29, `entrypoints/openai/completion`. With `continuous_usage_stats` each
# chunk carries its choice's token counts, so that a truncated stream has a usage too.

STREAM_OPTIONS: Mapping[str, bool] = {"include_usage": True, "continuous_usage_stats": True}
"""Requests the counts on every chunk and their sums at the end."""

_LOGPROBS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


class Tally:
    """Sums up a request with `n` choices per prompt, from the latest counts of each choice."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._latest: dict[int, Mapping[str, int]] = {}

    def add(self, index: int, usage: Mapping[str, int]) -> None:
        """Takes the counts on a chunk of the choice `index`: its prompt's tokens, and its own so far."""
        self._latest[index] = usage

    def usage(self) -> dict[str, int]:
        """A usage object. A prompt counts once, and only if one of its choices has started."""
        prompts = {index // self._n: usage["prompt_tokens"] for index, usage in self._latest.items()}
        prompt, completion = sum(prompts.values()), sum(u["completion_tokens"] for u in self._latest.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class CompletionCollector(StreamCollector):
    """Collects one completion request's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True, "stream_options": dict(STREAM_OPTIONS)})
        self._tally = Tally(body.get("n", 1))
        self._usage: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}
        # Created on arrival: the number that a request asks for is unchecked.
        self._count = choices_of(body)
        self._choices: dict[int, _TextChoice] = {}

    def at_deadline(self) -> bytes | None:
        """The body so far, once a choice has started; an unfinished one has the finish reason `length`."""
        return self._body() if self._choices else None

    def _body(self) -> bytes:
        empty = _TextChoice()
        choices = [{"index": index, **self._choices.get(index, empty).fields()} for index in range(self._count)]
        return to_json({**self._head, "choices": choices, "usage": self._usage or self._tally.usage()})

    def _add(self, chunk: dict[str, Any]) -> None:
        choices, usage = chunk.pop("choices"), chunk.pop("usage", None)
        self._head |= chunk
        if not choices:
            self._usage = usage or self._usage
        for part in choices:
            if not 0 <= (index := part["index"]) < self._count:
                raise IndexError(index)
            self._choices.setdefault(index, _TextChoice()).add(part)
            if usage:
                self._tally.add(part["index"], usage)


class _TextChoice:
    """One choice as it grows."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: dict[str, list[Any]] | None = None
        self._end: dict[str, Any] = {"finish_reason": "length", "stop_reason": None}

    def add(self, part: Mapping[str, Any]) -> None:
        self._texts.append(part["text"])
        if (logprobs := part.get("logprobs")) is not None:
            self._logprobs = self._logprobs or {name: [] for name in _LOGPROBS}
            for name in _LOGPROBS:
                self._logprobs[name] += logprobs[name]
        if part["finish_reason"] is not None:
            self._end = {name: part.get(name) for name in self._end}

    def fields(self) -> dict[str, Any]:
        return {"text": "".join(self._texts), "logprobs": self._logprobs, **self._end}


# Contract: vLLM 0.29, `entrypoints/anthropic`; and as Anthropic's SDKs collect a message: the `input` of a call that
# was cut short has its complete part.

_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""A delta's type and its only field."""


class MessageCollector(StreamCollector):
    """Collects one message's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True})
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[dict[str, list[str]]] = []

    def _is_last(self, event: Event) -> bool:
        return event.type == "message_stop"

    def _add(self, chunk: dict[str, Any]) -> None:
        match chunk["type"]:
            case "message_start":
                self._message = chunk["message"]
            case "content_block_start":
                self._blocks.append(chunk["content_block"])
                self._texts.append({})
            case "content_block_delta":
                delta = chunk["delta"]
                name = _DELTAS[delta["type"]]
                self._texts[chunk["index"]].setdefault(name, []).append(delta[name])
            case "message_delta":
                usage = {**self._message["usage"], **(chunk.get("usage") or {})}
                self._message |= {**chunk["delta"], "usage": usage}

    def _body(self) -> bytes:
        content = [_block(block, texts) for block, texts in zip(self._blocks, self._texts, strict=True)]
        message = {**self._message, "content": content or [{"type": "text", "text": ""}]}
        if message["stop_reason"] is None:
            raise ValueError("the message has no stop reason")
        return to_json({name: value for name, value in message.items() if value is not None})


def _block(block: Mapping[str, Any], texts: Mapping[str, list[str]]) -> dict[str, Any]:
    """A content block with the texts of its deltas."""
    joined = {name: "".join(parts) for name, parts in texts.items()}
    if partial := joined.pop("partial_json", "").strip():
        joined["input"] = from_json(partial, allow_partial=True)
    return {name: value for name, value in {**block, **joined}.items() if value is not None}


# Contract: vLLM 0.29, `entrypoints/openai/responses`. The last event holds the response, in which a call that was cut
# short is text; the items of the stream hold the call as far as it got, once its name is complete.


class ResponseCollector(StreamCollector):
    """Collects one response's stream."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__({**body, "stream": True})
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}

    def _is_last(self, event: Event) -> bool:
        if event.type != "response.completed":
            return False
        self._response = from_json(event.data)["response"]
        return True

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk["type"] == "response.output_item.done":
            self._items[chunk["output_index"]] = chunk["item"]

    def _body(self) -> bytes:
        if self._response["status"] == "incomplete":
            return to_json({**self._response, "output": [self._items[index] for index in sorted(self._items)]})
        return to_json(self._response)


# vLLM's whole answers show a call that is not complete as text, in the model's markup; its streams show the call as far
# as it got. So whole answers with a forced call are collected from streams, whose ends `output.CutCalls` corrects.

_COLLECTORS: Mapping[str, Callable[[Mapping[str, Any]], StreamCollector]] = {
    "/v1/chat/completions": ChatCollector,
    "/v1/messages": MessageCollector,
    "/v1/responses": ResponseCollector,
}
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
_NOT_IN_STREAMS = frozenset({"prompt_logprobs", "use_beam_search", "kv_transfer_params", "ec_transfer_params"})


def forced_call_collector(path: str, body: Mapping[str, Any]) -> StreamCollector | None:
    """The collector for a vLLM request whose tool call may be cut short; None for any other request."""
    if path not in _COLLECTORS or not forces_a_call(body) or _LIMITS.isdisjoint(body):
        return None
    return _COLLECTORS[path](body) if _NOT_IN_STREAMS.isdisjoint(body) else None
