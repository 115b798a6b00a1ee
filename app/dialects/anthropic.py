"""Anthropic's Messages API, which vLLM speaks itself: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). vLLM makes a chat request
of it inside, so its errors arrive in OpenAI's form or Anthropic's; both hold an `error` object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from app.config import Config
from app.dialects.base import Call, Context, Reply, Request, Route, Served, Stream, dump, first_problem, json_object
from app.dialects.friendli_mounts import MOUNTS, addressed, is_below
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

_PATHS: Mapping[str, str] = {"messages": "/v1/messages", "count_tokens": "/v1/messages/count_tokens"}

_LAST_EVENTS = (b"event: message_stop\n", b"event: error\n")


class CountTokens(BaseModel):
    """POST /v1/messages/count_tokens: what makes a prompt. Anthropic's own API refuses the other fields here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[Any] = Field(min_length=1)
    chat_template_kwargs: Any = None
    system: str | list[Any] | None = None
    thinking: Any = None
    tool_choice: Any = None
    tools: list[Any] | None = None

    @field_validator("thinking")
    @classmethod
    def _thinks_as_it_does(cls, value: Any) -> Any:
        # Absent is disabled at Anthropic's too. vLLM knows neither a budget nor a way to ask for thoughts.
        if value != {"type": "disabled"}:
            raise ValueError(
                'only {"type": "disabled"} is supported; whether a model thinks is up to its chat template '
                "(`chat_template_kwargs`)"
            )
        return value


class Messages(CountTokens):
    """POST /v1/messages: what vLLM 0.29 models, `tests/real/test_fields.py` compares, and TAKEN.

    Anything else it would drop without a word.
    """

    max_tokens: int
    cache_salt: Any = None
    ec_transfer_params: Any = None
    kv_transfer_params: Any = None
    metadata: dict[str, Any] | None = None
    output_config: Any = None
    service_tier: Any = None
    stop_sequences: list[Any] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    vllm_xargs: Any = None


TAKEN = frozenset({"service_tier", "thinking"})
"""Anthropic's fields that vLLM does not have, and that change nothing."""

_MODELS: Mapping[str, type[BaseModel]] = {"messages": Messages, "count_tokens": CountTokens}

FIELDS: Mapping[str, frozenset[str]] = {name: frozenset(model.model_fields) for name, model in _MODELS.items()}
"""Operation to fields."""

ENGINE = FIELDS["messages"] - TAKEN
ENGINE_COUNT = FIELDS["count_tokens"] - TAKEN


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

    def parse(self, operation: str, request: Request, context: Context) -> Call:
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
