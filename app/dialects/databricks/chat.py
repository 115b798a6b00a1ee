"""Databricks' chat task."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Call, Reply, ServingContext, Stream
from app.dialects.common.direct import DirectTranslation
from app.dialects.common.engine_request import ask_for_usage, drop_empty_tools, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream
from app.dialects.databricks.answer import (
    RequestContext,
    counts,
    reply_of_members,
    with_finish_reason,
    with_served_model,
)
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import Chat, checked, without_records
from app.dialects.json_body import items, members


@dataclass(frozen=True)
class ChatTranslation(DirectTranslation):
    """Chat. `usage_apart`: the client asked for the usage in a separate chunk.

    Without `max_tokens` vLLM generates up to the end of the context. `reasoning_effort` goes to the chat template; one
    without reasoning ignores it.
    """

    context: RequestContext
    usage_apart: bool
    stream: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        request = checked(Chat, body)
        sent = without_records(body)
        sent["messages"] = [message.sent() for message in request.messages]
        sent["tools"] = [tool.sent() for tool in request.tools or ()]
        if request.response_format is not None and request.response_format.json_schema is not None:
            schema = sent["response_format"]["json_schema"]
            sent["response_format"] = {
                **sent["response_format"],
                "json_schema": {"name": request.response_format.json_schema.name, **schema},
            }
        drop_empty_tools(sent)
        greedy(sent)
        usage_apart = ask_for_usage(sent)
        return Call("chat", sent, cls("/v1/chat/completions", sent, context, usage_apart, request.stream))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        completion: dict[str, Any] = members(answer)
        if self.context.native:
            completion["choices"] = [with_finish_reason(choice) for choice in items(completion["choices"])]
        completion["usage"] = counts(from_json(bytes(completion["usage"])))
        return reply_of_members(completion, serving)

    def open_stream(self, serving: ServingContext) -> Stream:
        failure = partial(error_frames, request_id=self.context.request_id)
        stream = LastChoiceUsageStream(self.path, failure, counts=counts, apart=self.usage_apart)
        return with_served_model(stream, serving)
