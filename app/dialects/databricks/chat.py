"""The parts that the answers of all Databricks tasks share.

- Databricks' chat task.
- Databricks' embedding task.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import from_json

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    Reply,
    ServingContext,
    Stream,
    Translation,
    immutable,
    no_lookups,
)
from app.dialects.bodies import dump, dump_members, items, members
from app.dialects.common.requests import DirectTranslation, ask_for_usage, check_copies, greedy, settle_functions
from app.dialects.common.streams import LastChoiceUsageStream
from app.dialects.databricks.errors import error_frames
from app.dialects.databricks.fields import Chat, Embeddings, checked, without_records


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The origin of a request, as far as it shapes the answer.

    `native` is `/invocations`: there `databricks-sdk` reads the end of a choice from `finishReason`, and a choice's
    index is its prompt's. The clients of the other paths are OpenAI's SDK.
    """

    native: bool
    request_id: str


def json_reply(answer: Mapping[str, Any], serving: ServingContext) -> Reply:
    """A whole answer."""
    return Reply(dump(answer), headers=_served_model(serving))


def reply_of_members(answer: Mapping[str, Any], serving: ServingContext) -> Reply:
    """A whole answer, of which parts are as the engine wrote them."""
    return Reply(dump_members(answer), headers=_served_model(serving))


def with_served_model(stream: Stream, serving: ServingContext) -> Stream:
    """The stream with the header that every answer has."""
    stream.headers = _served_model(serving)
    return stream


def _served_model(serving: ServingContext) -> Mapping[str, str]:
    return {"served-model-name": serving.deployment}


def with_finish_reason(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice with its `finish_reason` under the only name that `databricks-sdk` reads, too."""
    return {**choice, "finishReason": choice["finish_reason"]}


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """vLLM's usage with the reasoning tokens where Databricks has them. Models that do not reason report none."""
    details = usage.get("completion_tokens_details")
    return {**usage, "reasoning_tokens": details["reasoning_tokens"]} if details else usage


@immutable
class DatabricksChatTranslation(DirectTranslation):
    """Chat. `usage_apart`: the client asked for the usage in a separate chunk.

    Without `max_tokens` vLLM generates up to the end of the context. `reasoning_effort` goes to the chat template; one
    without reasoning ignores it.
    """

    context: RequestContext
    usage_apart: bool
    stream: bool = False

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        request = checked(Chat, body)
        sent = without_records(body)
        sent["messages"] = [message.sent() for message in request.messages]
        sent["tools"] = [tool.sent() for tool in request.tools or ()]
        if request.response_format is not None and request.response_format.json_schema is not None:
            schema = sent["response_format"]["json_schema"]
            sent["response_format"] = {
                **sent["response_format"],
                "json_schema": {"name": request.response_format.json_schema.name, **schema},
            }
        settle_functions(sent)
        greedy(sent)
        usage_apart = ask_for_usage(sent)
        return Call("chat", sent, cls("/v1/chat/completions", sent, context, usage_apart, request.stream))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        completion: dict[str, Any] = members(answer)
        if self.context.native:
            completion["choices"] = [with_finish_reason(choice) for choice in items(completion["choices"])]
        completion["usage"] = counts(from_json(bytes(completion["usage"])))
        return reply_of_members(completion, serving)

    def open_stream(self, serving: ServingContext) -> Stream:
        failure = partial(error_frames, request_id=self.context.request_id)
        stream = LastChoiceUsageStream(self.path, failure, counts=counts, apart=self.usage_apart)
        return with_served_model(stream, serving)


_PLACEHOLDER = re.compile(r"\{(instruction|input)\}")


@immutable
class DatabricksEmbeddingsTranslation(Translation):
    """Embeddings. vLLM has no `instruction`: it goes into each text by the deployment's `instruction_template`."""

    body: Mapping[str, Any]

    @classmethod
    def parse(cls, body: dict[str, Any], context: RequestContext) -> Call:
        """Raises BadRequest."""
        request = checked(Embeddings, body)
        if request.instruction is not None and isinstance(request.input, list):
            check_copies("instruction", request.instruction, len(request.input) - 1)
        sent = without_records(body)
        return Call("embeddings", sent, cls(sent))

    def engine_requests(self, serving: ServingContext) -> Flow:
        body = dict(self.body)
        if (instruction := body.pop("instruction", None)) is not None:
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            template = serving.settings.instruction_template
            body["input"] = [_filled(template, instruction=instruction, input=text) for text in texts]
        return no_lookups(EngineRequest("/v1/embeddings", body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        response = from_json(answer)
        usage = {name: response["usage"][name] for name in ("prompt_tokens", "total_tokens")}
        return json_reply({**response, "usage": usage}, serving)


def _filled(template: str, **values: str) -> str:
    # In one pass: a value may itself contain a placeholder.
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
