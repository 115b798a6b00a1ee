"""Azure AI Model Inference: OpenAI's shapes under Azure's rules.

What differs: the rules for extra parameters, the errors, and where a stream has its usage. Contract: the Azure AI
Model Inference API reference, and what `azure-ai-inference` and its LangChain wrapper send and expect.

Azure's errors: every one has the header `x-ms-error-code`, and a body of the documented shape for its status. A
stream that fails is cut: the SDK would skip its error.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic_core import from_json

from app.config.schema import Config
from app.dialects.azure.fields import MODELS, Chat, Completions, Embeddings, checked
from app.dialects.base import (
    AZURE_MOUNTS,
    INFO_PATHS,
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    Route,
    ServingContext,
    Stream,
    Translation,
    immutable,
    openai_routes,
)
from app.dialects.bodies import UNREAD, dump, request_object
from app.dialects.common.requests import (
    DirectTranslation,
    ask_for_usage,
    encoded,
    greedy,
    settle_functions,
    settle_messages,
    tokenize,
)
from app.dialects.common.streams import LastChoiceUsageStream
from app.dialects.schemas import Body
from app.errors import (
    CONTEXT_EXCEEDED,
    BadRequest,
    ContextExceeded,
    NotFound,
    Rejected,
    SwitchyardError,
    Unprocessable,
    WrongTask,
    shortened,
)

# Several shapes are in circulation; these bodies hold the union, which each known client reads.

_TITLES: Mapping[int, str] = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Payload Too Large",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}

_CODES: Mapping[int, str] = {
    400: "invalid_input",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "PayloadTooLarge",
    422: "parameter_not_supported",
    429: "TooManyRequests",
}


_LONGEST_VALUE = 100
"""Characters of a client's value in an error."""


def error_reply(error: SwitchyardError) -> Reply:
    """The error as Azure's SDK reads it."""
    code = error.code or _CODES.get(error.status, "InternalServerError")
    body: dict[str, Any] = {
        "error": _TITLES.get(error.status, "Error"),
        "message": error.message,
        "status": error.status,
        "code": code,
    }
    if error.code in ("MissingApiVersionParameter", "InvalidApiVersionParameter"):
        body["error"] = {"code": code, "message": error.message}
    elif error.code == "content_filter":
        body["param"] = error.param
    elif error.status == 400:
        body["detail"] = error.message
    elif isinstance(error, Unprocessable):
        text = _text(error.value)
        value = error.value if len(text) <= _LONGEST_VALUE else shortened(text, _LONGEST_VALUE)
        detail = {"loc": _location(error.param), "value": shortened(text, _LONGEST_VALUE), "input": value}
        body |= {"detail": detail, "details": [detail]}
    return Reply(dump(body), error.status, headers={"x-ms-error-code": code})


def _location(path: str | None) -> list[str]:
    """``messages[0].role`` as ``["body", "messages", "0", "role"]``."""
    return ["body", *(part for part in re.split(r"[.\[\]]+", path or "") if part)]


def _text(value: Any) -> str:
    """A value in the words of JSON; a long one's beginning, and some more."""
    if isinstance(value, str):
        return value
    text = ""
    for piece in json.JSONEncoder(default=str).iterencode(value):  # a long value is not written out
        text += piece
        if len(text) > _LONGEST_VALUE:
            break
    return text


_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}(-preview)?")

_SHARED_PATHS = frozenset(route.path for prefix in ("", "/endpoints/{endpoint}") for route in openai_routes(prefix))
"""Paths at which a request without `api-version` is OpenAI's."""

EXTRA_PARAMETERS: Mapping[str, str] = {
    "error": "error",
    "drop": "drop",
    "ignore": "drop",
    "pass-through": "pass-through",
    "allow": "pass-through",
}
"""The values of the header `extra-parameters`, and what each means."""


# Each operation's request and answer. `parse` gets a body without the extra parameters that the client wants rejected
# or dropped.


@immutable
class AzureChatTranslation(DirectTranslation):
    """POST /chat/completions."""

    stream: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = checked(Chat, body)
        sent = _without(body, "modalities", "model")
        sent["messages"] = [message.openai() for message in request.messages]
        settle_messages(sent)
        settle_functions(sent)
        greedy(sent)
        ask_for_usage(sent)
        return Call("chat", sent, cls("/v1/chat/completions", sent, request.stream), request.model)

    def open_stream(self, serving: ServingContext) -> Stream:
        # LangChain's Azure class loses usage without a choice; the SDK silently skips an `error` object.
        return LastChoiceUsageStream(self.path)


@immutable
class AzureCompletionsTranslation(Translation):
    """POST /completions."""

    body: Mapping[str, Any]
    stream: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = checked(Completions, body)
        sent = _without(body, "model")
        sent["prompt"] = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
        greedy(sent)
        ask_for_usage(sent)
        return Call("completions", sent, cls(sent, request.stream), request.model)

    def engine_requests(self, serving: ServingContext) -> Flow:
        body = self.body
        if "max_tokens" not in body:  # Azure's default is the rest of the context, vLLM's is 16
            tokens = yield from tokenize([{"prompt": body["prompt"]}], serving)
            if tokens.room < 1:
                raise BadRequest(
                    f"prompt: has {tokens.longest} tokens, this model takes at most {tokens.context - 1}",
                    param="prompt",
                    code=CONTEXT_EXCEEDED,
                )
            body = {**body, "max_tokens": tokens.room}
        return EngineRequest("/v1/completions", body)

    def open_stream(self, serving: ServingContext) -> Stream:
        return LastChoiceUsageStream("/v1/completions")  # as for chat


@immutable
class AzureEmbeddingsTranslation(DirectTranslation):
    """POST /embeddings. `encoding` is the client's `encoding_format`."""

    encoding: str = "float"

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        request = checked(Embeddings, body)
        sent = {**_without(body, "input_type", "model"), "encoding_format": "float"}
        return Call("embeddings", sent, cls("/v1/embeddings", sent, request.encoding_format), request.model)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        response = from_json(answer)
        for item in response["data"]:
            item["embedding"] = encoded(item["embedding"], self.encoding)
        # The SDK requires exactly these two.
        response["usage"] = {name: response["usage"][name] for name in ("prompt_tokens", "total_tokens")}
        return Reply(dump(response))


_PARSERS: Mapping[str, Callable[[dict[str, Any]], Call]] = {
    "chat": AzureChatTranslation.parse,
    "completions": AzureCompletionsTranslation.parse,
    "embeddings": AzureEmbeddingsTranslation.parse,
}


def _without(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


class Azure:
    """The dialect at `/azure` and `/models`, and with `api-version` at the root and `/endpoints/{endpoint}`."""

    name: ClassVar[str] = "azure"
    routes: ClassVar[Sequence[Route]] = tuple(
        route
        for prefix in AZURE_MOUNTS
        for route in (
            *openai_routes(prefix),
            Route("POST", f"{prefix}/images/embeddings", "images", local=True),
            Route("GET", f"{prefix}/info", "info", local=True),
        )
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {name: [Body(model)] for name, model in MODELS.items()}
    unknown_fields: ClassVar[str] = (
        "as the header `extra-parameters` says: rejected, dropped, or passed to vLLM; a `user` that is passed is the "
        "sticky key if the endpoint is sticky by user"
    )
    unknown_nested: ClassVar[str] = UNREAD

    def claims(self, route: Route, request: Request) -> bool:
        """LangChain's newer Azure class is the OpenAI SDK on the same paths; that SDK's own headers identify it."""
        if "x-stainless-lang" in request.headers:
            return False
        if route.path in INFO_PATHS and "api-key" in request.headers:
            return True  # TGI has these paths too
        is_shared = route.path in INFO_PATHS or route.path in _SHARED_PATHS
        return not is_shared or "api-version" in request.query or _is_azure_sdk(request)

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        _check_version(request)
        body = _without_undocumented(request_object(request.body), operation, request.headers.get("extra-parameters"))
        call, user = _PARSERS[operation](body), body.get("user")
        call = replace(call, user=user if isinstance(user, str) else None)
        if (endpoint := request.params.get("endpoint")) is None:
            return replace(call, model=None) if _means_no_model(call, context.config) else call
        return replace(call, model=endpoint, deployment=None if call.model == endpoint else call.model)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        # What passed Azure's checks but this model cannot do: Azure's 422.
        if isinstance(error, Rejected) and error.status == 400 and not isinstance(error, ContextExceeded):
            error = Unprocessable(error.message, param=error.param, value=error.value)
        if isinstance(error, WrongTask):
            error = NotFound(error.message, param=error.param)
        return error_reply(error)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        _check_version(request)
        name = request.params.get("endpoint") or _main_endpoint(config)
        if name is None or name not in config.endpoints:
            raise NotFound(f"There is no endpoint '{name}'")  # anybody may ask
        endpoint = config.endpoints[name]
        if operation == "images":
            raise NotFound(f"Endpoint '{name}' does not serve image embeddings")
        info = {
            "model_name": name,
            "model_type": "embeddings" if set(endpoint.tasks) <= {"embeddings", "rerank"} else "chat_completion",
            "model_provider_name": "vllm",
        }
        return Reply(dump(info))


def _main_endpoint(config: Config) -> str | None:
    """The endpoint that `/info` names where the path names none."""
    return config.defaults.get("chat") or config.defaults.get("embeddings")


def _means_no_model(call: Call, config: Config) -> bool:
    """Whether `model` is the name that `/info` gives the whole server, in a task with another default endpoint.

    LlamaIndex reads the name from `/info` and sends it with requests for embeddings, too.
    """
    if call.model is None or call.model != _main_endpoint(config) or call.model not in config.endpoints:
        return False
    return call.task in config.defaults and call.task not in config.endpoints[call.model].tasks


def _is_azure_sdk(request: Request) -> bool:
    return "azsdk-" in request.headers.get("user-agent", "")


def _check_version(request: Request) -> None:
    version = request.query.get("api-version")
    if version is None:
        raise BadRequest(
            "The api-version query parameter (?api-version=) is required for all requests",
            param="api-version",
            code="MissingApiVersionParameter",
        )
    if not _VERSION.fullmatch(version):
        raise BadRequest(
            f"Invalid api-version '{version}': expected YYYY-MM-DD or YYYY-MM-DD-preview",
            param="api-version",
            code="InvalidApiVersionParameter",
        )


def _without_undocumented(body: dict[str, Any], operation: str, header: str | None) -> dict[str, Any]:
    """`body` after the header `extra-parameters`: fields that Azure does not document are rejected, dropped or kept."""
    mode = EXTRA_PARAMETERS.get((header or "error").strip().lower())
    if mode is None:
        raise BadRequest(
            f"Unexpected EXTRA_PARAMETERS option {header}, expected options are ['error', 'drop', 'pass-through']",
            param="extra-parameters",
        )
    if mode == "pass-through" and "prompt_embeds" in body:
        field = "messages" if operation == "chat" else "prompt"
        raise BadRequest(f"prompt_embeds: not passed; send the text as `{field}`", param="prompt_embeds")
    documented = MODELS[operation].model_fields
    undocumented = [name for name in body if name not in documented]
    if undocumented and mode == "error":
        # Clients match this text.
        raise BadRequest(
            f"Extra parameters {undocumented} are not allowed when extra-parameters is not set or set to be 'error'. "
            "Set extra-parameters to 'pass-through' to pass to the model.",
            param=undocumented[0],
        )
    return body if mode == "pass-through" else {name: value for name, value in body.items() if name in documented}
