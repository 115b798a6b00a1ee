"""Friendli's API on vLLM: completions with every field of its reference, chat, tokens, embeddings.

Contract: Friendli's API reference and what its two SDKs send and expect: `friendli` (the present one), and
`friendli-client` before it. `friendli_speaker` tells their requests from OpenAI's and from one another.

The routes are below `/serverless/v1` and `/dedicated/v1`; its container's are below `/v1`, where OpenAI's are too.
`responses` and `messages` are there as well, in the dialects of OpenAI and Anthropic, whose requests they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from app.config.schema import Config
from app.dialects.base import ParseContext, Reply, Request, Route, ServingContext
from app.dialects.common.engine_request import engine_extensions
from app.dialects.common.plans import Plan, Planned
from app.dialects.friendli import chat as chats
from app.dialects.friendli import tokens as others
from app.dialects.friendli.answer import answer
from app.dialects.friendli.chat_fields import Chat
from app.dialects.friendli.chat_fields import read as chats_read
from app.dialects.friendli.detection import form, is_friendli_chat, is_friendli_completion
from app.dialects.friendli.embeddings import Embeddings, embedded
from app.dialects.friendli.embeddings import embeddings as others_embeddings
from app.dialects.friendli.errors import error_reply, timeout_reply
from app.dialects.friendli.fields import Completions, checked
from app.dialects.friendli.generation import Completion
from app.dialects.friendli.models import models
from app.dialects.friendli.prepare import fit, refuse_extras
from app.dialects.friendli.rules import read
from app.dialects.friendli.stream import ClassicEvents, ModernChunks
from app.dialects.json_body import dump, json_object, peek
from app.dialects.legacy import Call
from app.dialects.mounts import MOUNTS, addressed
from app.dialects.openapi_schemas import Body
from app.errors import DeadlinePassed, SwitchyardError

_CONTAINER = "/v1"


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


class Friendli(Planned):
    """The dialect below `/serverless/v1` and `/dedicated/v1`, and at `/v1` for those who speak it."""

    name: ClassVar[str] = "friendli"
    routes: ClassVar[Sequence[Route]] = tuple(route for mount in (*MOUNTS, _CONTAINER) for route in _routes(mount))
    bodies: ClassVar[Mapping[str, Sequence[Body]]] = {
        "completions": [Body(Completions)],
        "chat": [Body(Chat)],
        "render": [Body(others.Render)],
        "tokenize": [Body(others.Tokenize)],
        "detokenize": [Body(others.Detokenize)],
        "embeddings": [Body(Embeddings)],
    }

    def claims(self, route: Route, request: Request) -> bool:
        """OpenAI's dialect has two of the container's paths too, and TGI's one of them."""
        if route.path == f"{_CONTAINER}/completions":
            return is_friendli_completion(request)
        if route.path == f"{_CONTAINER}/chat/completions":
            return is_friendli_chat(request)
        return True

    def parse(self, operation: str, request: Request, context: ParseContext) -> Call:
        body = json_object(request.body)
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
        return Reply(dump(models(config)))


def _completions(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    wanted = form(request.headers)
    completion = Completion.of(read(body, wanted), context.random)
    events = ModernChunks if wanted == "modern" else ClassicEvents
    return Call(
        "completions",
        completion.path,
        completion.question(),
        stream=completion.fields.stream,
        timeout_s=completion.fields.timeout_s,
        note=Plan(
            lambda told, served: answer(completion, told, served),
            lambda served: events(completion, served.known_model),
        ),
        needs_model=True,
        fit=lambda question, served: fit(completion.fields, question, served),
    )


def _chat(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    fields = chats_read(body)
    question = chats.question(fields, body)
    one_by_one = chats.one_by_one(fields)
    return Call(
        "chat",
        chats.PATH if one_by_one is None else None,
        question,
        stream=fields.stream,
        timeout_s=fields.timeout_s,
        note=Plan(lambda told, served: chats.reply(fields, told), lambda served: chats.stream(fields)),
        needs_model=bool(engine_extensions(question)),
        fit=_checked_extras if engine_extensions(question) else None,
        fan_out=one_by_one,
    )


def _checked_extras(question: dict[str, Any], served: ServingContext) -> dict[str, Any]:
    refuse_extras(question, served)
    return question


def _render(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    checked(body, others.Render)
    question = {name: value for name, value in body.items() if name != "model" and value != []}
    return Call("chat", f"{chats.PATH}/render", question, note=Plan(others.rendered), needs_model=True)


def _tokenize(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    prompt = checked(body, others.Tokenize).prompt
    return _computed({"prompt": prompt}, lambda _, served: others.tokens(prompt, served))


def _detokenize(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    ids = checked(body, others.Detokenize).tokens
    return _computed({}, lambda _, served: others.text(ids, served))


def _computed(body: dict[str, Any], compute: Callable[[dict[str, Any], ServingContext], dict[str, Any]]) -> Call:
    """A call that the router answers itself, from what it knows of the model."""
    plan = Plan(lambda told, served: Reply(told))
    return Call("completions", None, body, note=plan, needs_model=True, fit=compute)


def _embeddings(body: dict[str, Any], request: Request, context: ParseContext) -> Call:
    plan = Plan(lambda told, served: embedded(told))
    return Call("embeddings", "/v1/embeddings", others_embeddings(body), note=plan)


_PARSERS: Mapping[str, Callable[[dict[str, Any], Request, ParseContext], Call]] = {
    "completions": _completions,
    "chat": _chat,
    "render": _render,
    "tokenize": _tokenize,
    "detokenize": _detokenize,
    "embeddings": _embeddings,
}
