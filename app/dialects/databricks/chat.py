"""Databricks' chat task."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from app.dialects.base import Stream
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream
from app.dialects.databricks.answer import RequestContext, counts, with_finish_reason
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import RECORDS, Chat, checked
from app.dialects.legacy import Call

# Prompt caching is the engine's own affair, and a call's place in a stream is no part of the conversation.
_NOT_SENT = frozenset({"cache_control", "index"})


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The answer to a chat. `usage_apart`: the client asked for its stream's usage in a chunk of its own."""

    asked: RequestContext
    usage_apart: bool

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        choices = answer["choices"]
        if self.asked.native:
            choices = [with_finish_reason(choice) for choice in choices]
        return {**answer, "choices": choices, "usage": counts(answer["usage"])}

    def stream(self) -> Stream:
        tell = partial(error_frames, request_id=self.asked.request_id)
        return LastChoiceUsageStream(tell, counts=counts, apart=self.usage_apart)


def chat(body: dict[str, Any], asked: RequestContext) -> Call:
    """A chat request as vLLM reads it. Raises BadRequest.

    Without `max_tokens` vLLM generates up to the end of the context. `reasoning_effort` goes to the chat template; a
    template without reasoning has no use for it.
    """
    checked(Chat, body)
    sent = {name: value for name, value in body.items() if name not in RECORDS}
    sent["messages"] = [_message(message) for message in body["messages"]]
    if tools := sent.pop("tools", None):
        sent["tools"] = [_plain(tool) for tool in tools]
    else:
        sent.pop("tool_choice", None)
    greedy(sent)
    answer = ChatAnswer(asked, usage_apart=ask_for_usage(sent))
    return Call("chat", "/v1/chat/completions", sent, stream=sent.get("stream", False), note=answer)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    sent = {name: value for name, value in message.items() if name != "tool_calls"}
    if calls := message.get("tool_calls"):
        sent["tool_calls"] = [_plain(call) for call in calls]
    if isinstance(parts := message.get("content"), list):
        sent["content"] = [_plain(part) for part in parts]
    return sent


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _NOT_SENT}
