"""Friendli's paths for serverless and dedicated endpoints, and how requests there name a model and a user.

Beside Friendli's own requests there are OpenAI's Responses and Anthropic's Messages, which those dialects serve.
"""

from dataclasses import replace
from typing import TypeVar

from app.dialects import legacy
from app.dialects.base import Call, Request

AZURE_MOUNTS = ("", "/azure", "/models", "/endpoints/{endpoint}")
"""Where Azure's clients call; newer ones are the OpenAI SDK, so both dialects have these paths."""

MOUNTS = ("/serverless/v1", "/dedicated/v1")


def is_below(request: Request) -> bool:
    """Whether a request is at one of these paths."""
    return request.path.startswith(tuple(f"{mount}/" for mount in MOUNTS))


_Call = TypeVar("_Call", Call, legacy.Call)


def addressed(call: _Call, request: Request) -> _Call:
    """The call, to whom Friendli's clients mean: an adapter, `endpoint:adapter`, is a deployment of the endpoint.

    Without a user the team is one.
    """
    call = replace(call, user=call.user or request.headers.get("x-friendli-team"))
    if call.model is None or ":" not in call.model:
        return call
    endpoint, _, adapter = call.model.partition(":")
    return replace(call, model=endpoint, deployment=adapter)
