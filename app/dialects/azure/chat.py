"""Azure's chat completions: OpenAI's, with Azure's form of a message's parts and the usage where its clients look."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.azure.fields import Chat, checked
from app.dialects.base import Call, EngineRequest, Flow, ServingContext, Stream, Translation, no_lookups
from app.dialects.common.engine_request import ask_for_usage, greedy
from app.dialects.common.last_usage import LastChoiceUsageStream


@dataclass(frozen=True)
class ChatTranslation(Translation):
    """A chat request; `body` is vLLM's. Its answers are the client's already."""

    body: Mapping[str, Any]
    stream: bool

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/v1/chat/completions", self.body))

    def open_stream(self, serving: ServingContext) -> Stream:
        # LangChain's Azure class loses usage without a choice; the SDK silently skips an `error` object.
        return LastChoiceUsageStream()


def chat(body: dict[str, Any]) -> Call:
    """The call for a body without extra parameters to drop. Raises Unprocessable."""
    request = checked(Chat, body)
    sent = {name: value for name, value in body.items() if name not in ("modalities", "model")}
    sent["messages"] = [message.openai() for message in request.messages]
    if not request.tools:
        sent.pop("tools", None)
        sent.pop("tool_choice", None)
    greedy(sent)
    ask_for_usage(sent)
    return Call("chat", sent, ChatTranslation(sent, request.stream))
