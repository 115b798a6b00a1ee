"""`/v1/completions`: prompts in OpenAI's form, with TGI's limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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
from app.dialects.common.passthrough import PassthroughStream
from app.dialects.common.tokenize import tokenize
from app.dialects.spelling import request_object
from app.dialects.tgi.addressing import named_model
from app.dialects.tgi.chat.answer import COMPLETIONS, completion_reply
from app.dialects.tgi.chat.fields import MAX_PROMPTS, Completions
from app.dialects.tgi.chat.request import engine_fields
from app.dialects.tgi.deployment_checks import check_capabilities, inputs_too_long
from app.dialects.tgi.profile import Profile, profile_of
from app.errors import Unprocessable


@dataclass(frozen=True, slots=True)
class Completion(Translation):
    """Completions; `body` is vLLM's request, `max_tokens` if the client set it. Else the profile does: vLLM's is 16."""

    body: Mapping[str, Any]
    profile: Profile
    hide_usage: bool
    stream: bool
    needs_model = True

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        body = request_object(request.body)
        translation = cls.of(body, profile_of(context.config))
        model, deployment = named_model(body.get("model"), request, context)
        return Call("completions", translation.body, translation, model, deployment)

    @classmethod
    def of(cls, body: Mapping[str, Any], profile: Profile) -> Self:
        """Raises Unprocessable."""
        fields, hide_usage = engine_fields(body, Completions)
        if fields.pop("suffix", None) is not None:
            raise Unprocessable(
                "Suffix is not supported and can be achieved by preprocessing the prompt.",
                param="suffix",
                code="suffix not supported",
            )
        if isinstance(fields["prompt"], list) and len(fields["prompt"]) > MAX_PROMPTS:
            raise Unprocessable(
                f"Number of prompts exceeds the maximum allowed batch size of {MAX_PROMPTS}",
                param="prompt",
                code="batch size exceeded",
            )
        return cls(fields, profile, hide_usage, fields.get("stream", False))

    def engine_requests(self, serving: ServingContext) -> Flow:
        check_capabilities(self.body, serving)
        if "max_tokens" in self.body:
            return EngineRequest("/v1/completions", self.body)
        prompt = self.body["prompt"]
        prompts = [prompt] if isinstance(prompt, str) else prompt
        tokens = yield from tokenize([{"prompt": text} for text in prompts], serving)
        if tokens.room < 1:
            raise inputs_too_long(tokens, "prompt")
        max_tokens = min(self.profile.max_new_tokens or tokens.room, tokens.room)
        return EngineRequest("/v1/completions", {**self.body, "max_tokens": max_tokens})

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return completion_reply(from_json(answer))

    def open_stream(self, serving: ServingContext) -> Stream:
        return PassthroughStream(COMPLETIONS, hide_usage=self.hide_usage)
