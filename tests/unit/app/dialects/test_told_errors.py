"""What the list of requests says of an error is what its client has in the body: every dialect, every kind of error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.anthropic.dialect import error_body as anthropic_body
from app.dialects.base import Dialect, Request, Route
from app.dialects.databricks import errors as databricks
from app.dialects.friendli import chat as friendli
from app.dialects.openai.errors import CHUNKS, EVENTS
from app.dialects.registry import DIALECTS
from app.dialects.tgi import errors as tgi
from app.errors import (
    ContextExceeded,
    MethodNotAllowed,
    PreconditionFailed,
    Rejected,
    SwitchyardError,
    Unavailable,
    UnsupportedRoute,
    UpstreamError,
)
from app.exchange.response import said
from app.sse import datas, encode

WORDS = st.sampled_from(["temperature", "messages[0].role", "model", None])
CODES = st.sampled_from(
    [None, "content_filter", "parameter_not_supported", "invalid_input", "MissingApiVersionParameter", "thread", "x"]
)


def kinds(of: type[SwitchyardError]) -> Iterator[type[SwitchyardError]]:
    yield of
    for more in of.__subclasses__():
        if more.__module__ == SwitchyardError.__module__:
            yield from kinds(more)


@st.composite
def errors(draw: st.DrawFn) -> SwitchyardError:
    """Any error that a request can end with."""
    kind: Any = draw(st.sampled_from(sorted(set(kinds(SwitchyardError)), key=lambda one: one.__name__)))
    text, param, code = "It is refused", draw(WORDS), draw(CODES)
    if issubclass(kind, ContextExceeded):
        return ContextExceeded(4096, draw(st.sampled_from([None, 50, 5000])), 9, is_exact=True)
    if issubclass(kind, Rejected):
        return Rejected(text, status=draw(st.sampled_from([400, 404, 422])), param=param, code=code)
    if issubclass(kind, PreconditionFailed):
        return PreconditionFailed(text, current={})
    if issubclass(kind, MethodNotAllowed):
        return MethodNotAllowed(text, allowed=("GET",))
    if issubclass(kind, UnsupportedRoute):
        return UnsupportedRoute("files", "bodies")
    if issubclass(kind, Unavailable):
        return kind(text, retry_after=draw(st.sampled_from([None, 1.0])))  # type: ignore[no-any-return]
    return kind(text) if issubclass(kind, UpstreamError) else kind(text, param=param, code=code)  # type: ignore[no-any-return]


ROUTES = [(dialect, route) for dialect in DIALECTS for route in dialect.routes]
STREAMS = {
    "anthropic": lambda error: encode(json.dumps(anthropic_body(error, "id")), type="error"),
    "databricks": lambda error: databricks.error_frames(error, request_id="id"),
    "friendli": friendli.error_frames,
    "openai, chunks": CHUNKS.error_frames,
    "openai, events": EVENTS.error_frames,
    "tgi": tgi.error_event,
    "tgi, chat": tgi.chat_error_event,
}


def told(body: bytes) -> tuple[set[str], set[str]]:
    """The codes and the types in a body, or in a stream's events."""
    codes: set[str] = set()
    types: set[str] = set()
    for data in [body] if body.startswith(b"{") else datas(body):
        outer = json.loads(data)
        named = outer.get("error")
        inner: dict[str, Any] = named if isinstance(named, dict) else {}
        details: Any = inner.get("details")
        inside: dict[str, Any] = details if isinstance(details, dict) else {}
        codes |= {inner.get("code"), outer.get("code"), outer.get("error_code"), inside.get("error_code")} - {None}
        types |= {inner.get("type"), outer.get("error_type")} - {None}
    return codes, types


def check(error: SwitchyardError, body: bytes) -> None:
    codes, types = told(body)
    known = said(error, body)
    assert known.code in (codes or {""})
    assert known.type in (types or {""})


@pytest.mark.parametrize(
    ("dialect", "route"), [pytest.param(*one, id=f"{one[0].name} {one[1].path}") for one in ROUTES]
)
@given(errors(), st.booleans())
def test_the_code_and_type_on_the_list_are_the_clients(
    dialect: Dialect, route: Route, error: SwitchyardError, streamed: bool
) -> None:
    body = json.dumps({"messages": [], "inputs": "x", "stream": streamed}).encode()
    request = Request(route.method, route.path, body, params={"name": "chat", "endpoint": "chat"}, id="id")
    reply = dialect.render_error(error, route.operation, request)
    check(error, reply.body)
    if (code := reply.headers.get("x-ms-error-code")) is not None:
        assert said(error, reply.body).code == code


@pytest.mark.parametrize("stream", STREAMS)
@given(errors())
def test_the_code_and_type_on_the_list_are_those_of_a_streams_last_events(stream: str, error: SwitchyardError) -> None:
    check(error, STREAMS[stream](error))
