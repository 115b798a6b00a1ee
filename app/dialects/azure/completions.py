"""Azure's text completions: without `max_tokens` the answer may take the rest of the context; vLLM's default is 16."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.azure.fields import Completions, checked
from app.dialects.base import Call, EngineRequest, Flow, ServingContext, Stream, Translation
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream
from app.dialects.common.tokenize import tokenize
from app.engine.context import PromptTokens
from app.errors import Unprocessable


@dataclass(frozen=True)
class CompletionTranslation(Translation):
    """A completion request; `body` is vLLM's. Its answers are the client's already."""

    body: Mapping[str, Any]
    stream: bool

    def engine_requests(self, serving: ServingContext) -> Flow:
        body = self.body
        if "max_tokens" not in body:
            tokens = yield from tokenize([{"prompt": body["prompt"]}], serving)
            body = {**body, "max_tokens": _room(tokens, body["prompt"])}
        return EngineRequest("/v1/completions", body)

    def open_stream(self, serving: ServingContext) -> Stream:
        return LastChoiceUsageStream()  # as for chat


def completions(body: dict[str, Any]) -> Call:
    """The call for a body without extra parameters to drop. Raises Unprocessable."""
    request = checked(Completions, body)
    sent = {name: value for name, value in body.items() if name != "model"}
    sent["prompt"] = request.prompt if isinstance(request.prompt, str) else request.prompt[0]
    greedy(sent)
    ask_for_usage(sent)
    return Call("completions", sent, CompletionTranslation(sent, request.stream))


def _room(tokens: PromptTokens, prompt: str) -> int:
    if tokens.room < 1:
        raise Unprocessable(
            f"prompt: has {tokens.longest} tokens, this model takes at most {tokens.context - 1}",
            param="prompt",
            value=prompt,
        )
    return tokens.room
