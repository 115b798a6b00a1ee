"""Text Generation Inference (TGI), and MindIE's profile of it, on vLLM's completions; `tei` is its sibling.

Contract: TGI's router v3 (its OpenAPI description and its texts), MindIE's description of its TGI interface, and what
`huggingface_hub` and `text-generation` send and expect. `profile` has what differs between the two descriptions.

The routes are at the root for the default endpoint, below `/tgi` for it too (there in TGI's form only), and below
`/tgi/{endpoint}` for a named one; `/info` is also below `/endpoints/{endpoint}`, a path of Azure's. Unknown fields are
ignored, as TGI does.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from msgspec.structs import replace

from app.config.schema import Config, Task
from app.dialects.base import Call, ParseContext, Reply, Request, Route
from app.dialects.json_body import peek
from app.dialects.mounts import INFO_PATHS, is_openais_sdk
from app.dialects.openapi_schemas import Body
from app.dialects.tgi import tei
from app.dialects.tgi.addressing import names_no_model
from app.dialects.tgi.chat.chat import ChatCompletion
from app.dialects.tgi.chat.completions import Completion
from app.dialects.tgi.chat.fields import Chat, Completions
from app.dialects.tgi.chat.tokenize import ChatTokenize
from app.dialects.tgi.errors import error_reply
from app.dialects.tgi.fields import GenerateRequest, Parameters
from app.dialects.tgi.generate import Generate
from app.dialects.tgi.health import Health, health_error
from app.dialects.tgi.info import Info, models
from app.dialects.tgi.tokenize import Tokenize
from app.dialects.tgi.vertex import Instances, Vertex
from app.errors import SwitchyardError

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
    "tokenize": Tokenize.parse,
    "chat_tokenize": ChatTokenize.parse,
    "embed": tei.EmbedTranslation.parse,
    "embed_all": tei.EmbedAllTranslation.parse,
    "similarity": tei.SimilarityTranslation.parse,
    "rerank": tei.RerankTranslation.parse,
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
