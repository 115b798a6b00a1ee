"""Text Generation Inference, and MindIE's profile of it, on vLLM's completions.

Contract: TGI's router v3 (its OpenAPI description and its texts), MindIE's description of its TGI interface, and what
`huggingface_hub` and `text-generation` send and expect. `tgi_fields.Profile` has what the two descriptions leave apart.

The routes are at the root for the default endpoint, below `/tgi` for it too (there in TGI's form only), and below
`/tgi/{endpoint}` for a named one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic_core import from_json

from app.config.schema import Config, Task
from app.dialects.base import ParseContext, Reply, Request, Route
from app.dialects.common.engine_request import engine_extensions
from app.dialects.common.passthrough import PassthroughStream
from app.dialects.common.plans import Plan, Planned
from app.dialects.json_body import dump, json_object, peek
from app.dialects.legacy import Call
from app.dialects.openapi_schemas import Body
from app.dialects.tgi import info
from app.dialects.tgi.answer import answer
from app.dialects.tgi.chat import request as openai_form
from app.dialects.tgi.chat.answer import COMPLETIONS, ChatEvents, completed, tokens_of_the_template
from app.dialects.tgi.chat.fields import NO_MODEL, Chat, Completions
from app.dialects.tgi.errors import error_reply
from app.dialects.tgi.fields import Question, read
from app.dialects.tgi.generation import Generation
from app.dialects.tgi.profile import PROFILES, Profile, request_style
from app.dialects.tgi.rules import check_inputs
from app.dialects.tgi.stream import TgiTokenEvents
from app.dialects.tgi.vertex import Batch, Instances
from app.errors import Rejected, SwitchyardError, Unavailable, Unprocessable, UpstreamError

_MOUNTS = ("", "/tgi", "/tgi/{endpoint}")
_STREAMING = frozenset({"root", "invocations", "chat", "completions"})  # where the body says whether


def _routes(mount: str) -> tuple[Route, ...]:
    """TGI's. Those are open which TGI leaves open, but for `/chat_tokenize`, since strangers make nobody work here, and
    `/v1/models`, which lists more than TGI's one model."""
    # At the root a chat may name a model, as OpenAI's clients do there.
    chats: Task | None = "chat" if mount else None
    own = (
        Route("POST", mount or "/", "root", default="completions"),
        Route("POST", f"{mount}/generate", "generate", default="completions"),
        Route("POST", f"{mount}/generate_stream", "generate_stream", default="completions"),
        Route("POST", f"{mount}/invocations", "invocations", default="completions"),
        Route("POST", f"{mount}/vertex", "vertex", default="completions"),
        Route("POST", f"{mount}/tokenize", "tokenize", default="completions"),
        Route("POST", f"{mount}/chat_tokenize", "chat_tokenize", default=chats),
        Route("POST", f"{mount}/v1/chat/completions", "chat", default=chats),
        Route("GET", f"{mount}/info", "info", open=True),
    )
    if not mount:  # the router's own /health and /metrics are there, and OpenAI's completions and models
        return (*own, *(Route("GET", path, "alive", local=True, open=True) for path in ("/", "/ping")))
    return (
        *own,
        Route("POST", f"{mount}/v1/completions", "completions", default="completions"),
        Route("GET", f"{mount}/v1/models", "models", local=True),
        *(Route("GET", mount + path, "health", open=True) for path in ("", "/health", "/ping")),
    )


_QUESTION, _CHAT, _COMPLETIONS = Body(Question), Body(Chat), Body(Completions)


class TGI(Planned):
    """The dialect at `/`, `/generate` and their neighbours."""

    name: ClassVar[str] = "tgi"
    routes: ClassVar[Sequence[Route]] = tuple(route for mount in _MOUNTS for route in _routes(mount))
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "root": [_QUESTION],
        "generate": [_QUESTION],
        "generate_stream": [_QUESTION],
        "invocations": [_QUESTION, _CHAT, _COMPLETIONS],
        "vertex": [Body(Instances)],
        "tokenize": [_QUESTION],
        "chat_tokenize": [_CHAT],
        "chat": [_CHAT],
        "completions": [_COMPLETIONS],
    }

    def claims(self, route: Route, request: Request) -> bool:
        """The OpenAI dialect has three of the paths too; the body tells."""
        if route.path == "/v1/chat/completions":
            return _is_tgis_chat(request.body)
        if route.path in ("/tokenize", "/invocations"):
            body = peek(request.body)
            return "inputs" in body or not ("messages" in body or "prompt" in body)
        return True

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        call = _PARSERS[operation](request, context)
        endpoint = request.params.get("endpoint")
        return call if endpoint is None else replace(call, model=endpoint)

    def render_error(self, error: SwitchyardError, operation: str, request: Request) -> Reply:
        if operation == "health":
            return _unwell(error)
        body = peek(request.body) if operation in _STREAMING else {}
        chat = operation in ("chat", "completions") or (operation == "invocations" and "inputs" not in body)
        stream = operation == "generate_stream" or body.get("stream") is True
        return error_reply(error, stream=stream, chat=chat)

    def answer(self, operation: str, request: Request, config: Config) -> Reply:
        if operation == "models":
            return Reply(dump(info.models(config, request.params.get("endpoint"))))
        return Reply(b"")  # alive: whether the default endpoint is well, `/tgi/health` says


def _unwell(error: SwitchyardError) -> Reply:
    """A health check's failure. Who is busy is well, and so is a server elsewhere that refuses the question."""
    if isinstance(error, Rejected) or (isinstance(error, Unavailable) and error.retry_after):
        return Reply(b"")
    if isinstance(error, UpstreamError):
        return Reply(dump({"error": "unhealthy", "error_type": "healthcheck"}), 503)
    return error_reply(error, stream=False)


_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')


def _is_tgis_chat(body: bytes) -> bool:
    """Whether a chat at OpenAI's own path is for TGI: no model, or none that exists, or a grammar of TGI's.

    Most bodies name a model and hold no grammar: that is seen without reading them. In a string the quotes of
    ``"model"`` would be escaped.
    """
    names = _MODEL.findall(body)
    if names and not {b"tgi", b"dummy"} & set(names) and b'"value"' not in body:
        return False
    told = peek(body)
    wanted = told.get("response_format")
    return bool(told) and (told.get("model") in NO_MODEL or (isinstance(wanted, dict) and "value" in wanted))


def _profile(context: ParseContext) -> Profile:
    return PROFILES[context.config.tgi.profile]


def _generate(request: Request, context: ParseContext, *, stream: bool | None = None) -> Call:
    """`stream` None: the body says."""
    body = json_object(request.body)
    inputs, parameters = read(body)
    streams = body.get("stream", False) if stream is None else stream
    agent = request.headers.get("user-agent", "")
    how = request_style(body, agent, _profile(context), stream=streams, at_root=stream is None)
    generation, question = Generation.of(inputs, parameters, how, context.random)
    plan = Plan(partial(answer, generation), lambda served: TgiTokenEvents(generation, served.known_model))
    return Call(
        "completions",
        "/v1/completions",
        question,
        deployment=_adapter(generation.parameters.adapter_id, request, context),
        stream=streams,
        note=plan,
        needs_model=True,
        fit=generation.fit,
    )


def _variants(request: Request, context: ParseContext) -> Sequence[str]:
    """The deployments of the endpoint that is asked."""
    name = request.params.get("endpoint") or context.config.defaults.get("completions")
    endpoint = context.config.endpoints.get(name or "")
    return list(endpoint.traffic) if endpoint else []


def _adapter(name: str | None, request: Request, context: ParseContext) -> str | None:
    """An adapter is a deployment of the endpoint: vLLM serves each under a model name of its own.

    Raises Unprocessable where there is none of that name.
    """
    if name is None or name in _variants(request, context):
        return name
    raise Unprocessable(f"`adapter_id` {name} is not available", param="parameters.adapter_id", value=name)


def _invocations(request: Request, context: ParseContext) -> Call:
    """SageMaker's one route for all three kinds of question."""
    body = peek(request.body)
    if "inputs" not in body and "messages" in body:
        return _chat(request, context)
    if "inputs" not in body and "prompt" in body:
        return _completions(request, context)
    return _generate(request, context)


def _chat(request: Request, context: ParseContext) -> Call:
    body = json_object(request.body)
    question, hide_usage = openai_form.chat(body)
    plan = Plan(
        lambda told, served: completed(told),
        lambda served: ChatEvents(hide_usage=hide_usage),
    )
    call = Call("chat", "/v1/chat/completions", question, note=plan)
    if engine_extensions(question):
        call = replace(call, needs_model=True, fit=openai_form.possible)
    return _named(call, body, request, context)


def _completions(request: Request, context: ParseContext) -> Call:
    body = json_object(request.body)
    question, hide_usage = openai_form.completions(body)
    plan = Plan(
        lambda told, served: completed(told),
        lambda served: PassthroughStream(COMPLETIONS, hide_usage=hide_usage),
    )
    fit = partial(openai_form.limited, profile=_profile(context))
    call = Call("completions", "/v1/completions", question, note=plan, needs_model=True, fit=fit)
    return _named(call, body, request, context)


def _named(call: Call, body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """The call, to the model that its body names where that means something.

    TGI serves one model and looks at no name but an adapter's. Only at the root, where OpenAI's clients call too, is a
    name that is unknown an error.
    """
    name, at_root = body.get("model"), not request.path.startswith("/tgi")
    return replace(
        call,
        stream=call.body.get("stream", False),
        model=name if at_root and name not in NO_MODEL else None,
        deployment=name if not at_root and name in _variants(request, context) else None,
    )


def _vertex(request: Request, context: ParseContext) -> Call:
    batch = Batch.of(json_object(request.body), _profile(context), context.random)
    return Call(
        batch.task,
        None,
        {"input": batch.questions},
        note=Plan(batch.predictions),
        needs_model=True,
        fit=batch.fit,
        fan_out=batch.lookup,
    )


def _tokenize(request: Request, context: ParseContext) -> Call:
    inputs, parameters = read(json_object(request.body))
    check_inputs(inputs)
    truncate = parameters.truncate if parameters else None
    return Call(
        "completions",
        None,
        {"prompt": inputs},
        note=Plan(lambda told, served: Reply(dump(from_json(told)["tokens"]))),
        needs_model=True,
        fit=lambda body, served: {"tokens": info.tokens(inputs, truncate, served)},
    )


def _chat_tokenize(request: Request, context: ParseContext) -> Call:
    body = json_object(request.body)
    plan = Plan(tokens_of_the_template)
    question = openai_form.tokenized(body)
    call = Call("chat", "/v1/chat/completions/render", question, note=plan, needs_model=True)
    return replace(_named(call, body, request, context), stream=False)


def _info(request: Request, context: ParseContext) -> Call:
    return Call("completions", None, {}, note=Plan(info.about), needs_model=True)


def _health(request: Request, context: ParseContext) -> Call:
    return Call("completions", "/ping", {}, note=Plan(lambda told, served: Reply(b"")))


_PARSERS: Mapping[str, Callable[[Request, ParseContext], Call]] = {
    "root": _generate,
    "generate": partial(_generate, stream=False),
    "generate_stream": partial(_generate, stream=True),
    "invocations": _invocations,
    "vertex": _vertex,
    "tokenize": _tokenize,
    "chat_tokenize": _chat_tokenize,
    "chat": _chat,
    "completions": _completions,
    "info": _info,
    "health": _health,
}
