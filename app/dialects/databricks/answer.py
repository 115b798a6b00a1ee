"""The parts that the answers of all Databricks tasks share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.dialects.base import Reply, ServingContext, Stream
from app.dialects.json_body import dump, dump_members


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
