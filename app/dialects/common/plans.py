"""Dialects whose parsers decide, request by request, what is made of the answer: a `Plan` is the call's note."""

from collections.abc import Callable
from dataclasses import dataclass

from app.dialects.base import Reply, ServingContext, Stream
from app.dialects.legacy import Call


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of the deployment's answer, and of its stream where the call may be one."""

    render: Callable[[bytes, ServingContext], Reply]
    stream: Callable[[ServingContext], Stream] | None = None


class Planned:
    """A dialect's `render` and `stream`, for calls whose note is a Plan."""

    def render(self, call: Call, body: bytes, served: ServingContext) -> Reply:
        """The answer in the client's words."""
        plan: Plan = call.note
        return plan.render(body, served)

    def stream(self, call: Call, served: ServingContext) -> Stream:
        """The stream in the client's words."""
        plan: Plan = call.note
        assert plan.stream is not None, "the call said stream"
        return plan.stream(served)
