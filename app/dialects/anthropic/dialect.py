"""Anthropic's Messages API, which vLLM has too: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). Internally vLLM turns it
into a chat request, so its errors have OpenAI's form or Anthropic's; both have an `error` object.

- Anthropic's list of models: the endpoints and the deployments.
- Messages, whole and in streams, where vLLM's differ from Anthropic's.
- Each operation's request and answer: from the client's body to the engine request, and back.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from pydantic_core import from_json

from app.config.meant import nearest
from app.config.schema import Config
from app.dialects.anthropic import fields
from app.dialects.anthropic.fields import CountTokens, Messages
from app.dialects.base import (
    MOUNTS,
    Call,
    ParseContext,
    Reply,
    Request,
    Route,
    ServingContext,
    Stream,
    addressed,
    immutable,
    is_below,
)
from app.dialects.bodies import UNREAD, dump, request_object, validated
from app.dialects.common.fields import REJECTED_BY_NAME
from app.dialects.common.requests import (
    DirectTranslation,
    description,
    drop_unasked,
    model_names,
    settle_functions,
    with_parameters,
)
from app.dialects.common.streams import PassthroughStream, StreamFormat
from app.dialects.schemas import Body
from app.errors import BadRequest, ContextExceeded, NotFound, Rejected, SwitchyardError
from app.misspellings import question
from app.sse import encode

REQUEST_ID_HEADER = "request-id"
UNTHREADED = "thread_unsupported_request"
"""The error code of a request that the server can answer only without `thread`: SDKs' tool runners then leave it out,
and send every turn with the whole conversation."""

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: SwitchyardError, request_id: str) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}, "request_id"}``; the message names the field. With `UNTHREADED`
    the inner object has `details`, by which SDKs recognize the error.
    """
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if isinstance(error, Rejected):  # vLLM turns it into a chat request, and its messages may name that request's field
        message = message.replace("max_completion_tokens", "max_tokens")
    if isinstance(error, ContextExceeded):
        message = _exceeded(error)
    inner: dict[str, Any] = {"type": kind, "message": message}
    if error.code == UNTHREADED:
        inner["details"] = {"error_code": UNTHREADED, "unsupported": ["thread"]}
    return {"type": "error", "error": inner, "request_id": request_id}


def _exceeded(error: ContextExceeded) -> str:
    """Anthropic's sentences. Clients look for the numbers, and shorten the conversation or the answer. vLLM stops
    counting such a prompt beyond the context; clients' patterns for the first sentence take words before the number.
    """
    if error.is_prompt_too_long or not error.wanted:
        about = "" if error.is_exact else "at least "
        return f"prompt is too long: {about}{error.prompt or error.context + 1} tokens > {error.context - 1} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.prompt or 0} + {error.wanted} > {error.context}, "
        "decrease input length or `max_tokens` and try again"
    )


def stream_format(request_id: str) -> StreamFormat:
    """The stream of messages, and the frames of an error in it."""
    return StreamFormat("/v1/messages", lambda error: encode(dump(error_body(error, request_id)), type="error"))


# Contract: Anthropic's Models API. `kind`, `tasks` and `root` are additions, as in OpenAI's list.

_DEFAULT_LIMIT, _MAX_LIMIT = 20, 1000


def model(config: Config, request: Request) -> dict[str, Any]:
    """The model object of the name in the path. Raises NotFound."""
    name = request.params["model"]
    if name not in (known := model_names(config)):
        raise NotFound(f"model: {name}{question(name, known)}", param="model")
    return _card(config, name, request.configured_at)


def models(config: Config, request: Request) -> dict[str, Any]:
    """One page of the list: the query's `limit`, `after_id` and `before_id`. Raises BadRequest."""
    names = model_names(config)
    limit, start, end = _limit(request.query), 0, len(names)
    if "after_id" in request.query:
        start = _position(names, request.query, "after_id") + 1
    if "before_id" in request.query:
        end = _position(names, request.query, "before_id")
        start = max(start, end - limit)
    page = names[start:end][:limit]
    before = "before_id" in request.query
    return {
        "data": [_card(config, name, request.configured_at) for name in page],
        "has_more": start > 0 if before else start + limit < end,
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _card(config: Config, name: str, created: int) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    card = {"type": "model", "id": name, "display_name": name, "created_at": created_at}
    return {**card, **description(config, name)}


def _limit(query: Mapping[str, str]) -> int:
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= _MAX_LIMIT):
        raise BadRequest(f"limit: must be a number from 1 to {_MAX_LIMIT}", param="limit")
    return int(limit)


def _position(names: list[str], query: Mapping[str, str], parameter: str) -> int:
    if (name := query[parameter]) not in names:
        raise BadRequest(f"{parameter}: there is no model '{name}'", param=parameter)
    return names.index(name)


# vLLM returns `end_turn` where `tool_choice` names the tool, leaves out counts of cached tokens that it does not know
# and `stop_sequence`, and sends no `ping`. Contract: Anthropic's Messages API, "Handling stop reasons" and "Streaming
# messages".

_EDITED = re.compile(rb"^event: message_(?:start|delta)$", re.MULTILINE)
_TOOL_USE = re.compile(rb'"content_block": ?\{[^{]*"type": ?"tool_use"')
_PING = encode(b'{"type":"ping"}', type="ping")
_NO_STOP: Mapping[str, Any] = {"stop_reason": None, "stop_sequence": None}
"""Members that Anthropic's messages always have; vLLM leaves them out where they are null."""

_CACHE_COUNTS = ("cache_creation_input_tokens", "cache_read_input_tokens")


def whole_message(answer: bytes, *, manages_context: bool) -> bytes:
    """vLLM's message as Anthropic's; `manages_context`: the request has `context_management`."""
    message = _NO_STOP | from_json(answer)
    called = any(block["type"] == "tool_use" for block in message["content"])
    if called and message["stop_reason"] == "end_turn":
        message["stop_reason"] = "tool_use"
    return dump(_completed(message, manages_context=manages_context))


class MessageStream(PassthroughStream):
    """A `Stream` that edits a message's first and last event, and passes the others."""

    def __init__(self, format: StreamFormat, *, with_tools: bool, manages_context: bool, pings: bool) -> None:
        super().__init__(format)
        self._with_tools, self._manages_context, self._pings = with_tools, manages_context, pings
        self._called = False

    @property
    def keep_alive(self) -> bytes:
        return _PING if self._pings else super().keep_alive

    def _passes(self, frames: bytes) -> bool:
        if self._with_tools and not self._called and _TOOL_USE.search(frames):
            self._called = True
        # The expression looks at each character of a long text.
        return super()._passes(frames) and not (frames.find(b"event: message_") >= 0 and _EDITED.search(frames))

    def _frame(self, frame: bytes) -> bytes:
        if not _EDITED.match(frame):
            return frame
        event = from_json(frame.partition(b"\ndata: ")[2])
        if event["type"] == "message_start":
            event["message"] = _completed(_NO_STOP | event["message"], manages_context=False)
            return encode(dump(event), type="message_start") + (_PING if self._pings else b"")
        event["delta"] = _NO_STOP | event["delta"]
        if self._called and event["delta"].get("stop_reason") == "end_turn":
            event["delta"]["stop_reason"] = "tool_use"
        return encode(dump(_completed(event, manages_context=self._manages_context)), type="message_delta")


def _completed(value: dict[str, Any], *, manages_context: bool) -> dict[str, Any]:
    """A message or its last event, with every count and the list of applied edits, which is always empty."""
    if usage := value.get("usage"):
        value["usage"] = usage | {name: usage.get(name) or 0 for name in _CACHE_COUNTS}
    return {**value, "context_management": {"applied_edits": []}} if manages_context else value


AnyRequest = TypeVar("AnyRequest", bound=fields.CountTokens)


@immutable
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


@immutable
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
    """Raises BadRequest, naming the field. Removes fields that ask for nothing of what is refused, and gives a format
    its present name.
    """
    drop_unasked(body, model.refused)
    for name in body.keys() & model.refused.keys():
        code = UNTHREADED if name == "thread" else None
        raise BadRequest(f"{name}: {model.refused[name]}", param=name, code=code)
    for name in body.keys() - model.model_fields.keys():
        message = f"{name}: Extra inputs are not permitted{nearest(name, model.model_fields)}"
        raise BadRequest(message, param=name)
    request = validated(model, body, lambda problem: BadRequest(problem.message, param=problem.path))
    if request.output_format is not None:
        body["output_config"] = {**(request.output_config or {}), "format": request.output_format}
    return request


def _sent(body: Mapping[str, Any], left_out: frozenset[str]) -> dict[str, Any]:
    sent = {name: value for name, value in body.items() if name not in left_out}
    sent["messages"] = fields.in_force(body["messages"])
    settle_functions(sent, _completed_tool)
    return sent


def _completed_tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    return with_parameters(tool, path, "input_schema") if "input_schema" in tool else tool


_PATHS: Mapping[str, str] = {"messages": "/v1/messages", "count_tokens": "/v1/messages/count_tokens"}


_FOUNDRY = "/anthropic"
"""The base path of Azure's Claude clients."""


class Anthropic:
    """The dialect at `/v1/messages`, the same below Azure's path, and below Friendli's mounts."""

    name: ClassVar[str] = "anthropic"
    routes: ClassVar[Sequence[Route]] = (
        *(
            Route("POST", prefix + path, operation)
            for prefix in ("", _FOUNDRY, *(mount.removesuffix("/v1") for mount in MOUNTS))
            for operation, path in _PATHS.items()
        ),
        *(
            route
            for prefix in ("", _FOUNDRY)
            for route in (
                Route("GET", f"{prefix}/v1/models", "list_models", local=True),
                Route("GET", f"{prefix}/v1/models/{{model:path}}", "retrieve_model", local=True),
                Route("GET", f"{prefix}/api/hello", "hello", local=True, open=True),
            )
        ),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {"messages": [Body(Messages)], "count_tokens": [Body(CountTokens)]}
    unknown_fields: ClassVar[str] = REJECTED_BY_NAME
    unknown_nested: ClassVar[str] = UNREAD

    def claims(self, route: Route, request: Request) -> bool:
        # OpenAI has the same paths for its list.
        return (
            not route.local or route.open or request.path.startswith(_FOUNDRY) or "anthropic-version" in request.headers
        )

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        call = PARSERS[operation](request_object(request.body), request)
        return addressed(call, request) if is_below(request) else call

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        return Reply(dump(error_body(error, request.id)), error.status, headers={REQUEST_ID_HEADER: request.id})

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        return Reply(dump(_ANSWERS[operation](config, request)), headers={REQUEST_ID_HEADER: request.id})


def _hello(config: Config, request: Request) -> dict[str, Any]:
    """The answer to Claude Code, which asks before its first message whether the server can be reached."""
    return {"message": "hello"}


_ANSWERS: Mapping[str, Callable[[Config, Request], dict[str, Any]]] = {
    "hello": _hello,
    "list_models": models,
    "retrieve_model": model,
}
