"""`functions` and `function_call`: tools for the engine, the former form for the client.

Tools that the client runs reach the engine; those of OpenAI's servers are left out by name, or refused.

Every item that OpenAI's SDK knows reaches the engine as one that vLLM has, or is left out or refused by name.
"""

import json
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseIncludable

from app.config.schema import parse as configured
from app.dialects.base import Call, ParseContext, Request
from app.dialects.common.streams import PassthroughStream
from app.dialects.openai.dialect import OpenAI
from app.dialects.openai.errors import CHUNKS
from app.dialects.openai.translations import stream_frame, whole_answer
from app.errors import BadRequest
from app.exchange.request import check_constraints
from tests.support.clients.response_items import ITEMS, sample
from tests.support.clients.samples import CONTEXT

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "default": None}}
TOOL = {"type": "function", "function": FUNCTION}
CALLED = {"name": "f", "arguments": "{}"}


def parse(**fields: Any) -> Call:
    body = {"model": "chat", "messages": [USER], **fields}
    return OpenAI().parse("chat", Request("POST", "/v1/chat/completions", json.dumps(body).encode()), CONTEXT)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, {}),
        ("auto", {"tool_choice": "auto"}),
        ("none", {"tool_choice": "none"}),
        ({"name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
)
def test_the_engine_gets_tools_of_which_it_may_call_one(choice: Any, sent: dict[str, Any]) -> None:
    body = parse(functions=[FUNCTION], function_call=choice).body
    tools = {"tools": [TOOL], "parallel_tool_calls": False}
    assert body == {"model": "chat", "messages": [USER], **tools, **sent}


def test_the_engine_gets_a_conversations_calls_and_results_in_the_present_form() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": CALLED},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": "One.", "function_call": None},
        {"role": "assistant", "function_call": CALLED},
        {"role": "function", "name": "f", "content": "2"},
    ]
    for fields in ({}, {"functions": [FUNCTION]}):
        _, first, result, said, second, other = parse(messages=messages, **fields).body["messages"]
        for call, answer in ((first, result), (second, other)):
            (made,) = call["tool_calls"]
            assert (made["type"], made["function"]) == ("function", CALLED)
            assert (answer["role"], answer["name"], answer["tool_call_id"]) == ("tool", "f", made["id"])
            assert "function_call" not in call
        assert first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"]
        assert said == {"role": "assistant", "content": "One."}


def test_a_result_alone_is_a_tools_result() -> None:
    (message,) = parse(messages=[{"role": "function", "name": "f", "content": "1"}]).body["messages"]
    assert message["role"] == "tool"
    assert message["tool_call_id"]


def test_no_functions_are_none() -> None:
    assert parse(functions=[], function_call="none").body == parse().body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [FUNCTION], "tools": [TOOL]}, "functions"),
        ({"functions": [FUNCTION], "tool_choice": "auto"}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [FUNCTION], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [FUNCTION], "function_call": "required"}, "function_call"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call.arguments"),
        ({"messages": [{"role": "assistant", "function_call": CALLED, "tool_calls": []}]}, "messages[0]"),
    ],
)
def test_what_contradicts_itself_is_refused_under_the_clients_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(**fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)


def test_an_unsatisfiable_function_is_the_clients_field() -> None:
    parameters = {"$ref": "#"}
    with pytest.raises(BadRequest) as raised:
        check_constraints(parse(functions=[{"name": "f", "parameters": parameters}], function_call={"name": "f"}), 0)
    assert raised.value.param == "functions"


def completion(message: dict[str, Any], reason: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
    return json.dumps({"id": "c", "choices": [choice], "usage": {"total_tokens": 3}}).encode()


@given(st.lists(st.text(max_size=4), min_size=1, max_size=4), st.sampled_from(["tool_calls", "stop", "length"]))
def test_a_stream_and_a_whole_answer_have_the_same_call(parts: list[str], reason: str) -> None:
    made: list[dict[str, Any]] = [
        {"index": number, "id": f"c{number}", "type": "function", "function": {"name": f"f{number}", "arguments": ""}}
        for number in range(2)
    ]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    for call in made:
        deltas += [{"tool_calls": [call]}]
        deltas += [{"tool_calls": [{"index": call["index"], "function": {"arguments": part}}]} for part in parts]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    frames = [f"data: {json.dumps({'choices': [choice]})}\n\n".encode() for choice in choices]
    stream = PassthroughStream(CHUNKS, edit=stream_frame)
    sent = b"".join(map(stream.feed, [*frames, b"data: [DONE]\n\n"])).decode()
    chunks = [json.loads(event[6:]) for event in sent.split("\n\n") if event.startswith("data: {")]
    streamed = [choice for chunk in chunks for choice in chunk["choices"]]
    calls = [choice["delta"]["function_call"] for choice in streamed if "function_call" in choice["delta"]]

    whole = [{**call, "function": {**call["function"], "arguments": "".join(parts)}} for call in made]
    (choice,) = json.loads(whole_answer(completion({"tool_calls": whole}, reason)))["choices"]
    assert choice["message"]["function_call"] == {"name": "f0", "arguments": "".join(parts)}
    assert calls[0]["name"] == "f0"
    assert "".join(call["arguments"] for call in calls) == "".join(parts)
    assert choice["finish_reason"] == streamed[-1]["finish_reason"]
    assert choice["finish_reason"] == ("function_call" if reason == "tool_calls" else reason)
    assert "tool_calls" not in choice["message"]
    assert not any("tool_calls" in choice["delta"] for choice in streamed)


def test_text_passes() -> None:
    answer = completion({"content": "Hi.", "tool_calls": []}, "stop")
    assert json.loads(whole_answer(answer))["choices"][0]["message"] == {"role": "assistant", "content": "Hi."}


FUNCTION_TOOLS = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER = {**FUNCTION_TOOLS, "name": "g"}
NAMESPACE = {"type": "namespace", "name": "agents", "tools": [FUNCTION_TOOLS]}
SERVERS = [
    {"type": "web_search", "external_web_access": True},
    {"type": "mcp", "server_label": "s"},
    {"type": "file_search"},
    {"type": "code_interpreter"},
    {"type": "image_generation"},
    {"type": "custom", "name": "apply_patch"},
]
TRAFFIC = {"tasks": ["responses"], "traffic": {"blue": 100}}
REFUSING_TOOLS = ParseContext(
    configured(
        {
            "endpoints": {"chat": {**TRAFFIC, "unsupported_tools": "refuse"}},
            "deployments": {"blue": {"url": "http://blue", "model": "m"}},
        }
    ),
    CONTEXT.random,
)


def parse_tools(context: ParseContext = CONTEXT, model: str = "chat", /, **fields: Any) -> Call:
    body = {"model": model, "input": "hi", **fields}
    return OpenAI().parse("responses", Request("POST", "/v1/responses", json.dumps(body).encode()), context)


def chat(**fields: Any) -> Call:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], **fields}
    return OpenAI().parse("chat", Request("POST", "/v1/chat/completions", json.dumps(body).encode()), CONTEXT)


@pytest.mark.parametrize("operation", ["responses", "input_tokens"])
@pytest.mark.parametrize("other", SERVERS)
def test_an_endpoint_that_refuses_them_refuses_and_counts_no_servers_tool(operation: str, other: Any) -> None:
    request = Request(
        "POST", "/", json.dumps({"model": "chat", "input": "hi", "tools": [FUNCTION_TOOLS, other]}).encode()
    )
    OpenAI().parse(operation, request, CONTEXT)
    with pytest.raises(BadRequest) as raised:
        OpenAI().parse(operation, request, REFUSING_TOOLS)
    assert raised.value.param == "tools[1]"


@pytest.mark.parametrize(("own", "other"), [*product([FUNCTION_TOOLS, NAMESPACE], SERVERS)])
def test_beside_functions_a_servers_tool_is_left_out(own: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse_tools(tools=[other, own]).body["tools"] == [own]
    assert parse_tools(tools=[own, other], tool_choice="required").body["tools"] == [own]


@pytest.mark.parametrize("model", ["chat", "blue"])
@pytest.mark.parametrize("other", SERVERS)
def test_an_endpoint_may_refuse_it(other: dict[str, Any], model: str) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse_tools(REFUSING_TOOLS, model, tools=[FUNCTION_TOOLS, other])
    assert (raised.value.param, raised.value.code) == ("tools[1]", "unsupported_tool")


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "required"}])
@pytest.mark.parametrize("other", SERVERS)
def test_a_request_that_relies_on_it_is_refused(other: dict[str, Any], choice: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse_tools(tools=[other], **choice)
    assert raised.value.param == "tools[0]"


@pytest.mark.parametrize("other", SERVERS)
def test_a_choice_of_it_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=other["type"]) as raised:
        parse_tools(tools=[FUNCTION_TOOLS, other], tool_choice={"type": other["type"]})
    assert raised.value.param == "tool_choice"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_allowed_tools_are_those_that_the_engine_gets(mode: str) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    body = parse_tools(tools=[FUNCTION_TOOLS, OTHER], tool_choice=choice).body
    assert (body["tools"], body["tool_choice"]) == ([OTHER], mode)
    tools = [{"type": "function", "function": {**FUNCTION, "name": name}} for name in "fg"]
    allowed = {"mode": mode, "tools": tools[1:]}
    body = chat(tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).body
    assert (body["tools"], body["tool_choice"]) == (tools[1:], mode)


def test_the_allowed_tools_have_the_form_of_responses_in_chats_too_and_of_chats_in_responses() -> None:
    tools = [{"type": "function", "function": {**FUNCTION, "name": name}} for name in "fg"]
    nested = {"mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    for choice in ({"type": "allowed_tools", "allowed_tools": nested}, {"type": "allowed_tools", **nested}):
        assert chat(tools=tools, tool_choice=choice).body["tools"] == tools[1:]
        assert parse_tools(tools=[FUNCTION_TOOLS, OTHER], tool_choice=choice).body["tools"] == [OTHER]


@pytest.mark.parametrize("other", SERVERS)
def test_an_allowed_tool_that_was_left_out_is_left_out_there_too_or_said_to_be_unsupported(other: Any) -> None:
    def choice(*tools: Any) -> dict[str, Any]:
        return {"type": "allowed_tools", "mode": "required", "tools": list(tools)}

    given = {"tools": [FUNCTION_TOOLS, OTHER, other]}
    body = parse_tools(**given, tool_choice=choice(other, OTHER)).body
    assert (body["tools"], body["tool_choice"]) == ([OTHER], "required")
    with pytest.raises(BadRequest, match=f"'{other['type']}' is not supported") as raised:
        parse_tools(**given, tool_choice=choice(other))
    assert raised.value.param == "tool_choice.tools[0]"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"mode": "none", "tools": [FUNCTION_TOOLS]}, "tool_choice.mode"),
        ({"mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"mode": "auto", "tools": [FUNCTION_TOOLS, {"name": "h"}]}, "tool_choice.tools[1]"),
    ],
)
def test_allowed_tools_that_allow_nothing_are_refused(choice: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_tools(tools=[FUNCTION_TOOLS, OTHER], tool_choice={"type": "allowed_tools", **choice})
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
    body = parse_tools(
        **sent,
        input=[*items, thoughts, call, result],
        tools=[FUNCTION_TOOLS, NAMESPACE, SERVERS[-1], SERVERS[0]],
        client_metadata={"session_id": "s"},
    ).body
    assert body == {"model": "chat", **sent, "input": [*items, call, result], "tools": [FUNCTION_TOOLS, NAMESPACE]}


def test_readable_reasoning_is_kept() -> None:
    thoughts = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert parse_tools(input=[{**thoughts, "encrypted_content": "opaque"}]).body["input"] == [thoughts]


@pytest.mark.parametrize("fields", [{"modalities": ["text"]}, {"verbosity": "low"}, {"tools": []}])
def test_what_changes_nothing_does_not_reach_the_engine(fields: dict[str, Any]) -> None:
    assert chat(**fields).body == chat().body


@pytest.mark.parametrize(("kind", "meant"), [("functon", "function"), ("web_serch", "web_search"), ("xyzzy", "")])
@pytest.mark.parametrize("request_with", [parse_tools, chat])
def test_a_type_that_nobody_has_is_refused_beside_functions_too(request_with: Any, kind: str, meant: str) -> None:
    function = FUNCTION_TOOLS if request_with is parse_tools else {"type": "function", "function": {"name": "f"}}
    with pytest.raises(BadRequest, match=f"tools of type '{kind}'") as raised:
        request_with(tools=[function, {**function, "type": kind}])
    assert raised.value.param == "tools[1].type"
    assert meant in raised.value.message


@pytest.mark.parametrize(
    ("request_with", "choice", "param"),
    [
        (parse_tools, {"type": "function", "name": "tiems"}, "tool_choice"),
        (parse_tools, {"type": "function"}, "tool_choice.name"),
        (parse_tools, {"name": "times"}, "tool_choice.type"),
        (chat, {"type": "function", "function": {"name": "tiems"}}, "tool_choice"),
        (chat, {"type": "function", "function": {}}, "tool_choice.function.name"),
        (chat, {"type": "function", "name": "times"}, "tool_choice.function.name"),
        (chat, {"type": "tool", "name": "times"}, "tool_choice"),
    ],
)
def test_a_choice_of_no_tool_is_refused_with_the_one_that_was_meant(
    request_with: Any, choice: dict[str, Any], param: str
) -> None:
    function = {"name": "times"}
    tool = function if request_with is parse_tools else {"function": function}
    with pytest.raises(BadRequest) as raised:
        request_with(tools=[{"type": "function", **tool}], tool_choice=choice)
    assert raised.value.param == param
    assert ("did you mean times?" in raised.value.message) == ("tiems" in str(choice))


def test_a_function_in_a_namespace_can_be_chosen_and_takes_an_object() -> None:
    namespace = {**NAMESPACE, "tools": [{"type": "function", "name": "f"}]}
    for name in ("f", "agents__f"):
        body = parse_tools(tools=[namespace], tool_choice={"type": "function", "name": name}).body
        assert body["tools"][0]["tools"][0]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["n" * 257, ["n"], 5])
@pytest.mark.parametrize("choice", ["auto", {"type": "function", "name": "f"}])
def test_a_namespace_whose_name_would_be_repeated_at_length_is_refused(name: Any, choice: Any) -> None:
    namespace = {"type": "namespace", "name": name, "tools": [{"type": "function", "name": "f"}]}
    for tools in ([namespace], [{**NAMESPACE, "tools": [namespace]}]):
        with pytest.raises(BadRequest, match="at most 256 characters") as raised:
            parse_tools(tools=tools, tool_choice=choice)
        assert raised.value.param == "tools"


@pytest.mark.parametrize("request_with", [parse_tools, chat])
def test_a_tool_needs_a_type(request_with: Any) -> None:
    with pytest.raises(BadRequest, match=r"tools\[0\].type: Field required"):
        request_with(tools=[{"name": "f", "function": {"name": "f"}}])


def test_openais_values_of_include_are_accepted_and_others_are_not() -> None:
    values = get_args(ResponseIncludable)
    sent = parse_tools(include=list(values)).body["include"]
    assert set(values) - set(sent) == {"web_search_call.action.sources", "web_search_call.results"}
    with pytest.raises(BadRequest) as raised:
        parse_tools(include=["message.output_text.logprob"])
    assert raised.value.param == "include[0]"


FIRST = {"role": "user", "content": "hi"}
KNOWN = {"message", "function_call", "function_call_output", "reasoning"}


def parsed(*items: Any, operation: str = "responses", context: Any = CONTEXT) -> list[dict[str, Any]]:
    body = json.dumps({"model": "chat", "input": [FIRST, *items]}).encode()
    call = OpenAI().parse(operation, Request("POST", "/v1/responses", body), context)
    sent: list[dict[str, Any]] = call.body["input"][1:]
    return sent


@pytest.mark.parametrize("operation", ["responses", "input_tokens"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ITEMS)
def test_an_item_of_the_sdk_is_one_that_vllm_has_or_is_refused_by_name(name: str, whole: bool, operation: str) -> None:
    item = sample(ITEMS[name], whole=whole)
    sent: list[Any] = []
    refused = BadRequest(str(item.get("type", "")), param="input[1]")
    try:
        sent = parsed(item, operation=operation)
    except BadRequest as error:
        refused = error
    assert str(refused.param).startswith("input[1]")
    assert str(item.get("type", "")) in refused.message
    assert len(sent) <= 1
    assert {one.get("type", "message") for one in sent} <= KNOWN
    assert all("role" in one for one in sent if one.get("type", "message") == "message")


def test_calls_of_the_clients_own_tools_and_their_results_are_those_of_functions() -> None:
    shell = {"command": ["ls"], "env": {}, "type": "exec"}
    stdout = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    operation = {"type": "delete_file", "path": "a"}
    sent = parsed(
        {"type": "custom_tool_call", "id": "1", "call_id": "c", "name": "patch", "input": "x", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "local_shell_call", "id": "2", "call_id": "d", "action": shell, "status": "completed"},
        {"type": "local_shell_call_output", "id": "d", "output": "a"},
        {"type": "shell_call", "call_id": "e", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "e", "output": [stdout]},
        {"type": "apply_patch_call", "call_id": "f", "operation": operation, "status": "completed"},
        {"type": "apply_patch_call_output", "call_id": "f", "status": "completed"},
    )
    calls = [{**call, "arguments": json.loads(call["arguments"])} for call in sent[::2]]
    assert calls == [
        {"type": "function_call", "call_id": "c", "name": "patch", "arguments": {"input": "x"}},
        {"type": "function_call", "call_id": "d", "name": "local_shell", "arguments": {"action": shell}},
        {"type": "function_call", "call_id": "e", "name": "shell", "arguments": {"action": {"commands": ["ls"]}}},
        {"type": "function_call", "call_id": "f", "name": "apply_patch", "arguments": {"operation": operation}},
    ]
    assert {result["type"] for result in sent[1::2]} == {"function_call_output"}
    assert [result["call_id"] for result in sent[1::2]] == ["c", "d", "e", "f"]
    listing = json.dumps([stdout], separators=(",", ":"))
    assert [result["output"] for result in sent[1::2]] == ["done", "a", listing, "completed"]


@pytest.mark.parametrize("kind", ["web_search_call", "mcp_list_tools"])
def test_what_a_servers_tool_was_asked_is_left_out_as_its_definition_is(kind: str) -> None:
    assert parsed({"type": kind, "id": "1"}) == []
    with pytest.raises(BadRequest, match=kind):
        parsed({"type": kind, "id": "1"}, context=REFUSING_TOOLS)


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ("hi", ""),
        ({"type": 5}, ".type"),
        ({"id": "msg_1"}, ""),
        ({"type": "message", "content": "hi"}, ".role"),
        ({"role": ["user"], "content": "hi"}, ".role"),
        ({"role": "tool", "content": "hi"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, ".content[0]"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": "u"}]}, ".content[0]"),
        ({"role": "user", "content": ["hi"]}, ".content[0]"),
        ({"role": "user", "content": [{"text": "hi"}]}, ".content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "output_text", "text": "hi"}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "input_text", "text": 5}]}, ".content[0].text"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "x"}]}, ".content[0].detail"),
        ({"role": "user", "content": "hi", "id": 5}, ".id"),
        ({"role": "user", "content": "hi", "status": "done"}, ".status"),
        ({"role": "assistant", "content": [{"type": "output_txt", "text": "hi"}]}, ".content[0]"),
        ({"role": "assistant", "content": [{"type": "output_text"}]}, ".content[0].text"),
        ({"type": "reasoning", "summary": "hm"}, ".summary"),
        ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, ".summary[0].text"),
        ({"type": "reasoning", "content": [{"type": "summary_text", "text": "hm"}]}, ".content[0]"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, ".arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": 1}, ".status"),
        ({"type": "function_call_output", "call_id": "c"}, ".output"),
        ({"type": "function_call_output", "call_id": 5, "output": "5"}, ".call_id"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, ".input"),
        ({"type": "custom_tool_call", "call_id": "c", "input": "x"}, ".name"),
    ],
)
def test_an_item_that_is_none_is_refused_by_the_place_of_the_fault(item: Any, path: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parsed(item)
    assert raised.value.param == f"input[1]{path}"


def test_every_text_of_the_models_message_reaches_the_prompt() -> None:
    texts = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant"}
    known = {name: value for name, value in message.items() if name != "id"}
    assert parsed({**message, "content": texts}) == [{**known, "content": "ab"}]
    assert parsed({**message, "content": texts[1:]}) == [{**known, "content": "b"}]
    assert parsed({**message, "content": texts[:1]}) == [{**known, "content": "a"}]
    assert parsed({**message, "content": "a"}) == [{**known, "content": "a"}]
    assert parsed({"role": "assistant", "content": texts}) == [{"role": "assistant", "content": "ab"}]


@pytest.mark.parametrize("kind", ["text", "output_text"])
def test_a_part_of_the_wrong_type_is_refused_with_the_types_of_its_place(kind: str) -> None:
    with pytest.raises(BadRequest, match=f"'{kind}' are not supported here; use 'input_text' or 'input_image'"):
        parsed({"role": "user", "content": [{"type": kind, "text": "hi"}]})


def test_an_image_has_the_default_detail() -> None:
    image = {"type": "input_image", "image_url": "u"}
    settled = {**image, "detail": "auto"}
    low = {**image, "detail": "low"}
    assert parsed({"role": "user", "content": [image, low]}) == [{"role": "user", "content": [settled, low]}]
    output = {"type": "function_call_output", "call_id": "c", "output": [image]}
    assert parsed(output) == [{**output, "output": [settled]}]


def test_only_the_models_message_can_be_incomplete() -> None:
    message = {"content": "a", "status": "incomplete"}
    assert parsed({**message, "role": "assistant"}) == [{**message, "role": "assistant"}]
    assert parsed({**message, "role": "user"}) == [{"content": "a", "role": "user"}]


def test_an_input_without_anything_for_the_model_is_refused() -> None:
    body = json.dumps({"model": "chat", "input": [{"type": "reasoning", "summary": []}]}).encode()
    with pytest.raises(BadRequest) as raised:
        OpenAI().parse("responses", Request("POST", "/v1/responses", body), CONTEXT)
    assert raised.value.param == "input"
