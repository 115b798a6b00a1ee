"""OpenAI's API as vLLM speaks it: the identity, but for checks, nulls, errors and what vLLM lacks.

Contract: OpenAI's API reference, and what the official SDKs send and expect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from app.config.schema import Config, Task
from app.dialects.base import ParseContext, Reply, Request, Route, ServingContext, Stream
from app.dialects.common.best_of import BestOf
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.fields import BOOKKEEPING
from app.dialects.common.passthrough import PassthroughStream
from app.dialects.common.single_tool_call import OneCall, answer_with_one_call
from app.dialects.json_body import dump, json_object
from app.dialects.legacy import Call
from app.dialects.mounts import AZURE_MOUNTS, MOUNTS, addressed, is_below
from app.dialects.openai import fields
from app.dialects.openai.errors import CHUNKS, EVENTS, error_body
from app.dialects.openai.vllm_fields import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ENGINE_TOKENIZE,
    RESPONSES,
    RESPONSES_BOOKKEEPING,
    UNSUPPORTED,
)
from app.dialects.openapi_schemas import Body
from app.dialects.validation import first_problem
from app.errors import BadRequest, NotFound, SwitchyardError

# Notes of calls: what is to be done with the answer.
_HIDE_USAGE = "hide usage"
_ONE_CALL = "one call"


def _generation(prefix: str) -> tuple[Route, ...]:
    return (
        Route("POST", f"{prefix}/chat/completions", "chat"),
        Route("POST", f"{prefix}/completions", "completions"),
        Route("POST", f"{prefix}/embeddings", "embeddings"),
    )


def _of_responses(prefix: str) -> tuple[Route, ...]:
    return (
        Route("POST", f"{prefix}/responses", "responses"),
        Route("GET", f"{prefix}/responses/{{id}}", "stored_response", local=True),
        Route("DELETE", f"{prefix}/responses/{{id}}", "stored_response", local=True),
        Route("POST", f"{prefix}/responses/{{id}}/cancel", "stored_response", local=True),
    )


def _routes(prefix: str) -> tuple[Route, ...]:
    return (
        *_generation(prefix),
        *_of_responses(prefix),
        Route("GET", f"{prefix}/models", "list_models", local=True),
        Route("GET", f"{prefix}/models/{{model:path}}", "retrieve_model", local=True),
    )


_CHAT = Body(fields.Chat, CHAT)
_COMPLETIONS = Body(fields.Completions, COMPLETIONS)


class OpenAI:
    """The dialect at `/v1`."""

    name: ClassVar[str] = "openai"
    routes: ClassVar[Sequence[Route]] = (
        *(_routes("/v1") + _routes("/openai/v1")),
        # Azure OpenAI's classic paths, and the paths that clients of Azure's own dialect share with the OpenAI SDK.
        *_generation("/openai/deployments/{deployment}"),
        *(route for prefix in AZURE_MOUNTS for route in _generation(prefix)),
        *(route for prefix in MOUNTS for route in _of_responses(prefix)),
        # vLLM's own, and SageMaker's; what is TGI's there, TGI's dialect claims.
        Route("POST", "/tokenize", "tokenize"),
        Route("POST", "/invocations", "invocations"),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "chat": [_CHAT],
        "completions": [_COMPLETIONS],
        "embeddings": [Body(fields.Embeddings, EMBEDDINGS)],
        "responses": [Body(fields.Responses, RESPONSES)],
        "tokenize": [Body(fields.Tokenize, ENGINE_TOKENIZE)],
        "invocations": [_CHAT, _COMPLETIONS],
    }

    def claims(self, route: Route, request: Request) -> bool:
        return True  # asked last: what no other dialect recognises is OpenAI's

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        body = json_object(request.body)
        call = _PARSERS[operation](body)
        if (deployment := request.params.get("deployment")) is not None:
            return replace(call, model=deployment)
        if (endpoint := request.params.get("endpoint")) is not None:
            chosen = call.model if call.model != endpoint else None
            return replace(call, model=endpoint, deployment=chosen)
        return addressed(call, request) if is_below(request) else call

    def render(self, call: Call, body: bytes, served: ServingContext) -> Reply:
        if isinstance(call.note, BestOf):
            return Reply(call.note.choose(body))
        return Reply(answer_with_one_call(body) if call.note == _ONE_CALL else body)

    def stream(self, call: Call, served: ServingContext) -> Stream:
        if call.task == "responses":
            return PassthroughStream(EVENTS, edit=OneCall().frame if call.note == _ONE_CALL else None)
        return PassthroughStream(CHUNKS, hide_usage=call.note == _HIDE_USAGE)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        headers = {"x-should-retry": "false"} if error.kind in ("broken", "internal") else {}
        return Reply(dump(error_body(error)), error.status, headers=headers)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        if operation == "list_models":
            return Reply(dump({"object": "list", "data": [_card(name) for name in _models(config)]}))
        if operation == "retrieve_model":
            name = request.params["model"]
            if name not in _models(config):
                raise NotFound(f"The model '{name}' does not exist", param="model")
            return Reply(dump(_card(name)))
        raise NotFound(
            f"Response '{request.params['id']}' not found: this server stores no responses, "
            "send the conversation's items in `input`",
            param="response_id",
        )


def _models(config: Config) -> list[str]:
    return [*config.endpoints, *config.deployments]


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "switchyard"}


def checked(body: dict[str, Any], model: type[BaseModel], known: frozenset[str]) -> None:
    """Raises BadRequest, naming the field, where `body` breaks `model` or has a field outside `known`."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error)
        code = "missing_required_parameter" if problem.missing else None
        raise BadRequest(problem.message, param=problem.path, code=code) from None
    for name in body:
        if name in UNSUPPORTED:
            raise BadRequest(f"{name}: {UNSUPPORTED[name]}", param=name, code="unsupported_parameter")
        if name not in known:
            raise BadRequest(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")


def _without(body: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in names}


def _call(
    task: Task,
    path: str,
    body: dict[str, Any],
    *,
    dropped: frozenset[str] = BOOKKEEPING,
    note: object = None,
) -> Call:
    return Call(
        task=task,
        path=path,
        body=_without(body, dropped),
        model=body.get("model"),
        stream=body.get("stream", False),
        user=body.get("user") or body.get("safety_identifier"),
        note=note,
    )


def _count_tokens(body: dict[str, Any]) -> str | None:
    """Asks for usage on every stream; says so (the call's note) when the client did not and must not see it."""
    asked = ask_for_usage(body)
    return _HIDE_USAGE if body.get("stream") and not asked else None


def _chat(body: dict[str, Any]) -> Call:
    checked(body, fields.Chat, CHAT)
    greedy(body)
    note = _count_tokens(body)
    return _call("chat", "/v1/chat/completions", body, note=note)


def _completions(body: dict[str, Any]) -> Call:
    checked(body, fields.Completions, COMPLETIONS)
    if body.get("suffix") == "":
        del body["suffix"]
    best_of = BestOf.take(body)
    greedy(body)
    return _call("completions", "/v1/completions", body, note=best_of or _count_tokens(body))


def _embeddings(body: dict[str, Any]) -> Call:
    checked(body, fields.Embeddings, EMBEDDINGS)
    return _call("embeddings", "/v1/embeddings", body)


def _responses(body: dict[str, Any]) -> Call:
    checked(body, fields.Responses, RESPONSES)
    if body.get("top_p") == 0:
        greedy(body)
    note = _ONE_CALL if body.get("parallel_tool_calls") is False else None
    # vLLM would look for a store that it does not have; nothing is stored, and the answer says so.
    stored = {**body, "store": False}
    return _call("responses", "/v1/responses", stored, dropped=RESPONSES_BOOKKEEPING, note=note)


def _tokenize(body: dict[str, Any]) -> Call:
    checked(body, fields.Tokenize, ENGINE_TOKENIZE)
    return _call("chat" if "messages" in body else "completions", "/tokenize", body)


def _invocations(body: dict[str, Any]) -> Call:
    return _chat(body) if "messages" in body else _completions(body)


_PARSERS: Mapping[str, Callable[[dict[str, Any]], Call]] = {
    "chat": _chat,
    "completions": _completions,
    "embeddings": _embeddings,
    "responses": _responses,
    "tokenize": _tokenize,
    "invocations": _invocations,
}
