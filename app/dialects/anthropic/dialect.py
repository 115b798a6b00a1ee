"""Anthropic's Messages API, which vLLM speaks itself: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). vLLM makes a chat request
of it inside, so its errors arrive in OpenAI's form or Anthropic's; both hold an `error` object.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from app.config.schema import Config
from app.dialects.anthropic.errors import MESSAGES, error_body
from app.dialects.anthropic.fields import _MODELS, TAKEN, _check
from app.dialects.base import ParseContext, Reply, Request, Route, ServingContext, Stream
from app.dialects.common.passthrough import PassthroughStream
from app.dialects.json_body import dump, json_object
from app.dialects.legacy import Call
from app.dialects.mounts import MOUNTS, addressed, is_below
from app.dialects.openapi_schemas import Body
from app.errors import NotFound, SwitchyardError

_PATHS: Mapping[str, str] = {"messages": "/v1/messages", "count_tokens": "/v1/messages/count_tokens"}


class Anthropic:
    """The dialect at `/v1/messages`, and below Friendli's mounts."""

    name: ClassVar[str] = "anthropic"
    routes: ClassVar[Sequence[Route]] = tuple(
        Route("POST", prefix + path, operation)
        for prefix in ("", *(mount.removesuffix("/v1") for mount in MOUNTS))
        for operation, path in _PATHS.items()
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {name: [Body(model)] for name, model in _MODELS.items()}

    def claims(self, route: Route, request: Request) -> bool:
        return True

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        body = json_object(request.body)
        _check(body, _MODELS[operation])
        body = {name: value for name, value in body.items() if name not in TAKEN}
        user = body.get("metadata", {}).get("user_id")
        call = Call(
            task="chat",
            path=_PATHS[operation],
            body=body,
            model=body["model"],
            stream=body.get("stream", False),
            user=user if isinstance(user, str) else None,
        )
        return addressed(call, request) if is_below(request) else call

    def render(self, call: Call, body: bytes, served: ServingContext) -> Reply:
        return Reply(body)

    def stream(self, call: Call, served: ServingContext) -> Stream:
        return PassthroughStream(MESSAGES)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        return Reply(dump(error_body(error)), error.status)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        raise NotFound(f"{request.path}: not found")
