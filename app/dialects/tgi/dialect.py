"""Text Generation Inference (TGI), and MindIE's profile of it, on vLLM's completions; `tei` is its sibling.

Contract: TGI's router v3 (its OpenAPI description and its texts), MindIE's description of its TGI interface, and what
`huggingface_hub` and `text-generation` send and expect. `profile` has what differs between the two descriptions.

The routes are at the root for the default endpoint, below `/tgi` for it too (there in TGI's form only), and below
`/tgi/{endpoint}` for a named one; `/info` is also below `/endpoints/{endpoint}`, a path of Azure's. Unknown fields are
ignored, as TGI does.

- `/health` below `/tgi`: whether a deployment answers.
- `/info`, of TGI and of Text Embeddings Inference (TEI), and `/v1/models`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace

from app.config.schema import Config, Task
from app.dialects.base import (
    INFO_PATHS,
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    Route,
    ServingContext,
    Translation,
    is_openais_sdk,
    names_no_model,
    no_lookups,
)
from app.dialects.bodies import UNREAD, dump, peek
from app.dialects.common.requests import model_list
from app.dialects.schemas import Body
from app.dialects.tgi import tei
from app.dialects.tgi.chat import MAX_PROMPTS, Chat, ChatCompletion, Completion, Completions
from app.dialects.tgi.errors import error_reply
from app.dialects.tgi.fields import MAX_BEST_OF, MAX_STOP_SEQUENCES, GenerateRequest, Parameters
from app.dialects.tgi.generate import Generate
from app.dialects.tgi.profile import task_asked_about
from app.dialects.tgi.tokenize import ChatTokenize, TokensTranslation
from app.dialects.tgi.vertex import Instances, Vertex
from app.errors import BadRequest, NotFound, Rejected, SwitchyardError, Unavailable, UpstreamError
from app.misspellings import question


@dataclass(frozen=True, slots=True)
class Health(Translation):
    """An empty answer if the engine answers its own health check."""

    generates = False
    is_shared = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        return Call(task_asked_about(request, context), {}, cls())

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/ping", {}))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return Reply(b"")


def health_error(error: SwitchyardError) -> Reply:
    """A failed health check. A busy deployment is healthy, and so is a plain vLLM server that rejects the route."""
    if isinstance(error, Rejected) or (isinstance(error, Unavailable) and error.retry_after):
        return Reply(b"")
    if isinstance(error, UpstreamError):
        return Reply(dump({"error": "unhealthy", "error_type": "healthcheck"}), 503)
    return error_reply(error, stream=False)


MAX_CONCURRENT_REQUESTS = 128

_TEI_KINDS: Mapping[Task, dict[str, Any]] = {
    "embeddings": {"embedding": {"pooling": None}},
    "rerank": {"reranker": None},
    "classify": {"classifier": {"id2label": None, "label2id": None}},
}
"""TEI's tasks, and its words for their models."""

_VERSION = "3.3.6"  # the version of TGI's interface


@dataclass(frozen=True, slots=True)
class Info(Translation):
    """`/info`, with the names that MindIE adds. What the router does not know is null."""

    needs_model = True
    generates = False
    is_shared = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        task = task_asked_about(request, context)
        return Call(task, {}, TEIInfo(task) if task in _TEI_KINDS else cls())

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(Reply(dump(_info(serving.deployment, serving.known_model.max_len))))


def _info(name: str, context: int) -> dict[str, Any]:
    card = {
        "model_id": name,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "model_dtype": None,
        "model_device_type": None,
    }
    return {
        **card,
        "max_concurrent_requests": MAX_CONCURRENT_REQUESTS,
        "max_best_of": MAX_BEST_OF,
        "max_stop_sequences": MAX_STOP_SEQUENCES,
        "max_input_tokens": context - 1,
        "max_input_length": context - 1,
        "max_total_tokens": context,
        "max_batch_total_tokens": None,
        "max_waiting_tokens": None,
        "waiting_served_ratio": None,
        "validation_workers": 1,
        "max_client_batch_size": MAX_PROMPTS,
        "router": "text-generation-router",
        "version": _VERSION,
        "sha": None,
        "docker_label": None,
        "models": [{**card, "max_total_tokens": context}],
    }


@dataclass(frozen=True, slots=True)
class TEIInfo(Translation):
    """`/info` of an endpoint with vectors or scores, in TEI's form. What the router does not know is null."""

    task: Task
    generates = False
    is_shared = True

    def engine_requests(self, serving: ServingContext) -> Flow:
        context = serving.model.max_len if serving.model is not None else None
        return no_lookups(Reply(dump(_tei_info(serving.deployment, _TEI_KINDS[self.task], context))))


def _tei_info(name: str, kind: dict[str, Any], context: int | None) -> dict[str, Any]:
    return {
        "model_id": name,
        "model_sha": None,
        "model_dtype": None,
        "model_type": kind,
        "max_concurrent_requests": MAX_CONCURRENT_REQUESTS,
        "max_input_length": context,
        "max_batch_tokens": None,
        "max_batch_requests": None,
        "max_client_batch_size": None,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": None,
        "sha": None,
        "docker_label": None,
    }


def models(config: Config, request: Request) -> Reply:
    """`/v1/models`: the endpoint of the path, or all of them. Raises NotFound."""
    endpoint = request.params.get("endpoint")
    names = list(config.endpoints) if endpoint is None else [endpoint]
    known = [*config.endpoints, *config.deployments]
    if endpoint is not None and endpoint not in known:
        raise NotFound(f"There is no endpoint '{endpoint}'{question(endpoint, known)}", param="model")
    return Reply(dump(model_list(config, names, request.configured_at)))


_MOUNTS = ("", "/tgi", "/tgi/{endpoint}")
_TEI_MOUNTS = ("", "/tgi/{endpoint}")
_STREAM_FIELD = frozenset({"root", "invocations", "chat", "completions"})
"""Operations that stream if the body's `stream` is true."""


def _routes(mount: str) -> tuple[Route, ...]:
    """TGI's routes below `mount`, open where TGI's are, except `/chat_tokenize`, which calls the engine, and
    `/v1/models`, which lists more than TGI's one model.
    """
    # At the root a chat may name a model, as OpenAI's clients do there.
    chat_default: Task | None = "chat" if mount else None
    routes = (
        Route("POST", mount or "/", "root", default="completions"),
        Route("POST", f"{mount}/generate", "generate", default="completions"),
        Route("POST", f"{mount}/generate_stream", "generate_stream", default="completions"),
        Route("POST", f"{mount}/invocations", "invocations", default="completions"),
        Route("POST", f"{mount}/vertex", "vertex", default="completions"),
        Route("POST", f"{mount}/tokenize", "tokenize", default="completions"),
        Route("POST", f"{mount}/chat_tokenize", "chat_tokenize", default=chat_default),
        Route("POST", f"{mount}/v1/chat/completions", "chat", default=chat_default),
    )
    if not mount:  # /, /health and /metrics are the router's own there, completions and models are OpenAI's
        return (*routes, Route("GET", "/ping", "alive", local=True, open=True))
    return (
        *routes,
        Route("POST", f"{mount}/v1/completions", "completions", default="completions"),
        Route("GET", f"{mount}/v1/models", "models", local=True),
        Route("GET", f"{mount}/info", "info", open=True),
        *(Route("GET", mount + path, "health", open=True) for path in ("", "/health", "/ping")),
    )


_NESTED = {"parameters": Parameters}
_GENERATE = Body(GenerateRequest, nested=_NESTED)
_CHAT, _COMPLETIONS = Body(Chat), Body(Completions)


class TGI:
    """The dialect at `/`, `/generate` and their neighbours."""

    name: ClassVar[str] = "tgi"
    routes: ClassVar[Sequence[Route]] = (
        *(route for mount in _MOUNTS for route in _routes(mount)),
        *(Route("GET", path, "info", open=True) for path in INFO_PATHS),
        # Not below `/tgi`, where an endpoint may have these names.
        *(Route("POST", f"{mount}/embed", "embed", default="embeddings") for mount in _TEI_MOUNTS),
        *(Route("POST", f"{mount}/embed_all", "embed_all", default="embeddings") for mount in _TEI_MOUNTS),
        *(Route("POST", f"{mount}/similarity", "similarity", default="embeddings") for mount in _TEI_MOUNTS),
        *(Route("POST", f"{mount}/rerank", "rerank", default="rerank") for mount in _TEI_MOUNTS),
        *(Route("POST", f"{mount}/predict", "predict", default="classify") for mount in _TEI_MOUNTS),
    )
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "generate": [_GENERATE],
        "generate_stream": [_GENERATE],
        "root": [_GENERATE],
        "chat": [_CHAT],
        "completions": [_COMPLETIONS],
        "invocations": [_GENERATE, _CHAT, _COMPLETIONS],
        "vertex": [Body(Instances)],
        "tokenize": [Body(GenerateRequest, used=frozenset({"inputs", "parameters", "truncate"}), nested=_NESTED)],
        "embed": [Body(tei.Embed)],
        "embed_all": [Body(tei.EmbedAll)],
        "similarity": [Body(tei.Similarity)],
        "rerank": [Body(tei.Rerank)],
        "predict": [Body(tei.Predict)],
        "chat_tokenize": [Body(Chat, used=frozenset({"guideline", "messages", "model", "tool_prompt", "tools"}))],
    }
    unknown_fields: ClassVar[str] = "ignored, as in TGI"
    unknown_nested: ClassVar[str] = UNREAD

    def claims(self, route: Route, request: Request) -> bool:
        """Four of the paths are the OpenAI dialect's too; the body decides."""
        if route.path == "/v1/chat/completions":
            return _is_tgi_chat(request)
        if route.path in ("/tokenize", "/invocations"):
            return "inputs" in peek(request.body)
        return route.path != "/rerank" or "texts" in peek(request.body)

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        if operation == "root":
            operation = tei.operation_of(request, context) or operation
        if b'"resume"' in request.body and "resume" in peek(request.body):  # TGI's unknown fields are ignored
            raise BadRequest("resume: only OpenAI's chat completions and completions resume a stream", param="resume")
        call = _PARSERS[operation](request, context)
        endpoint = request.params.get("endpoint")
        return call if endpoint is None else replace(call, model=endpoint)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if operation == "health":
            return health_error(error)
        body = peek(request.body) if operation in _STREAM_FIELD else {}
        chat = operation in ("chat", "completions") or (operation == "invocations" and "inputs" not in body)
        stream = operation == "generate_stream" or body.get("stream") is True
        return error_reply(error, stream=stream, chat=chat)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        if operation == "models":
            return models(config, request)
        return Reply(b"")  # "alive" is about the router; `/tgi/health` is about the default endpoint


def _parse_invocations(request: Request, context: ParseContext) -> Call:
    """SageMaker's only route takes all three kinds of request."""
    body = peek(request.body)
    if "inputs" not in body and "messages" in body:
        return ChatCompletion.parse(request, context)
    if "inputs" not in body and "prompt" in body:
        return Completion.parse(request, context)
    return Generate.parse(request, context)


_PARSERS: Mapping[str, Callable[[Request, ParseContext], Call]] = {
    "root": Generate.parse,
    "generate": partial(Generate.parse, stream=False),
    "generate_stream": partial(Generate.parse, stream=True),
    "invocations": _parse_invocations,
    "vertex": Vertex.parse,
    "tokenize": TokensTranslation.parse,
    "chat_tokenize": ChatTokenize.parse,
    "embed": tei.EmbedTranslation.parse,
    "embed_all": tei.EmbedAllTranslation.parse,
    "similarity": tei.SimilarityTranslation.parse,
    "rerank": tei.TeiRerankTranslation.parse,
    "predict": tei.PredictTranslation.parse,
    "chat": ChatCompletion.parse,
    "completions": Completion.parse,
    "info": Info.parse,
    "health": Health.parse,
}

_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')


def _is_tgi_chat(request: Request) -> bool:
    """Whether a chat at OpenAI's own path is TGI's: it has TGI's grammar, or a name that means no model, or neither a
    model nor a field that TGI would ignore.

    Most bodies name a model and have no grammar, which a search finds without parsing: inside a JSON string the quotes
    of ``"model"`` would be escaped.
    """
    if not request.body:  # not read yet
        return False
    if names := _MODEL.findall(request.body):
        for name in names:  # no generator: this runs for every chat
            if names_no_model(name.decode(errors="replace"), request):
                break
        else:
            if request.body.find(b'"value"') < 0:
                return False
    fields = peek(request.body)
    format = fields.get("response_format")
    if isinstance(format, dict) and "value" in format:
        return True
    if (name := fields.get("model")) is not None:
        return names_no_model(name, request)
    return bool(fields) and fields.keys() <= Chat.model_fields.keys() and not is_openais_sdk(request.headers)
