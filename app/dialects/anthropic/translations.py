"""Each operation's request and answer: from the client's body to the engine request, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.anthropic import fields
from app.dialects.anthropic.errors import REQUEST_ID_HEADER, stream_format
from app.dialects.anthropic.tool_use import ToolUse, answer_with_tool_use
from app.dialects.base import Call, Reply, ServingContext, Stream
from app.dialects.common.direct import DirectTranslation
from app.dialects.common.passthrough import PassthroughStream
from app.dialects.validation import Problem, validated
from app.errors import BadRequest


@dataclass(frozen=True)
class MessagesTranslation(DirectTranslation):
    """POST /v1/messages."""

    request_id: str
    stream: bool = False
    with_tools: bool = False

    @classmethod
    def parse(cls, body: Mapping[str, Any], request_id: str) -> Call:
        request = validated(fields.Messages, body, _bad_request)
        sent = _sent(body)
        user = (request.metadata or {}).get("user_id")
        return Call(
            "chat",
            sent,
            cls("/v1/messages", sent, request_id, request.stream, bool(request.tools)),
            request.model,
            user=user if isinstance(user, str) else None,
        )

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        message = answer_with_tool_use(answer) if self.with_tools else answer
        return Reply(message, headers={REQUEST_ID_HEADER: self.request_id})

    def open_stream(self, serving: ServingContext) -> Stream:
        edit = ToolUse().frame if self.with_tools else None
        stream = PassthroughStream(stream_format(self.request_id), edit=edit)
        stream.headers = {REQUEST_ID_HEADER: self.request_id}
        return stream


@dataclass(frozen=True)
class CountTokensTranslation(DirectTranslation):
    """POST /v1/messages/count_tokens."""

    request_id: str
    generates = False

    @classmethod
    def parse(cls, body: Mapping[str, Any], request_id: str) -> Call:
        request = validated(fields.CountTokens, body, _bad_request)
        sent = _sent(body)
        return Call("chat", sent, cls("/v1/messages/count_tokens", sent, request_id), request.model)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(answer, headers={REQUEST_ID_HEADER: self.request_id})


PARSERS: Mapping[str, Callable[[Mapping[str, Any], str], Call]] = {
    "messages": MessagesTranslation.parse,
    "count_tokens": CountTokensTranslation.parse,
}
"""Operation to parser of its body, a JSON object without nulls, and the request's id. They raise BadRequest."""


def _sent(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in fields.NOT_SENT}


def _bad_request(problem: Problem) -> BadRequest:
    return BadRequest(problem.message, param=problem.path)
