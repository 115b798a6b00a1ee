"""Each operation's request and answer: from the client's body to the engine request, and back.

`parse` gets a body without the extra parameters that the client wants rejected or dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.azure.fields import Chat, Completions, Embeddings, checked
from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Stream, Translation, immutable
from app.dialects.bodies import dump
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
from app.errors import CONTEXT_EXCEEDED, BadRequest


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


PARSERS: Mapping[str, Callable[[dict[str, Any]], Call]] = {
    "chat": AzureChatTranslation.parse,
    "completions": AzureCompletionsTranslation.parse,
    "embeddings": AzureEmbeddingsTranslation.parse,
}


def _without(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
