"""OpenAI's API, which vLLM has too: bodies are checked and passed on, answers pass, errors are reworded.

Contract: OpenAI's API reference, and what the official SDKs send and expect.

vLLM's questions about one engine: GET /version and GET /tokenizer_info, asked of a deployment.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic_core import from_json

from app.config.schema import TASKS, Config, Task
from app.dialects.base import (
    AZURE_MOUNTS,
    EVENT_STREAM,
    MOUNTS,
    Call,
    ParseContext,
    Reply,
    Request,
    Route,
    ServingContext,
    addressed,
    immutable,
    is_below,
    is_own_url,
    openai_routes,
)
from app.dialects.bodies import UNREAD, dump, request_object
from app.dialects.common.fields import REJECTED_BY_NAME
from app.dialects.common.requests import DirectTranslation, model_card, model_list, model_names
from app.dialects.openai import azure_ml, cohere, fields, input_tokens, scoring
from app.dialects.openai import fields as vllm_fields
from app.dialects.openai.errors import error_body
from app.dialects.openai.translations import PARSERS, PARSERS_OF_RESPONSES, failed_stream, parse_cohere_embed
from app.dialects.schemas import Body
from app.engine.answers import TOKENIZER_INFO_PATH, VERSION_PATH
from app.errors import ContextExceeded, NotFound, Rejected, SwitchyardError, UnsupportedRoute
from app.misspellings import question
from app.version import own_version

# `?model=` names the endpoint or the deployment; else it is the default endpoint of the first task that has one.


@immutable
class Version(DirectTranslation):
    """The engine's version in vLLM's form, and this server's beside it."""

    generates = False
    is_shared = True

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(dump({"version": from_json(answer)["version"], "switchyard": own_version()}))


def no_tokenizer_info() -> UnsupportedRoute:
    """The error where the engine has no such route."""
    argument = "`engine_kwargs: {enable_tokenizer_info_endpoint: true}` in the deployment's application"
    return UnsupportedRoute("tokenizer's settings", argument)


@immutable
class TokenizerInfo(DirectTranslation):
    """The tokenizer's settings, from engines that show them."""

    generates = False
    is_shared = True


QUESTIONS: Mapping[str, Callable[[], DirectTranslation]] = {
    "version": lambda: Version(VERSION_PATH, {}),
    "tokenizer_info": lambda: TokenizerInfo(TOKENIZER_INFO_PATH, {}),
}
"""Operation to its translation."""


def asked(question: Callable[[], DirectTranslation], request: Request, config: Config) -> Call:
    """The call of a question."""
    name = request.query.get("model")
    named = config.endpoints.get(name or "") or config.deployments.get(name or "")
    tasks = config.defaults if name is None else named.tasks if named is not None else ()
    task: Task = next((task for task in TASKS if task in tasks), "chat")
    return Call(task, {}, question(), name)


def _responses_routes(prefix: str) -> tuple[Route, ...]:
    return (
        Route("POST", f"{prefix}/responses", "responses"),
        Route("POST", f"{prefix}/responses/input_tokens", "input_tokens"),
        Route("GET", f"{prefix}/responses/{{id}}", "stored_response", local=True),
        Route("DELETE", f"{prefix}/responses/{{id}}", "stored_response", local=True),
        Route("POST", f"{prefix}/responses/{{id}}/cancel", "stored_response", local=True),
    )


def _model_routes(prefix: str) -> tuple[Route, ...]:
    return (
        Route("GET", f"{prefix}/models", "list_models", local=True),
        Route("GET", f"{prefix}/models/{{model:path}}", "retrieve_model", local=True),
    )


def _routes(prefix: str) -> tuple[Route, ...]:
    return (*openai_routes(prefix), *_responses_routes(prefix), *_model_routes(prefix))


_AZURE_DEPLOYMENT = "/openai/deployments/{deployment}"
_CHAT = Body(fields.Chat, vllm_fields.ENGINE_CHAT)
_COMPLETIONS = Body(fields.Completions, vllm_fields.ENGINE_COMPLETIONS)

_RERANK = Body(scoring.Rerank, vllm_fields.ENGINE_RERANK)
_SCORE = (Body(scoring.Score, vllm_fields.ENGINE_SCORE), Body(azure_ml.WrappedChat))


class OpenAI:
    """The dialect at `/v1`."""

    name: ClassVar[str] = "openai"
    routes: ClassVar[Sequence[Route]] = (
        *(_routes("/v1") + _routes("/openai/v1")),
        # Azure OpenAI's classic paths, and those that Azure's own dialect shares with the OpenAI SDK.
        *openai_routes("/openai"),
        *_responses_routes("/openai"),
        *_model_routes("/openai"),
        *(openai_routes(_AZURE_DEPLOYMENT) + _responses_routes(_AZURE_DEPLOYMENT)),
        *(route for prefix in AZURE_MOUNTS for route in openai_routes(prefix)),
        *(route for prefix in MOUNTS for route in _responses_routes(prefix)),
        # vLLM's own and SageMaker's; TGI's dialect claims its requests there.
        Route("POST", "/tokenize", "tokenize"),
        Route("POST", "/detokenize", "detokenize"),
        Route("POST", "/pooling", "pooling"),
        Route("POST", "/classify", "classify"),
        Route("POST", "/v1/classify", "classify"),  # for OpenAI's SDK, whose base URL has the version
        Route("GET", "/version", "version"),
        Route("GET", "/tokenizer_info", "tokenizer_info"),
        Route("POST", "/v1/embed", "cohere_embed"),
        Route("POST", "/v2/embed", "cohere_embed"),
        Route("POST", "/rerank", "rerank"),
        Route("POST", "/v1/rerank", "rerank"),
        Route("POST", "/v2/rerank", "rerank_v2"),
        Route("POST", "/score", "score"),
        Route("POST", "/v1/score", "score"),
        # Azure ML's managed endpoints have these two.
        Route("POST", "/endpoints/{endpoint}/score", "score"),
        *(Route("GET", f"{prefix}/swagger.json", "swagger", local=True) for prefix in ("", "/endpoints/{endpoint}")),
        Route("POST", "/invocations", "invocations"),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "chat": [_CHAT],
        "completions": [_COMPLETIONS],
        "embeddings": [Body(fields.Embeddings, vllm_fields.ENGINE_EMBEDDINGS)],
        "pooling": [Body(fields.Pooling, vllm_fields.ENGINE_POOLING)],
        "classify": [Body(fields.Classify, vllm_fields.ENGINE_CLASSIFY)],
        "cohere_embed": [Body(cohere.Embed, frozenset({"model"}))],
        "rerank": [_RERANK],
        "rerank_v2": [_RERANK],
        "score": _SCORE,
        "responses": [Body(fields.Responses, vllm_fields.ENGINE_RESPONSES)],
        "tokenize": [Body(fields.Tokenize, vllm_fields.ENGINE_TOKENIZE)],
        "detokenize": [Body(fields.Detokenize, frozenset({"model", "tokens"}))],
        "input_tokens": [Body(fields.InputTokens, input_tokens.PASSED)],
        "invocations": [_CHAT, _COMPLETIONS],
    }
    unknown_fields: ClassVar[str] = REJECTED_BY_NAME
    unknown_nested: ClassVar[str] = UNREAD

    def claims(self, route: Route, request: Request) -> bool:
        return True  # the last in the registry: takes the paths that no other dialect claims

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        if (question := QUESTIONS.get(operation)) is not None:
            return asked(question, request, context.config)
        call = self._parse(operation, request_object(request.body), request, context.config)
        if is_own_url(call.model, request.path):
            call = replace(call, model=None)
        if (deployment := request.params.get("deployment")) is not None:
            return replace(call, model=deployment)
        if (endpoint := request.params.get("endpoint")) is not None:
            chosen = call.model if call.model != endpoint else None
            return replace(call, model=endpoint, deployment=chosen)
        return addressed(call, request) if is_below(request) else call

    @staticmethod
    def _parse(operation: str, body: dict[str, Any], request: Request, config: Config) -> Call:
        if request.path == "/v1/embed":
            return parse_cohere_embed(body, version="1")
        if (parser := PARSERS.get(operation)) is not None:
            return parser(body)
        endpoint = config.endpoint_of(request.params.get("deployment") or body.get("model"), "responses")
        drop = endpoint is None or endpoint.unsupported_tools == "drop"
        return PARSERS_OF_RESPONSES[operation](body, drop_tools=drop)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if operation == "tokenizer_info" and isinstance(error, Rejected) and error.status == 404:
            error = no_tokenizer_info()
        headers = {"x-should-retry": "false"} if error.kind in ("broken", "internal") else {}
        body = error_body(error)
        is_exceeded = operation == "responses" and isinstance(error, ContextExceeded)
        if is_exceeded and (given := from_json(request.body)).get("stream"):
            events = failed_stream(given, error, request.id, request.received_at)
            return Reply(events, media_type=EVENT_STREAM, headers=headers)
        if operation in ("cohere_embed", "rerank_v2"):  # where Cohere's clients look for it
            body["message"] = error.message
        return Reply(dump(body), error.status, headers=headers)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        if operation == "list_models":
            return Reply(dump(model_list(config, model_names(config), request.configured_at)))
        if operation == "retrieve_model":
            name = request.params["model"]
            if name not in (known := model_names(config)):
                raise NotFound(f"The model '{name}' does not exist{question(name, known)}", param="model")
            return Reply(dump(model_card(config, name, request.configured_at)))
        if operation == "swagger":
            name = request.params.get("endpoint") or config.defaults.get("chat", "")
            if name not in config.endpoints:
                raise NotFound(f"There is no endpoint '{name}'")
            return Reply(dump(azure_ml.swagger(name, [*_SCORE, _CHAT])))
        raise NotFound(
            f"Response '{request.params['id']}' not found: this server stores no responses; "
            "send the conversation's items in `input`",
            param="response_id",
        )
