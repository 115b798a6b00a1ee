"""Anthropic's Messages API, which vLLM speaks itself: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). vLLM makes a chat request
of it inside, so its errors arrive in OpenAI's form or Anthropic's; both hold an `error` object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.config import Config
from app.dialects.base import Call, Context, Reply, Request, Route, Served, Stream, dump, first_problem, json_object
from app.dialects.relay import Ending, Relay
from app.dialects.schemas import Body
from app.errors import BadRequest, NotFound, SwitchyardError
from app.sse import encode

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

_LAST_EVENTS = (b"event: message_stop\n", b"event: error\n")


class CountTokens(BaseModel):
    """POST /v1/messages/count_tokens: what vLLM 0.29 models, `tests/real/test_fields.py` compares, and `service_tier`.

    Anything else it would drop without a word.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[Any] = Field(min_length=1)
    cache_salt: Any = None
    chat_template_kwargs: Any = None
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    max_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    output_config: Any = None
    service_tier: Any = None
    stop_sequences: list[Any] | None = None
    stream: bool = False
    system: str | list[Any] | None = None
    temperature: float | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    top_k: int | None = None
    top_p: float | None = None
    vllm_xargs: Any = None


class Messages(CountTokens):
    """POST /v1/messages."""

    max_tokens: int


ENGINE = frozenset(Messages.model_fields) - {"service_tier"}


def error_body(error: SwitchyardError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``; the message names the field."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    # vLLM makes a chat request of it, and may complain about that one's field.
    message = error.message.replace("max_completion_tokens", "max_tokens")
    return {"type": "error", "error": {"type": kind, "message": message}}


MESSAGES = Ending(
    is_terminal=lambda frames: frames[:-2].rpartition(b"\n\n")[2].startswith(_LAST_EVENTS),
    error_frames=lambda error: encode(dump(error_body(error)), type="error"),
)


_MODELS: Mapping[str, type[BaseModel]] = {"messages": Messages, "count_tokens": CountTokens}


class Anthropic:
    """The dialect at `/v1/messages`."""

    name: ClassVar[str] = "anthropic"
    routes: ClassVar[Sequence[Route]] = (
        Route("POST", "/v1/messages", "messages"),
        Route("POST", "/v1/messages/count_tokens", "count_tokens"),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {name: [Body(model)] for name, model in _MODELS.items()}

    def claims(self, route: Route, request: Request) -> bool:
        return True

    def parse(self, operation: str, request: Request, context: Context) -> Call:
        body = json_object(request.body)
        _check(body, _MODELS[operation])
        body.pop("service_tier", None)
        user = body.get("metadata", {}).get("user_id")
        return Call(
            task="chat",
            path=request.path,
            body=body,
            model=body["model"],
            stream=operation == "messages" and body.get("stream", False),
            user=user if isinstance(user, str) else None,
        )

    def render(self, call: Call, body: bytes, served: Served) -> Reply:
        return Reply(body)

    def stream(self, call: Call, served: Served) -> Stream:
        return Relay(MESSAGES)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        return Reply(dump(error_body(error)), error.status)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        raise NotFound(f"{request.path}: not found")


def _check(body: dict[str, Any], model: type[BaseModel]) -> None:
    """Raises BadRequest, naming the field."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error)
        raise BadRequest(problem.message, param=problem.path) from None
