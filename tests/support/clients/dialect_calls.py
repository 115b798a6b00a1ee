"""Drives a call's translation as the exchange does, without an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext


def lookups(call: Call, serving: ServingContext) -> Sequence[EngineRequest]:
    """The first batch of small requests; empty if the main request needs none."""
    flow = call.translation.engine_requests(serving)
    try:
        return _batch(flow, next(flow))
    except StopIteration:
        return ()


def _batch(flow: Flow, step: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
    """The next batch with requests; `step` is what the flow has yielded. Raises StopIteration."""
    while not step:
        step = flow.send(())
    return step


def outcome(call: Call, serving: ServingContext, *batches: Sequence[Any]) -> EngineRequest | Reply:
    """The main request, or the finished reply, when `batches` are the answers to the lookups."""
    flow = call.translation.engine_requests(serving)
    try:
        _batch(flow, next(flow))
        for answers in batches:
            _batch(flow, flow.send(answers))
    except StopIteration as end:
        result: EngineRequest | Reply = end.value
        return result
    raise AssertionError("the flow wants more answers")


def engine_request(call: Call, serving: ServingContext, *batches: Sequence[Any]) -> EngineRequest:
    """The main request."""
    result = outcome(call, serving, *batches)
    assert isinstance(result, EngineRequest)
    return result


def engine_body(call: Call, serving: ServingContext) -> Mapping[str, Any]:
    """The main request's body; if there is none, or it depends on answers, the call's."""
    if lookups(call, serving):
        return call.body
    result = outcome(call, serving)
    return result.body if isinstance(result, EngineRequest) else call.body
