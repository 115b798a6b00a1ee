"""Friendli's API on vLLM: completions with every field of its reference, chat, tokens, embeddings.

Contract: Friendli's API reference and what its two SDKs send and expect: `friendli` (the current one), and
`friendli-client` before it. `fields.form` distinguishes one from the other.

The routes are below `/serverless/v1` and `/dedicated/v1`; its container's are below `/v1`, where OpenAI's are too.
`responses` and `messages` exist there as well, in the dialects of OpenAI and Anthropic, whose formats they have.

Friendli's list of models: the endpoints, and their deployments as `endpoint:deployment`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from app.config.schema import Config, Task
from app.dialects.base import MOUNTS, Call, ParseContext, Reply, Request, Route, addressed, is_openais_sdk
from app.dialects.bodies import UNREAD, dump, peek, request_object
from app.dialects.common.fields import REJECTED_BY_NAME
from app.dialects.common.requests import description
from app.dialects.friendli.chat import (
    Detokenize,
    Render,
    Tokenize,
    error_reply,
    parse_chat,
    parse_detokenize,
    parse_render,
    parse_tokenize,
    timeout_reply,
)
from app.dialects.friendli.completions import parse_completion
from app.dialects.friendli.embeddings import Classification, Embeddings, parse_classification, parse_embeddings
from app.dialects.friendli.fields import SDK, Completions
from app.dialects.friendli.rules import CHAT_RULES, COMPLETION_RULES, GENERATION_RULES, Chat, schemas
from app.dialects.schemas import Body
from app.errors import DeadlinePassed, SwitchyardError
from app.long_json import LONG_BODY

# Contract: the current SDK's `ModelCatalogResponseItem`. `kind`, `tasks` and `root` are additions, as in OpenAI's list.

_MODES: tuple[tuple[Task, str], ...] = (("chat", "chat"), ("completions", "completion"), ("embeddings", "embedding"))

_FREE = {name: "0" for name in ("input", "output", "prompt", "completion")} | {
    name: None for name in ("input_cache_read", "cache_write", "audio_minute")
}


def models(config: Config, created: int) -> dict[str, Any]:
    """The list object; every `id` is a name that `model` may have.

    `created` is in Unix seconds. Numbers that the router would have to ask every deployment for are 0.
    """
    return {"object": "list", "data": [{**_card(*entry), "created": created} for entry in _entries(config)]}


def _entries(config: Config) -> Iterator[tuple[str, Sequence[Task], dict[str, Any]]]:
    """Name, tasks and additions: endpoints, their deployments, then the deployments without an endpoint."""
    for name, endpoint in config.endpoints.items():
        yield name, endpoint.tasks, description(config, name)
    behind: set[str] = set()
    for name, endpoint in config.endpoints.items():
        for deployment in endpoint.traffic:
            behind.add(deployment)
            # Below an endpoint a deployment has the endpoint's tasks only.
            yield f"{name}:{deployment}", endpoint.tasks, {**description(config, deployment), "tasks": endpoint.tasks}
    for name, variant in config.deployments.items():
        if name not in behind:
            yield name, variant.tasks, description(config, name)


def _card(name: str, tasks: Sequence[Task], additions: dict[str, Any]) -> dict[str, Any]:
    chats = "chat" in tasks
    functions = ("tool_call", "parallel_tool_call", "structured_output", "tool_choice", "system_messages")
    return {
        "id": name,
        "object": "model",
        "name": name,
        "owned_by": "switchyard",
        "context_length": 0,
        "max_completion_tokens": 0,
        "pricing": _FREE,
        "functionality": dict.fromkeys(functions, chats),
        "description": f"serves {', '.join(tasks)}",
        "deprecation_date": None,
        "reasoning": False,
        "reasoning_options": None,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "interleaved": False,
        "base_model": None,
        "mode": next((mode for task, mode in _MODES if task in tasks), "chat"),
        "default_params": None,
        **additions,
    }


# Which requests are Friendli's, on paths that it shares with OpenAI's. Headers decide first: those of the OpenAI SDK
# mean that a request is not Friendli's, regardless of its body. Other bodies are searched for the names of fields that
# only Friendli has, and parsed only if one occurs, or if they are long.

_ALWAYS_SENT = "timeout_microseconds"  # by the previous SDK, as null unless its user sets it
_ALWAYS_SENT_RAW = _ALWAYS_SENT.encode()

FRIENDLIS_OWN = frozenset(
    "bad_word_tokens beam_search_type early_stopping embedding_to_replace encoder_no_repeat_ngram "
    "encoder_repetition_penalty eos_token forced_output_tokens include_output_logits include_output_logprobs "
    "max_total_tokens min_total_tokens no_repeat_ngram num_beams stop_tokens timeout timeout_microseconds "
    "token_index_to_replace tokens".split()
)
"""Fields of a completions request that no other dialect has; `bad_words` and `min_tokens` are vLLM's too."""

_MAY_BE_FRIENDLIS = re.compile(
    rb'"(?:%b)"\s*:|"seed"\s*:\s*\[|"response_format"' % "|".join(sorted(FRIENDLIS_OWN)).encode()
)


def is_friendli_completion(request: Request) -> bool:
    """Whether a request at `/v1/completions` is Friendli's."""
    headers = request.headers
    if SDK in headers.get("user-agent", ""):
        return True
    if is_openais_sdk(headers):
        return False
    if "x-friendli-team" in headers or headers.get("authorization", "").startswith("Bearer flp_"):
        return True
    # A search in a list of 400,000 texts takes 80 ms, in which nothing else runs.
    may_be = len(request.body) > LONG_BODY or _MAY_BE_FRIENDLIS.search(request.body) is not None
    return may_be and _has_friendlis_fields(peek(request.body))


def is_friendli_chat(request: Request) -> bool:
    """Whether a request at `/v1/chat/completions` is Friendli's; the answer has OpenAI's format in any case."""
    headers = request.headers
    if "x-friendli-team" in headers or SDK in headers.get("user-agent", ""):
        return True
    if request.body.find(_ALWAYS_SENT_RAW) < 0 or is_openais_sdk(headers):
        return False
    return _ALWAYS_SENT in peek(request.body)


def _has_friendlis_fields(body: Mapping[str, Any]) -> bool:
    if not FRIENDLIS_OWN.isdisjoint(body) or isinstance(body.get("seed"), list):
        return True
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and (wanted.get("type") == "regex" or isinstance(wanted.get("schema"), str))


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
    unknown_nested: ClassVar[str] = UNREAD
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
