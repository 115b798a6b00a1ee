"""What all of Databricks' tasks have in common in how they are answered."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.dialects.base import Stream


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Where a request came from, as far as it shapes the answer.

    `native` is `/invocations`: there `databricks-sdk` reads why a choice ended as `finishReason`, and a choice's index
    is its prompt's. Elsewhere the OpenAI SDK listens.
    """

    native: bool
    request_id: str


class Answer(Protocol):
    """A call's note: what it remembers until its answer comes."""

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """vLLM's whole answer in Databricks' words. May fail as dict and list access do, where it is none."""

    def stream(self) -> Stream: ...


def with_finish_reason(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice with why it ended under the only name that `databricks-sdk` reads."""
    return {**choice, "finishReason": choice["finish_reason"]}


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """vLLM's usage with the reasoning tokens where Databricks has them. Models that do not reason report none."""
    details = usage.get("completion_tokens_details")
    return {**usage, "reasoning_tokens": details["reasoning_tokens"]} if details else usage
