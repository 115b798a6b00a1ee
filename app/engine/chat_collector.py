"""Collects a stream of vLLM's chat chunks into the body of the whole response.

Contract: vLLM 0.29, `entrypoints/openai/chat_completion`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from app.engine.stream_collector import StreamCollector

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
        self._choices: dict[int, _Choice] = {}

    def _add(self, chunk: dict[str, Any]) -> None:
        parts = chunk.pop("choices")
        self._fields |= {name: value for name, value in chunk.items() if value is not None}
        for part in parts:
            if not 0 <= (index := part["index"]) < self._count:
                raise IndexError(index)
            self._choices.setdefault(index, _Choice()).add(part)

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


class _Choice:
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
