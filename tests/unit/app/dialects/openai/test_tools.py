"""Tools that the client runs reach the engine; those of OpenAI's servers are left out by name, or refused."""

import json
from itertools import product
from typing import Any, get_args

import pytest
from openai.types.responses import ResponseIncludable

from app.config.schema import parse as configured
from app.dialects.base import Call, ParseContext, Request
from app.dialects.openai.dialect import OpenAI
from app.errors import BadRequest
from tests.support.clients.samples import CONTEXT

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER = {**FUNCTION, "name": "g"}
NAMESPACE = {"type": "namespace", "name": "agents", "tools": [FUNCTION]}
SERVERS = [
    {"type": "web_search", "external_web_access": True},
    {"type": "mcp", "server_label": "s"},
    {"type": "file_search"},
    {"type": "code_interpreter"},
    {"type": "image_generation"},
    {"type": "custom", "name": "apply_patch"},
]
TRAFFIC = {"tasks": ["responses"], "traffic": {"blue": 100}}
REFUSING = ParseContext(
    configured(
        {
            "endpoints": {"chat": {**TRAFFIC, "unsupported_tools": "refuse"}},
            "deployments": {"blue": {"url": "http://blue", "model": "m"}},
        }
    ),
    CONTEXT.random,
)


def parse(context: ParseContext = CONTEXT, model: str = "chat", /, **fields: Any) -> Call:
    body = {"model": model, "input": "hi", **fields}
    return OpenAI().parse("responses", Request("POST", "/v1/responses", json.dumps(body).encode()), context)


def chat(**fields: Any) -> Call:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}
    return OpenAI().parse("chat", Request("POST", "/v1/chat/completions", json.dumps(body).encode()), CONTEXT)


@pytest.mark.parametrize("operation", ["responses", "input_tokens"])
@pytest.mark.parametrize("other", SERVERS)
def test_an_endpoint_that_refuses_them_refuses_and_counts_no_servers_tool(operation: str, other: Any) -> None:
    request = Request("POST", "/", json.dumps({"model": "chat", "input": "hi", "tools": [FUNCTION, other]}).encode())
    OpenAI().parse(operation, request, CONTEXT)
    with pytest.raises(BadRequest) as raised:
        OpenAI().parse(operation, request, REFUSING)
    assert raised.value.param == "tools[1]"


@pytest.mark.parametrize(("own", "other"), [*product([FUNCTION, NAMESPACE], SERVERS)])
def test_beside_functions_a_servers_tool_is_left_out(own: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse(tools=[other, own]).body["tools"] == [own]
    assert parse(tools=[own, other], tool_choice="required").body["tools"] == [own]


@pytest.mark.parametrize("model", ["chat", "blue"])
@pytest.mark.parametrize("other", SERVERS)
def test_an_endpoint_may_refuse_it(other: dict[str, Any], model: str) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse(REFUSING, model, tools=[FUNCTION, other])
    assert (raised.value.param, raised.value.code) == ("tools[1]", "unsupported_tool")


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "required"}])
@pytest.mark.parametrize("other", SERVERS)
def test_a_request_that_relies_on_it_is_refused(other: dict[str, Any], choice: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse(tools=[other], **choice)
    assert raised.value.param == "tools[0]"


@pytest.mark.parametrize("other", SERVERS)
def test_a_choice_of_it_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse(tools=[FUNCTION, other], tool_choice={"type": other["type"]})
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_allowed_tools_are_those_that_the_engine_gets(mode: str) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    body = parse(tools=[FUNCTION, OTHER], tool_choice=choice).body
    assert (body["tools"], body["tool_choice"]) == ([OTHER], mode)
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    allowed = {"mode": mode, "tools": tools[1:]}
    body = chat(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).body
    assert (body["tools"], body["tool_choice"]) == (tools[1:], mode)


def test_the_allowed_tools_have_the_form_of_responses_in_chats_too_and_of_chats_in_responses() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    nested = {"mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    for choice in ({"type": "allowed_tools", "allowed_tools": nested}, {"type": "allowed_tools", **nested}):
        assert chat(tools=tools, tool_choice=choice).body["tools"] == tools[1:]
        assert parse(tools=[FUNCTION, OTHER], tool_choice=choice).body["tools"] == [OTHER]


@pytest.mark.parametrize("other", SERVERS)
def test_an_allowed_tool_that_was_left_out_is_left_out_there_too_or_said_to_be_unsupported(other: Any) -> None:
    def choice(*tools: Any) -> dict[str, Any]:
        return {"type": "allowed_tools", "mode": "required", "tools": list(tools)}

    given = {"tools": [FUNCTION, OTHER, other]}
    body = parse(**given, tool_choice=choice(other, OTHER)).body
    assert (body["tools"], body["tool_choice"]) == ([OTHER], "required")
    with pytest.raises(BadRequest, match=f"'{other['type']}' is not supported") as raised:
        parse(**given, tool_choice=choice(other))
    assert raised.value.param == "tool_choice.tools[0]"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"mode": "none", "tools": [FUNCTION]}, "tool_choice.mode"),
        ({"mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"mode": "auto", "tools": [FUNCTION, {"name": "h"}]}, "tool_choice.tools[1]"),
    ],
)
def test_allowed_tools_that_allow_nothing_are_refused(choice: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(tools=[FUNCTION, OTHER], tool_choice={"type": "allowed_tools", **choice})
    assert raised.value.param == param


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_an_empty_list_of_tools_is_none(choice: dict[str, Any]) -> None:
    assert chat(tools=[], **choice).body == chat().body


def test_an_agents_request_is_accepted() -> None:
    """The fields and shapes of Codex's request after a tool has run."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [
        {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Help."}]},
        {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "Run it."}]},
    ]
    result = {"type": "function_call_output", "call_id": "c", "output": "a"}
    sent = {
        "stream": True,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
    }
    thoughts = {"type": "reasoning", "summary": [], "encrypted_content": "opaque"}
    body = parse(
        **sent,
        input=[*items, thoughts, call, result],
        tools=[FUNCTION, NAMESPACE, SERVERS[-1], SERVERS[0]],
        client_metadata={"session_id": "s"},
    ).body
    assert body == {"model": "chat", **sent, "input": [*items, call, result], "tools": [FUNCTION, NAMESPACE]}


def test_readable_reasoning_is_kept() -> None:
    thoughts = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert parse(input=[{**thoughts, "encrypted_content": "opaque"}]).body["input"] == [thoughts]


@pytest.mark.parametrize("fields", [{"modalities": ["text"]}, {"verbosity": "low"}, {"tools": []}])
def test_what_changes_nothing_does_not_reach_the_engine(fields: dict[str, Any]) -> None:
    assert chat(**fields).body == chat().body


@pytest.mark.parametrize(("kind", "meant"), [("functon", "function"), ("web_serch", "web_search"), ("xyzzy", "")])
@pytest.mark.parametrize("request_with", [parse, chat])
def test_a_type_that_nobody_has_is_refused_beside_functions_too(request_with: Any, kind: str, meant: str) -> None:
    function = FUNCTION if request_with is parse else {"type": "function", "function": {"name": "f"}}
    with pytest.raises(BadRequest, match=f"tools of type '{kind}'") as raised:
        request_with(tools=[function, {**function, "type": kind}])
    assert raised.value.param == "tools[1].type"
    assert meant in raised.value.message


@pytest.mark.parametrize("request_with", [parse, chat])
def test_a_tool_needs_a_type(request_with: Any) -> None:
    with pytest.raises(BadRequest, match=r"tools\[0\].type: Field required"):
        request_with(tools=[{"name": "f", "function": {"name": "f"}}])


def test_openais_values_of_include_are_accepted_and_others_are_not() -> None:
    values = get_args(ResponseIncludable)
    sent = parse(include=list(values)).body["include"]
    assert set(values) - set(sent) == {"web_search_call.action.sources", "web_search_call.results"}
    with pytest.raises(BadRequest) as raised:
        parse(include=["message.output_text.logprob"])
    assert raised.value.param == "include[0]"
