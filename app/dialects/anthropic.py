"""Anthropic's Messages API, which vLLM speaks itself: passed through, with errors in Anthropic's form.

Contract: Anthropic's API reference, as far as vLLM 0.29 models it (`entrypoints/anthropic`). vLLM makes a chat request
of it inside, so its errors arrive in OpenAI's form or Anthropic's; both hold an `error` object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from app.config import Config
from app.dialects.base import Call, Context, Reply, Request, Route, Served, Stream, dump, json_object
from app.dialects.friendli_mounts import MOUNTS, addressed, is_below
from app.dialects.relay import Ending, Relay
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

# What vLLM 0.29 models; `tests/real/test_fields.py` compares. Anything else it would drop without a word.
ENGINE = frozenset(
    "cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params max_tokens messages metadata model "
    "output_config stop_sequences stream system temperature tool_choice tools top_k top_p vllm_xargs".split()
)

ENGINE_COUNT = frozenset("chat_template_kwargs messages model system tool_choice tools".split())
"""What makes a prompt. The other fields are for an answer, and Anthropic's own API refuses them where it counts."""

TAKEN = frozenset({"service_tier", "thinking"})
"""Anthropic's fields that vLLM does not have, and that change nothing."""

FIELDS: Mapping[str, frozenset[str]] = {
    "messages": ENGINE | TAKEN,
    "count_tokens": ENGINE_COUNT | {"thinking"},
}
"""Operation to fields."""

_REQUIRED: Mapping[str, Sequence[str]] = {
    "messages": ("model", "messages", "max_tokens"),
    "count_tokens": ("model", "messages"),
}


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

    def claims(self, route: Route, request: Request) -> bool:
        return True

    def parse(self, operation: str, request: Request, context: Context) -> Call:
        body = json_object(request.body)
        _check(body, operation)
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


_TYPES_OF_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "messages": list,
    "max_tokens": int,
    "stream": bool,
    "metadata": dict,
    "system": (str, list),
    "stop_sequences": list,
    "temperature": (int, float),
    "tools": list,
    "top_k": int,
    "top_p": (int, float),
}


def _check(body: dict[str, Any], operation: str) -> None:
    for name in _REQUIRED[operation]:
        if name not in body:
            raise BadRequest(f"{name}: Field required", param=name)
    for name, value in body.items():
        if name not in FIELDS[operation]:
            raise BadRequest(f"{name}: Extra inputs are not permitted", param=name)
        expected = _TYPES_OF_FIELDS.get(name)
        if expected is not None and not _is_a(value, expected):
            raise BadRequest(f"{name}: Input has the wrong type", param=name)
    # Absent is disabled at Anthropic's too. vLLM knows neither a budget nor a way to ask for thoughts.
    if "thinking" in body and body["thinking"] != {"type": "disabled"}:
        raise BadRequest(
            'thinking: only {"type": "disabled"} is supported; whether a model thinks is up to its chat template '
            "(`chat_template_kwargs`)",
            param="thinking",
        )
    if not body["messages"]:
        raise BadRequest("messages: at least one message is required", param="messages")


def _is_a(value: Any, expected: type | tuple[type, ...]) -> bool:
    """Whether a JSON value has the type; true and false are no numbers."""
    return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
