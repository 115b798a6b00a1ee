"""Friendli's API on vLLM: completions with every field of its reference, chat, tokens, embeddings.

Contract: Friendli's API reference and what its two SDKs send and expect: `friendli` (the current one), and
`friendli-client` before it. `detection` distinguishes their requests from OpenAI's and from one another.

The routes are below `/serverless/v1` and `/dedicated/v1`; its container's are below `/v1`, where OpenAI's are too.
`responses` and `messages` exist there as well, in the dialects of OpenAI and Anthropic, whose formats they have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from app.config.schema import Config
from app.dialects.base import Call, ParseContext, Reply, Request, Route
from app.dialects.common.support import REJECTED_BY_NAME
from app.dialects.friendli.chat import parse_chat
from app.dialects.friendli.chat_fields import CHAT_RULES, Chat
from app.dialects.friendli.completions import parse_completion
from app.dialects.friendli.detection import is_friendli_chat, is_friendli_completion
from app.dialects.friendli.embeddings import Classification, Embeddings, parse_classification, parse_embeddings
from app.dialects.friendli.errors import error_reply, timeout_reply
from app.dialects.friendli.fields import Completions
from app.dialects.friendli.models import models
from app.dialects.friendli.rule import schemas
from app.dialects.friendli.rules import COMPLETION_RULES, GENERATION_RULES
from app.dialects.friendli.tokens import (
    Detokenize,
    Render,
    Tokenize,
    parse_detokenize,
    parse_render,
    parse_tokenize,
)
from app.dialects.json_body import dump, peek
from app.dialects.mounts import MOUNTS, addressed
from app.dialects.openapi_schemas import Body
from app.dialects.spelling import request_object
from app.errors import DeadlinePassed, SwitchyardError

_CONTAINER = "/v1"
_PARSERS: Mapping[str, Callable[[dict[str, Any], Request, ParseContext], Call]] = {
    "completions": parse_completion,
    "chat": parse_chat,
    "render": parse_render,
    "tokenize": parse_tokenize,
    "detokenize": parse_detokenize,
    "embeddings": parse_embeddings,
    "classify": parse_classification,
}


def _routes(mount: str) -> tuple[Route, ...]:
    own = (
        Route("POST", f"{mount}/completions", "completions"),
        Route("POST", f"{mount}/chat/completions", "chat"),
        Route("POST", f"{mount}/chat/render", "render"),
        Route("POST", f"{mount}/tokenize", "tokenize"),
        Route("POST", f"{mount}/detokenize", "detokenize"),
    )
    if mount == _CONTAINER:  # the others are OpenAI's there, and Friendli's SDK reads them
        return own
    embeddings = Route("POST", f"{mount}/embeddings", "embeddings")
    return (*own, embeddings, Route("GET", f"{mount}/models", "models", local=True))


class Friendli:
    """The dialect below `/serverless/v1` and `/dedicated/v1`, and at `/v1` for Friendli's clients."""

    name: ClassVar[str] = "friendli"
    routes: ClassVar[Sequence[Route]] = (
        *(route for mount in (*MOUNTS, _CONTAINER) for route in _routes(mount)),
        Route("POST", "/dedicated/classify", "classify"),  # the container's is OpenAI's, as its embeddings
    )
    unknown_fields: ClassVar[str] = REJECTED_BY_NAME
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "completions": [Body(Completions, rules=schemas([*GENERATION_RULES, *COMPLETION_RULES]))],
        "chat": [Body(Chat, rules=schemas([*GENERATION_RULES, *CHAT_RULES]))],
        "render": [Body(Render)],
        "tokenize": [Body(Tokenize)],
        "detokenize": [Body(Detokenize)],
        "embeddings": [Body(Embeddings)],
        "classify": [Body(Classification)],
    }

    def claims(self, route: Route, request: Request) -> bool:
        """OpenAI's dialect shares two of the container's paths, TGI's one of them."""
        if route.path == f"{_CONTAINER}/completions":
            return is_friendli_completion(request)
        if route.path == f"{_CONTAINER}/chat/completions":
            return is_friendli_chat(request)
        return True

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        body = request_object(request.body)
        call = _PARSERS[operation](body, request, context)
        return addressed(replace(call, model=body.get("model"), user=body.get("user")), request)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if isinstance(error, DeadlinePassed):
            body = peek(request.body)
            for name in ("timeout_microseconds", "timeout"):
                if body.get(name) is not None:
                    return timeout_reply(name)
        return error_reply(error)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        return Reply(dump(models(config, request.configured_at)))
