"""Each operation's request and answer: from the client's body to the engine request, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from app.config.base import nearest
from app.dialects.anthropic import fields
from app.dialects.anthropic.errors import REQUEST_ID_HEADER, UNTHREADED, stream_format
from app.dialects.anthropic.message import MessageStream, whole_message
from app.dialects.base import Call, Reply, Request, ServingContext, Stream
from app.dialects.common.direct import DirectTranslation
from app.dialects.common.engine_request import drop_unasked
from app.dialects.validation import validated
from app.errors import BadRequest

AnyRequest = TypeVar("AnyRequest", bound=fields.CountTokens)


@dataclass(frozen=True)
class MessagesTranslation(DirectTranslation):
    """POST /v1/messages."""

    request_id: str
    stream: bool = False
    with_tools: bool = False
    manages_context: bool = False
    pings: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], received: Request) -> Call:
        request = _checked(fields.Messages, body)
        sent = _sent(body, fields.NOT_SENT)
        user = (request.metadata or {}).get("user_id")
        return Call(
            "chat",
            sent,
            cls(
                "/v1/messages",
                sent,
                received.id,
                request.stream,
                bool(request.tools),
                request.context_management is not None,
                # Anthropic's own clients send the version. Friendli's reads the same stream, and fails on a ping.
                "anthropic-version" in received.headers,
            ),
            request.model,
            user=user if isinstance(user, str) else None,
        )

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        message = whole_message(answer, manages_context=self.manages_context)
        return Reply(message, headers={REQUEST_ID_HEADER: self.request_id})

    def open_stream(self, serving: ServingContext) -> Stream:
        stream = MessageStream(
            stream_format(self.request_id),
            with_tools=self.with_tools,
            manages_context=self.manages_context,
            pings=self.pings,
        )
        stream.headers = {REQUEST_ID_HEADER: self.request_id}
        return stream


@dataclass(frozen=True)
class CountTokensTranslation(DirectTranslation):
    """POST /v1/messages/count_tokens."""

    request_id: str
    generates = False

    @classmethod
    def parse(cls, body: dict[str, Any], received: Request) -> Call:
        request = _checked(fields.CountTokens, body)
        sent = _sent(body, fields.NOT_COUNTED)
        return Call("chat", sent, cls("/v1/messages/count_tokens", sent, received.id), request.model)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(answer, headers={REQUEST_ID_HEADER: self.request_id})


PARSERS: Mapping[str, Callable[[dict[str, Any], Request], Call]] = {
    "messages": MessagesTranslation.parse,
    "count_tokens": CountTokensTranslation.parse,
}
"""Operation to parser of its body, a JSON object without nulls, and the request. They raise BadRequest."""


def _checked(model: type[AnyRequest], body: dict[str, Any]) -> AnyRequest:
    """Raises BadRequest, naming the field. Removes fields that ask for nothing of what is refused."""
    drop_unasked(body, model.refused)
    for name in body.keys() & model.refused.keys():
        code = UNTHREADED if name == "thread" else None
        raise BadRequest(f"{name}: {model.refused[name]}", param=name, code=code)
    for name in body.keys() - model.model_fields.keys():
        message = f"{name}: Extra inputs are not permitted{nearest(name, model.model_fields)}"
        raise BadRequest(message, param=name)
    return validated(model, body, lambda problem: BadRequest(problem.message, param=problem.path))


def _sent(body: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in left_out}
