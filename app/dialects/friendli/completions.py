"""Friendli's completions: every field of its reference, and both forms of its streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Stream,
    Translation,
)
from app.dialects.common.tokenize import tokenize
from app.dialects.friendli.answer import completion
from app.dialects.friendli.completion_request import CompletionRequest
from app.dialects.friendli.detection import Form, form
from app.dialects.friendli.prepare import (
    check_extensions,
    check_ids,
    check_replaced_embeddings,
    check_scores,
    lengths,
    with_bad_words,
)
from app.dialects.friendli.rules import read
from app.dialects.friendli.stream import ClassicEvents, ModernChunks
from app.engine.usage import PromptTokens


def parse_completion(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    client_form = form(request.headers)
    wanted = CompletionRequest.of(read(body, client_form), context.random)
    engine_body = wanted.engine_body()
    translation = CompletionTranslation(wanted, engine_body, client_form, stream=wanted.fields.stream)
    return Call("completions", engine_body, translation, timeout_s=wanted.fields.timeout_s)


@dataclass(frozen=True)
class CompletionTranslation(Translation):
    """POST …/v1/completions. `body` is the engine's, except for what depends on the model."""

    request: CompletionRequest
    body: dict[str, Any]
    form: Form
    stream: bool = False
    needs_model = True

    def engine_requests(self, serving: ServingContext) -> Flow:
        fields, model = self.request.fields, serving.known_model
        check_ids(fields, model)
        if fields.prompt is None:
            prompt = PromptTokens([fields.tokens], model.max_len)
        else:
            prompt = yield from tokenize([{"prompt": fields.prompt}], serving)
        body = {**self.body, "prompt": prompt.ids[0], **lengths(fields, prompt)}
        check_replaced_embeddings(fields, prompt, model)
        check_scores(fields, serving)
        body = yield from with_bad_words(body, fields, serving)
        check_extensions(body, serving, "bad_words" if fields.bad_words else "bad_word_tokens")
        return EngineRequest(self.request.path, body)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return completion(self.request, answer, serving.known_model)

    def open_stream(self, serving: ServingContext) -> Stream:
        events = ModernChunks if self.form == "modern" else ClassicEvents
        return events(self.request, serving.known_model)
