"""Anthropic's Messages API, which vLLM has too: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). Internally vLLM turns it
into a chat request, so its errors have OpenAI's form or Anthropic's; both have an `error` object.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from app.config.schema import Config
from app.dialects.anthropic.errors import REQUEST_ID_HEADER, error_body
from app.dialects.anthropic.fields import CountTokens, Messages
from app.dialects.anthropic.models import model, models
from app.dialects.anthropic.translations import PARSERS
from app.dialects.base import Call, ParseContext, Reply, Request, Route
from app.dialects.common.support import REJECTED_BY_NAME
from app.dialects.json_body import dump
from app.dialects.mounts import MOUNTS, addressed, is_below
from app.dialects.openapi_schemas import Body
from app.dialects.spelling import request_object
from app.errors import SwitchyardError

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
