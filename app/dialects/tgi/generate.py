"""`POST /`, `/generate`, `/generate_stream` and `/invocations`: one generation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from pydantic_core import from_json

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
from app.dialects.spelling import request_object
from app.dialects.tgi.addressing import adapter_deployment
from app.dialects.tgi.answer import generated_text, generation_reply
from app.dialects.tgi.deployment_checks import check_capabilities, check_top_k, inputs_too_long, truncated
from app.dialects.tgi.fields import GenerateRequest, read
from app.dialects.tgi.generation import Generation
from app.dialects.tgi.profile import RequestStyle, profile_of, request_style
from app.dialects.tgi.stream import TgiTokenEvents
from app.engine.usage import PromptTokens
from app.errors import Unprocessable
from app.routing.traffic import Random


@dataclass(frozen=True, slots=True)
class Generate(Translation):
    """A generation. `body` is vLLM's request with text for a prompt, before a deployment is chosen."""

    generation: Generation
    body: Mapping[str, Any]
    stream: bool
    needs_model = True
    field_names: ClassVar[Mapping[str, str]] = {"structured_outputs": "parameters.grammar"}
    """The client's names of vLLM's fields, for errors."""

    @classmethod
    def parse(cls, request: Request, context: ParseContext, *, stream: bool | None = None) -> Call:
        """`stream` None: the request came to `POST /` or its synonym, and the field in its body decides whether to
        stream.
        """
        body = request_object(request.body)
        fields = read(body)
        style = request_style(
            body,
            request.headers.get("user-agent", ""),
            profile_of(context.config),
            stream=fields.stream if stream is None else stream,
            at_root=stream is None,
        )
        translation = cls.of(fields, style, context.random)
        adapter = translation.generation.parameters.adapter_id
        deployment = adapter_deployment(adapter, request, context)
        return Call("completions", translation.body, translation, deployment=deployment, field_names=cls.field_names)

    @classmethod
    def of(cls, fields: GenerateRequest, style: RequestStyle, random: Random) -> Self:
        """Raises Unprocessable."""
        generation = Generation.of(fields, style, random)
        return cls(generation, generation.engine_body(), style.stream)

    def engine_requests(self, serving: ServingContext) -> Flow:
        check_capabilities(self.body, serving, "parameters.")
        if self.generation.top_k_below_vocabulary:
            check_top_k(self.generation.parameters.top_k, serving.known_model)
        truncate = self.generation.parameters.truncate
        prompts = [{"prompt": self.generation.inputs}]
        tokens = yield from tokenize(prompts, serving, "inputs", whole=truncate is not None)
        ids = list(truncated(tokens.ids[0], truncate, tokens.context))
        max_tokens = self._max_tokens(replace(tokens, ids=[ids]))
        return EngineRequest("/v1/completions", {**self.body, "prompt": ids, "max_tokens": max_tokens})

    def _max_tokens(self, tokens: PromptTokens) -> int:
        """The client's `max_new_tokens`, or the profile's default if that fits. Raises Unprocessable."""
        requested = self.generation.parameters.max_new_tokens
        if requested is not None and requested > tokens.room:
            raise Unprocessable(
                f"`inputs` tokens + `max_new_tokens` must be <= {tokens.context}. "
                f"Given: {tokens.counted} `inputs` tokens and {requested} `max_new_tokens`",
                param="parameters.max_new_tokens",
                value=requested,
            )
        if tokens.room < 1:
            raise inputs_too_long(tokens, "inputs")
        limit = self.generation.max_new_tokens
        return tokens.room if limit is None else min(limit, tokens.room)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return generation_reply(self.generation, from_json(answer), serving)

    def text(self, answer: Mapping[str, Any], serving: ServingContext) -> str:
        """The generated text alone, as `/vertex` returns it."""
        return generated_text(self.generation, answer, serving.known_model)

    def open_stream(self, serving: ServingContext) -> Stream:
        return TgiTokenEvents(self.generation, serving.known_model)
