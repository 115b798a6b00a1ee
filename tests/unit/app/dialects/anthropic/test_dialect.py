"""Anthropic's dialect: checks, errors, and the engine's requests.

Messages, whole and in streams, in Anthropic's form.
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.anthropic.dialect import Anthropic, MessageStream, error_body, stream_format, whole_message
from app.dialects.base import Call, Request
from app.errors import BadRequest, ClientError, NotFound, Unavailable
from tests.support.clients.dialect_calls import engine_request
from tests.support.clients.samples import CONTEXT, SERVED

LEAST: dict[str, Any] = {"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}

COUNTED = {"model": LEAST["model"], "messages": LEAST["messages"]}

TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
FORMAT: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object"}}


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


@pytest.mark.parametrize("nested", [False, True])
def test_an_image_in_a_file_of_the_vendors_is_refused(nested: bool) -> None:
    block: dict[str, Any] = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    if nested:
        block = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    with pytest.raises(BadRequest, match="stores no files") as raised:
        parse(messages=[{"role": "user", "content": [block]}])
    assert raised.value.param == "messages[0].content[0]" + (".content[0]" if nested else "") + ".source"
    for source in ({"type": "url", "url": "u"}, {"type": "base64", "media_type": "image/png", "data": ""}):
        parse(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])


@pytest.mark.parametrize("operation", ["messages", "count_tokens"])
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (5, ""),
        ([5], "[0]"),
        ([{"text": "a"}], "[0].type"),
        ([{"type": 5}], "[0].type"),
        ([{"type": ["text"]}], "[0].type"),
        ([{"type": "text"}], "[0].text"),
        ([{"type": "text", "text": None}], "[0].text"),
        ([{"type": "text", "text": 7}], "[0].text"),
        ([{"type": "image"}], "[0].source"),
        ([{"type": "image", "source": "u"}], "[0].source"),
        ([{"type": "image", "source": {"type": "base64"}}], "[0].source.data"),
        ([{"type": "image", "source": {"type": "url", "url": 5}}], "[0].source.url"),
        ([{"type": "tool_result"}], "[0].tool_use_id"),
        ([{"type": "tool_result", "tool_use_id": "t", "content": 5}], "[0].content"),
        ([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}], "[0].content[0].text"),
        ([{"type": "tool_use", "name": "f", "input": {}}], "[0].id"),
        ([{"type": "tool_use", "id": "t", "name": "f", "input": []}], "[0].input"),
        ([{"type": "thinking", "signature": "s"}], "[0].thinking"),
    ],
)
def test_a_wrong_block_is_named_by_its_place(operation: str, content: Any, place: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(operation, messages=[{"role": "user", "content": content}])
    assert raised.value.param == f"messages[0].content{place}"
    assert raised.value.message.startswith(f"messages[0].content{place}: ")


@pytest.mark.parametrize(
    ("system", "place"), [([{"type": "text"}], "[0].text"), ([5], "[0]"), ([{"type": "text", "text": 7}], "[0].text")]
)
def test_so_is_one_of_the_system_prompt(system: list[Any], place: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(system=system)
    assert raised.value.param == f"system{place}"


def test_a_misspelt_field_is_named_before_the_one_that_is_then_missing() -> None:
    with pytest.raises(BadRequest) as raised:
        parse(messages=..., mesages=[])
    assert raised.value.message == "mesages: Extra inputs are not permitted; did you mean messages?"


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
@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"betas": ["context-management-2025-06-27"]},
    ],
)
def test_what_a_server_may_ignore_is_accepted_and_not_sent(operation: str, fields: dict[str, Any]) -> None:
    assert parse(operation, **fields).body == parse(operation).body


def test_a_thinking_budget_within_the_vendors_bounds_is_accepted_and_not_sent() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert parse(thinking=thinking, max_tokens=1025).body == parse(max_tokens=1025).body
    assert parse("count_tokens", thinking=thinking).body == parse("count_tokens").body


def test_the_former_field_of_an_outputs_format_is_the_present_one() -> None:
    body = parse(output_format=FORMAT, output_config={"effort": "low"}).body
    assert body == parse(output_config={"effort": "low", "format": FORMAT}).body
    assert parse("count_tokens", output_format=FORMAT).body == parse("count_tokens").body


def test_a_tools_result_may_be_empty() -> None:
    block = {"type": "tool_result", "tool_use_id": "t"}
    for content in ("", [], [{"type": "text", "text": ""}]):
        result = {**block, "content": content}
        assert parse(messages=[{"role": "user", "content": [result]}]).body["messages"][0]["content"] == [result]
    parse(messages=[{"role": "user", "content": [block]}])
    parse(messages=[{"role": "user", "content": [{**block, "content": None}]}])


def test_a_choice_of_no_tool_is_worded_as_the_vendor_does() -> None:
    with pytest.raises(BadRequest, match=r"tool_choice\.any may only be specified while providing tools"):
        parse(tool_choice={"type": "any"})
    with pytest.raises(BadRequest, match="not found in provided tools; did you mean weather"):
        parse(tools=[{**TOOL, "name": "weather"}], tool_choice={"type": "tool", "name": "wether"})


def test_an_agents_request_is_accepted() -> None:
    """The fields and shapes of Claude Code's first request after a tool has run."""
    cached = {"type": "ephemeral"}
    call = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "a", "cache_control": cached}
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    sent = {
        "system": [{"type": "text", "text": "You help."}, {"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Run it.", "cache_control": cached}]},
            {"role": "system", "content": "Agents: none."},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "Bash", "description": "Runs it.", "input_schema": schema, "cache_control": cached}],
        "metadata": {"user_id": '{"session_id":"s"}'},
        "max_tokens": 32000,
        "output_config": {"effort": "high"},
        "stream": True,
    }
    ignored = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    parsed = parse(**sent, **ignored)
    assert parsed.body == {"model": "chat", **sent}
    assert parsed.translation.stream


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
        ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.enabled.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}, "max_tokens": 5000}, "max_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1024}}, "thinking.disabled.budget_tokens"),
        ({"thinking": "disabled"}, "thinking"),
        ({"thinking": {}}, "thinking"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.adaptive.budget_tokens"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}, "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"output_format": "json"}, "output_format"),
        ({"output_format": FORMAT, "output_config": 5}, "output_config"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "output_format"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "text", "text": ""}]}, "system[0]"),
        ({"mcp_servers": [{"name": "m"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"compaction": {"type": "summary"}}, "compaction"),
        ({"speed": "fsat"}, "speed"),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}]}, "messages[1]"),
        ({"max_token": 5}, "max_token"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}, "tools[1]"),
        ({"tools": [{"type": "custm", "name": "f", "input_schema": {}}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "tool_choice"),
        ({"context_management": []}, "context_management"),  # as at Anthropic: an object, or null
        ({"messages": [{"role": "user", "content": "hi", "clear_at": "never"}]}, "messages[0].clear_at"),
        ({"messages": [{"role": "system", "content": "hi", "clear_at": "later"}]}, "messages[0].clear_at"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0]",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "banana"}}]}, "tools[0].input_schema.type"),
    ],
)
def test_an_invalid_field_is_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(param)) as raised:
        parse(**fields)
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize("choice", [{}, {"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "none"}}])
def test_no_tools_are_the_same_as_none(choice: dict[str, Any]) -> None:
    assert parse(tools=[], **choice).body.keys() == parse().body.keys()


def test_a_system_message_for_one_turn_is_gone_after_the_next() -> None:
    user, once = {"role": "user", "content": "hi"}, {"role": "system", "content": "x", "clear_at": "next_user_message"}
    always = {"role": "system", "content": "y", "clear_at": "never"}
    assert parse(messages=[user, once, user, once, always]).body["messages"] == [user, user, once, always]


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


def test_hints_and_lists_that_ask_for_nothing_are_accepted_and_not_sent() -> None:
    hints: dict[str, Any] = {
        "billing_policy": "x",
        "diagnostics": {"previous_message_id": "msg_1"},
        "fallback_credit_token": "t",
        "fallbacks": "default",
        "mcp_servers": [],
        "speed": "fast",
        "user_profile_id": "u",
        "workspace_id": "w",
    }
    assert parse(**hints).body == parse().body


def test_tokens_of_a_message_of_the_model_can_be_counted() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}]
    assert parse("count_tokens", messages=messages).body["messages"] == messages


TEXT = {"type": "text", "text": '"type": "tool_use"'}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"stop_reason": "end_turn"}}
COUNTS = {"input_tokens": 9, "output_tokens": 1}
CASES = [
    ([CALL], "end_turn", "tool_use"),
    ([TEXT, CALL], "end_turn", "tool_use"),
    ([TEXT], "end_turn", "end_turn"),
    ([CALL], "max_tokens", "max_tokens"),
    ([CALL], "tool_use", "tool_use"),
]


def frame(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def events(frames: bytes) -> list[dict[str, Any]]:
    return [json.loads(frame.partition(b"\ndata: ")[2]) for frame in frames.split(b"\n\n") if frame]


def whole(content: list[dict[str, Any]], reason: str, usage: dict[str, Any], *, manages_context: bool) -> Any:
    message = {"content": content, "stop_reason": reason, "usage": usage}
    return json.loads(whole_message(json.dumps(message).encode(), manages_context=manages_context))


def streamed(
    content: list[dict[str, Any]], reason: str, usage: dict[str, Any], *, manages_context: bool, pings: bool = False
) -> Any:
    """The events of a stream, in one chunk and byte by byte."""
    start = {"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": usage}}
    blocks = [{"type": "content_block_start", "index": n, "content_block": block} for n, block in enumerate(content)]
    end = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}
    sent: list[dict[str, Any]] = [start, *blocks, end, {"type": "message_stop"}]
    data = b"".join(map(frame, sent))

    def through(chunks: list[bytes]) -> list[dict[str, Any]]:
        stream = MessageStream(stream_format("r"), with_tools=True, manages_context=manages_context, pings=pings)
        return events(b"".join([*map(stream.feed, chunks), stream.close()]))

    at_once = through([data])
    assert through([data[n : n + 1] for n in range(len(data))]) == at_once
    return at_once


@pytest.mark.parametrize(("content", "reason", "expected"), CASES)
def test_an_answer_that_calls_a_tool_stops_with_tool_use(
    content: list[dict[str, Any]], reason: str, expected: str
) -> None:
    message = whole(content, reason, COUNTS, manages_context=False)
    assert (message["content"], message["stop_reason"]) == (content, expected)
    *_, end, _ = streamed(content, reason, COUNTS, manages_context=False)
    assert end["delta"]["stop_reason"] == expected


@pytest.mark.parametrize(
    ("usage", "created", "read"),
    [
        (COUNTS, 0, 0),
        ({**COUNTS, "cache_creation_input_tokens": None, "cache_read_input_tokens": None}, 0, 0),
        ({**COUNTS, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 5}, 3, 5),
    ],
)
def test_every_usage_counts_what_was_cached(usage: dict[str, Any], created: int, read: int) -> None:
    expected = {**COUNTS, "cache_creation_input_tokens": created, "cache_read_input_tokens": read}
    assert whole([TEXT], "end_turn", usage, manages_context=False)["usage"] == expected
    events = streamed([TEXT], "end_turn", usage, manages_context=False)
    assert [event["usage"] for event in (events[0]["message"], events[-2])] == [expected, expected]


@pytest.mark.parametrize(("sent", "expected"), [({}, None), ({"stop_sequence": "a"}, "a")])
def test_every_message_has_a_stop_sequence_or_null(sent: dict[str, Any], expected: str | None) -> None:
    message = {"content": [TEXT], "stop_reason": "end_turn", "usage": COUNTS, **sent}
    assert json.loads(whole_message(json.dumps(message).encode(), manages_context=False))["stop_sequence"] == expected
    stream = MessageStream(stream_format("r"), with_tools=False, manages_context=False, pings=False)
    start = {"type": "message_start", "message": {"content": [], "usage": COUNTS}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn", **sent}, "usage": COUNTS}
    begun, ended = events(stream.feed(frame(start) + frame(end)))
    assert (begun["message"]["stop_reason"], begun["message"]["stop_sequence"]) == (None, None)
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": expected}


def test_a_stream_has_a_ping_after_its_start_if_the_client_knows_pings() -> None:
    kinds = [event["type"] for event in streamed([TEXT], "end_turn", COUNTS, manages_context=False, pings=True)]
    assert kinds == ["message_start", "ping", "content_block_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("asked", [True, False])
def test_an_answer_says_that_no_edit_of_the_context_was_applied_if_edits_were_asked_for(asked: bool) -> None:
    expected: dict[str, Any] | None = {"applied_edits": []} if asked else None
    assert whole([TEXT], "end_turn", COUNTS, manages_context=asked).get("context_management") == expected
    start, *_, end, _ = streamed([TEXT], "end_turn", COUNTS, manages_context=asked)
    assert end.get("context_management") == expected
    assert "context_management" not in start["message"]
