"""Anthropic's dialect: checks, errors, and the engine's requests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.anthropic.dialect import Anthropic
from app.dialects.anthropic.errors import error_body
from app.dialects.base import Call, Request
from app.errors import BadRequest, ClientError, NotFound, Unavailable
from tests.support.clients.dialect_calls import engine_request
from tests.support.clients.samples import CONTEXT, SERVED

LEAST: dict[str, Any] = {"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}

COUNTED = {"model": LEAST["model"], "messages": LEAST["messages"]}


def parse(operation: str = "messages", /, **fields: Any) -> Call:
    path = "/v1/messages" if operation == "messages" else "/v1/messages/count_tokens"
    least = LEAST if operation == "messages" else COUNTED
    body = {name: value for name, value in {**least, **fields}.items() if value is not ...}
    return Anthropic().parse(operation, Request("POST", path, json.dumps(body).encode()), CONTEXT)


def test_a_minimal_request_passes_unchanged() -> None:
    call = parse()
    assert (call.task, call.model, call.translation.stream, call.body) == ("chat", "chat", False, LEAST)
    request = engine_request(call, SERVED)
    assert (request.path, request.body) == ("/v1/messages", LEAST)


def test_counting_tokens_needs_no_max_tokens() -> None:
    call = parse("count_tokens")
    request = engine_request(call, SERVED)
    assert (request.path, request.body) == ("/v1/messages/count_tokens", COUNTED)
    assert not call.translation.stream


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 5}, {"stream": True}, {"temperature": 0}, {"metadata": {"user_id": "u"}}, {"service_tier": "auto"}],
)
def test_fields_for_an_answer_are_rejected_when_tokens_are_counted(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(BadRequest, match=f"{name}: Extra inputs are not permitted") as raised:
        parse("count_tokens", **fields)
    assert raised.value.param == name


def test_a_request_for_a_stream_is_one() -> None:
    assert parse(stream=True).translation.stream


@pytest.mark.parametrize("mount", ["/serverless", "/dedicated"])
@pytest.mark.parametrize(("path", "operation"), [("/v1/messages", "messages"), ("/v1/messages/count_tokens", "count")])
def test_friendlis_clients_have_their_own_paths(mount: str, path: str, operation: str) -> None:
    body = json.dumps({**(LEAST if operation == "messages" else COUNTED), "model": "chat:green"}).encode()
    (route,) = (route for route in Anthropic.routes if route.path == mount + path)
    request = Request("POST", mount + path, body, headers={"x-friendli-team": "t"})
    call = Anthropic().parse(route.operation, request, CONTEXT)
    assert engine_request(call, SERVED).path == path
    assert (call.model, call.deployment, call.user) == ("chat", "green", "t")


def test_the_user_of_the_metadata_is_the_sticky_key() -> None:
    assert parse(metadata={"user_id": "u"}).user == "u"


@pytest.mark.parametrize("operation", ["messages", "count_tokens"])
def test_disabled_thinking_is_the_same_as_absent(operation: str) -> None:
    assert parse(operation, thinking={"type": "disabled"}).body == parse(operation).body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ...}, "model"),
        ({"messages": ...}, "messages"),
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"stream": 1}, "stream"),
        ({"metadata": "u"}, "metadata"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1024}}, "thinking"),
        ({"thinking": "disabled"}, "thinking"),
        ({"mcp_servers": []}, "mcp_servers"),
    ],
)
def test_an_invalid_field_is_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match=param) as raised:
        parse(**fields)
    assert raised.value.param == param


@given(
    st.dictionaries(st.sampled_from([*LEAST, "stream", "metadata", "system"]), st.none() | st.integers() | st.text())
)
def test_any_incomplete_body_is_rejected_as_the_clients_error(body: dict[str, Any]) -> None:
    with pytest.raises(ClientError):
        Anthropic().parse("messages", Request("POST", "/v1/messages", json.dumps(body).encode()), CONTEXT)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("no"), "invalid_request_error"),
        (NotFound("no"), "not_found_error"),
        (Unavailable("no"), "overloaded_error"),
    ],
)
def test_errors_have_anthropics_form(error: Any, kind: str) -> None:
    assert error_body(error, "req_1") == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "req_1",
    }
