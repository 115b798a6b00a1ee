"""OpenAI's dialect: accepted requests, the engine's requests, and rejections."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, Request
from app.dialects.openai.dialect import OpenAI
from app.dialects.openai.errors import error_body
from app.errors import (
    AtCapacity,
    BadRequest,
    Broken,
    ClientError,
    NotFound,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from tests.support.clients.dialect_calls import engine_request
from tests.support.clients.samples import CONTEXT, REQUEST, SERVED

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "chat", "messages": MESSAGES}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
REQUIRED: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "completions": {"model": "chat", "prompt": "hi"},
    "embeddings": {"model": "embed", "input": "hi"},
    "responses": {"model": "chat", "input": "hi"},
}


def parse(operation: str, **fields: Any) -> Call:
    return parse_bytes(operation, json.dumps({**REQUIRED[operation], **fields}).encode())


def parse_bytes(operation: str, body: bytes) -> Call:
    return OpenAI().parse(operation, Request("POST", f"/v1/{operation}", body), CONTEXT)


@pytest.mark.parametrize(
    ("operation", "task", "path"),
    [
        ("chat", "chat", "/v1/chat/completions"),
        ("completions", "completions", "/v1/completions"),
        ("embeddings", "embeddings", "/v1/embeddings"),
        ("responses", "responses", "/v1/responses"),
    ],
)
def test_a_minimal_request_passes_unchanged(operation: str, task: str, path: str) -> None:
    call = parse(operation)
    request = engine_request(call, SERVED)
    assert (call.task, request.path, call.model) == (task, path, REQUIRED[operation]["model"])
    assert not call.translation.stream
    extra = {"store": False} if operation == "responses" else {}
    assert request.body == call.body == {**REQUIRED[operation], **extra}


VALID: list[tuple[str, str, Any]] = [
    *[("chat", "temperature", value) for value in (0, 0.5, 2)],
    *[("chat", "top_p", value) for value in (0.001, 1)],
    *[("chat", "n", value) for value in (1, 128)],
    *[("chat", "stop", value) for value in ("x", ["x", "y"], [])],
    *[("chat", "max_tokens", value) for value in (0, 1, 10**6)],
    ("chat", "max_completion_tokens", 1),
    *[("chat", "presence_penalty", value) for value in (-2, 0, 2)],
    *[("chat", "frequency_penalty", value) for value in (-2, 0, 2)],
    ("chat", "logit_bias", {"5": -100}),
    ("chat", "logprobs", True),
    *[("chat", "seed", value) for value in (0, 2**63 - 1, -(2**63))],
    ("chat", "tools", [TOOL]),
    ("chat", "parallel_tool_calls", False),
    ("chat", "response_format", {"type": "json_object"}),
    ("chat", "reasoning_effort", "low"),
    ("chat", "top_k", 3),
    ("chat", "min_p", 0.1),
    ("chat", "vllm_xargs", {"a": 1}),
    *[("completions", "prompt", value) for value in ("", "a", ["a", "b"], [1, 2], [[1], [2]])],
    ("completions", "echo", True),
    ("completions", "logprobs", 5),
    *[("embeddings", "input", value) for value in ("a", ["a", "b"], [1, 2], [[1], [2]])],
    ("embeddings", "encoding_format", "base64"),
    ("embeddings", "dimensions", 5),
    ("responses", "input", [{"role": "user", "content": "hi"}]),
    ("responses", "instructions", "be brief"),
    ("responses", "max_output_tokens", 5),
    ("responses", "text", {"format": {"type": "text"}}),
    ("responses", "metadata", {"a": "b"}),
    ("responses", "truncation", "auto"),
]


@pytest.mark.parametrize(("operation", "field", "value"), VALID)
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any) -> None:
    assert parse(operation, **{field: value}).body[field] == value


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": []}, "messages"),
    ("chat", {"messages": "hi"}, "messages"),
    ("chat", {"messages": [{"content": "hi"}]}, "messages[0].role"),
    ("chat", {"messages": [{"role": "boss", "content": "hi"}]}, "messages[0].role"),
    ("chat", {"messages": [*MESSAGES, 5]}, "messages[1]"),
    ("chat", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ("chat", {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}, "messages[0].content[0].type"),
    ("chat", {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ("chat", {"messages": [*MESSAGES, {"role": "tool", "content": "5"}]}, "messages[1].tool_call_id"),
    ("chat", {"model": 5}, "model"),
    ("chat", {"temperature": -0.1}, "temperature"),
    ("chat", {"temperature": 2.1}, "temperature"),
    ("chat", {"temperature": "0.5"}, "temperature"),
    ("chat", {"top_p": 1.1}, "top_p"),
    ("chat", {"n": 0}, "n"),
    ("chat", {"n": 129}, "n"),
    ("chat", {"n": True}, "n"),
    ("chat", {"stop": 5}, "stop"),
    ("chat", {"stream": "yes"}, "stream"),
    ("chat", {"stream_options": {"include_usage": True}}, "stream_options"),
    ("chat", {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ("chat", {"max_tokens": -1}, "max_tokens"),
    ("chat", {"max_tokens": 1.5}, "max_tokens"),
    ("chat", {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("chat", {"presence_penalty": 2.1}, "presence_penalty"),
    ("chat", {"frequency_penalty": -2.1}, "frequency_penalty"),
    ("chat", {"logit_bias": [1]}, "logit_bias"),
    ("chat", {"logprobs": 3}, "logprobs"),
    ("chat", {"top_logprobs": 3}, "top_logprobs"),
    ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("chat", {"seed": 2**63}, "seed"),
    ("chat", {"tools": [], "tool_choice": "required"}, "tool_choice"),
    ("chat", {"modalities": ["text", "audio"]}, "modalities[1]"),
    ("chat", {"verbosity": "loud"}, "verbosity"),
    ("chat", {"tool_choice": "auto"}, "tool_choice"),
    ("chat", {"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
    ("chat", {"response_format": "json"}, "response_format"),
    ("chat", {"functions": [{}]}, "functions[0].name"),
    ("chat", {"prompt_cache_key": 5}, "prompt_cache_key"),
    ("completions", {"functions": []}, "functions"),
    ("chat", {"audio": {}}, "audio"),
    ("chat", {"temprature": 1}, "temprature"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": 5}, "prompt"),
    ("completions", {"prompt": [1, "a"]}, "prompt"),
    ("completions", {"suffix": "tail"}, "suffix"),
    ("completions", {"best_of": 1, "n": 2}, "best_of"),
    ("completions", {"best_of": 2, "stream": True}, "best_of"),
    ("completions", {"logprobs": -1}, "logprobs"),
    ("embeddings", {"input": ""}, "input"),
    ("embeddings", {"input": []}, "input"),
    ("embeddings", {"input": 5}, "input"),
    ("embeddings", {"encoding_format": "int8"}, "encoding_format"),
    ("embeddings", {"dimensions": 0}, "dimensions"),
    ("responses", {"input": ""}, "input"),
    ("responses", {"input": 5}, "input"),
    ("responses", {"background": True}, "background"),
    ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ("responses", {"conversation": "c"}, "conversation"),
    ("responses", {"max_tool_calls": 3}, "max_tool_calls"),
    ("responses", {"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ("responses", {"max_output_tokens": 0}, "max_output_tokens"),
]


@pytest.mark.parametrize(("operation", "fields", "param"), INVALID)
def test_an_invalid_field_is_rejected_by_name(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(operation, **fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)
    assert param in raised.value.message


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_too_many_stop_strings_are_told_by_their_number(operation: str) -> None:
    parse(operation, stop=["a"] * 64)
    with pytest.raises(BadRequest, match="stop: List should have at most 64 items after validation, not 5000"):
        parse(operation, stop=["a"] * 5000)


def test_a_tools_result_may_be_empty() -> None:
    parse("chat", messages=[*MESSAGES, {"role": "tool", "tool_call_id": "c", "content": []}])


@pytest.mark.parametrize("operation", REQUIRED)
def test_a_missing_required_field_is_rejected_by_name(operation: str) -> None:
    (name,) = set(REQUIRED[operation]) - {"model"}
    with pytest.raises(BadRequest) as raised:
        parse_bytes(operation, b'{"model": "chat"}')
    assert raised.value.param == name


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_a_body_that_is_not_a_json_object_is_rejected(body: bytes) -> None:
    with pytest.raises(BadRequest, match="The body"):
        parse_bytes("chat", body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*CHAT, "prompt", "input", "stream", "stream_options", "n", "best_of", "tools", "stop", "user"])


@given(st.sampled_from(list(REQUIRED)), st.dictionaries(names, json_values, max_size=6) | json_values)
def test_any_json_is_accepted_or_rejected_as_the_clients_error(operation: str, value: Any) -> None:
    with suppress(ClientError):
        assert isinstance(parse_bytes(operation, json.dumps(value).encode()), Call)


@given(st.binary(max_size=64))
def test_any_other_bytes_are_rejected_as_the_clients_error(body: bytes) -> None:
    with pytest.raises(ClientError):
        parse_bytes("chat", body)


def test_null_means_absent_at_every_level() -> None:
    call = parse("chat", temperature=None, tools=None, messages=[{"role": "user", "content": "hi", "name": None}])
    assert call.body == CHAT


def test_null_inside_a_json_schema_is_data() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", None], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": schema}}
    assert parse("chat", tools=[tool]).body["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": schema}}
    ]


@pytest.mark.parametrize("field", ["metadata", "store", "service_tier", "user", "prompt_cache_key"])
def test_fields_for_the_callers_records_are_accepted_and_not_sent(field: str) -> None:
    value = {"a": "b"} if field == "metadata" else True if field == "store" else "x"
    assert parse("chat", **{field: value}).body == CHAT


def test_the_user_field_is_the_sticky_key() -> None:
    assert parse("chat", user="u1").user == "u1"
    assert parse("chat").user is None


def test_top_p_zero_is_greedy() -> None:
    assert parse("chat", top_p=0, temperature=1.5).body["temperature"] == 0


def test_several_greedy_choices_use_top_k_1() -> None:
    body = parse("chat", temperature=0, n=2).body
    assert (body["temperature"], body["top_k"], body["n"]) == (1.0, 1, 2)


def test_a_stream_always_asks_for_usage() -> None:
    body = parse("chat", stream=True).body
    assert body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in parse("chat").body


def output(*types: str) -> bytes:
    return json.dumps(
        {"id": "r", "status": "completed", "output": [{"type": kind, "id": n} for n, kind in enumerate(types)]}
    ).encode()


@pytest.mark.parametrize(("fields", "ids"), [({}, [0, 1, 2, 3]), ({"parallel_tool_calls": False}, [0, 1, 3])])
def test_a_response_has_one_call_if_parallel_calls_are_off(fields: dict[str, Any], ids: list[int]) -> None:
    call = parse("responses", **fields)
    answer = output("reasoning", "function_call", "function_call", "message")
    reply = call.translation.reply(answer, SERVED)
    assert [item["id"] for item in json.loads(reply.body)["output"]] == ids


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_a_response_repeats_the_choice_of_tools_and_its_text_has_a_format(choice: str | None) -> None:
    # vLLM says "none" where there are no tools.
    told = {"status": "completed", "output": [], "tool_choice": "none", "text": {"verbosity": "low", "format": None}}
    call = parse("responses", tool_choice=choice)
    reply = json.loads(call.translation.reply(json.dumps(told).encode(), SERVED).body)
    assert reply["tool_choice"] == (choice or "auto")
    assert reply["text"] == {"verbosity": "low", "format": {"type": "text"}}


@pytest.mark.parametrize("bad", [b"{", b"[]", b"{}", b'{"output":5}', b'{"output":[5]}', b'{"output":[{}]}'])
def test_a_malformed_response_is_the_deployments_failure(bad: bytes) -> None:
    translation = parse("responses", parallel_tool_calls=False, stream=True).translation
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        translation.reply(bad, SERVED)
    stream = translation.open_stream(SERVED)
    event = b'event: response.completed\ndata: {"type":"response.completed","response":' + bad + b"}\n\n"
    sent = stream.feed(event) + stream.close()
    assert sent.startswith(b"event: error\n")
    assert stream.close() == b""


def test_an_empty_suffix_is_not_sent() -> None:
    assert "suffix" not in parse("completions", suffix="").body


ERRORS: list[tuple[SwitchyardError, str, str | None, str | None]] = [
    (BadRequest("no", param="n"), "invalid_request_error", "n", None),
    (BadRequest("no", param="x", code="unknown_parameter"), "invalid_request_error", "x", "unknown_parameter"),
    (Unauthorized("no"), "invalid_request_error", None, "invalid_api_key"),
    (NotFound("no", param="model"), "invalid_request_error", "model", "model_not_found"),
    (Rejected("no", status=429), "rate_limit_error", None, "rate_limit_exceeded"),
    (Rejected("no", status=400, param="top_k"), "invalid_request_error", "top_k", None),
    (Unavailable("no"), "server_error", None, "service_unavailable"),
    (AtCapacity("no", retry_after=1), "server_error", None, "service_unavailable"),
    (TimedOut("no"), "server_error", None, "timeout"),
    (Broken("no"), "server_error", None, None),
]


@pytest.mark.parametrize(("error", "kind", "param", "code"), ERRORS)
def test_errors_have_the_form_that_the_sdk_reads(
    error: SwitchyardError, kind: str, param: str | None, code: str | None
) -> None:
    assert error_body(error) == {"error": {"message": "no", "type": kind, "param": param, "code": code}}
    assert OpenAI().render_error(error, "chat", REQUEST).status == error.status


@pytest.mark.parametrize("fields", [{"n": 128}, {"best_of": 20}])
def test_a_long_prompt_is_not_echoed_in_each_of_many_choices(fields: dict[str, Any]) -> None:
    prompt = "a" * 1024 * 1024
    parse("completions", prompt=prompt, **fields)
    parse("completions", prompt=prompt, echo=True, n=2)
    with pytest.raises(BadRequest, match="echo") as refused:
        parse("completions", prompt=prompt, echo=True, **fields)
    assert refused.value.param == "echo"


def test_a_long_message_is_not_echoed_in_each_of_many_choices() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "a" * 1024 * 1024}]
    parse("chat", messages=messages, n=128)
    with pytest.raises(BadRequest, match="echo"):
        parse("chat", messages=messages, n=128, echo=True)


@pytest.mark.parametrize(
    ("operation", "fields", "name", "meant"),
    [
        ("chat", {"model": "chat", "mesages": []}, "mesages", "; did you mean messages?"),
        ("tokenize", {"promt": "x"}, "promt", "; did you mean prompt?"),
        ("responses", {"model": "chat", "inpt": "x"}, "inpt", "; did you mean input?"),
        ("chat", {"messages": [], "xyz": 1}, "xyz", ""),
    ],
)
def test_a_misspelt_field_is_named_before_the_one_that_is_then_missing(
    operation: str, fields: dict[str, Any], name: str, meant: str
) -> None:
    with pytest.raises(BadRequest) as raised:
        OpenAI().parse(operation, Request("POST", "/", json.dumps(fields).encode()), CONTEXT)
    assert raised.value.message == f"Unrecognized request argument supplied: {name}{meant}"
    assert raised.value.param == name


@pytest.mark.parametrize("fields", [{"background": True}, {"context_management": [{"type": "compaction"}]}])
def test_a_field_of_responses_that_this_server_lacks_is_explained(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(BadRequest, match=f"^{name}: .*(not supported|not compacted)"):
        parse("responses", **fields)


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_misspelt_stream_option_is_refused(operation: str) -> None:
    known = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    assert parse(operation, stream=True, stream_options=known).body["stream_options"] == known
    with pytest.raises(BadRequest) as raised:
        parse(operation, stream=True, stream_options={"include_usgae": True})
    assert raised.value.param == "stream_options.include_usgae"


ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "{"}


def test_a_prefix_of_false_is_none() -> None:
    body = parse("chat", messages=[*MESSAGES, {**ASSISTANT, "prefix": False}]).body
    assert body["messages"] == [*MESSAGES, ASSISTANT]
    assert "continue_final_message" not in body


REFUSAL = {"type": "refusal", "refusal": "I cannot."}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ({}, "I cannot."),
        ({"content": ""}, "I cannot."),
        ({"content": "Well."}, [{"type": "text", "text": "Well."}, REFUSAL]),
        ({"content": [{"type": "text", "text": "Well."}]}, [{"type": "text", "text": "Well."}, REFUSAL]),
    ],
)
def test_the_models_refusal_is_a_part_of_its_message(content: dict[str, Any], sent: Any) -> None:
    message = {"role": "assistant", "refusal": "I cannot.", **content}
    assert parse("chat", messages=[message, *MESSAGES]).body["messages"][0] == {"role": "assistant", "content": sent}


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_schema_beside_the_type_json_object_is_enforced(operation: str) -> None:
    sent = parse(operation, response_format={"type": "json_object", "schema": SCHEMA}).body["response_format"]
    assert (sent["type"], sent["json_schema"]["schema"]) == ("json_schema", SCHEMA)
    assert parse(operation, response_format={"type": "json_object"}).body["response_format"] == {"type": "json_object"}


def test_so_it_is_in_responses() -> None:
    text = parse("responses", text={"verbosity": "low", "format": {"type": "json_object", "schema": SCHEMA}}).body[
        "text"
    ]
    assert text["format"] == {"type": "json_schema", "name": "schema", "schema": SCHEMA}
    assert text["verbosity"] == "low"


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "text", "schema": SCHEMA}, "response_format.schema"),
        ({"type": "json_schema", "schema": SCHEMA}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": SCHEMA}}, "response_format.json_schema"),
        ({}, "response_format.type"),
        ({"type": "json_schma"}, "response_format.type"),
        ({"type": ["text"]}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": 5}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": "b"}}, "response_format.json_schema.schema"),
    ],
)
def test_a_schema_that_would_be_ignored_is_refused(wanted: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse("chat", response_format=wanted)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schma"}, "text.format.type"),
        ({"type": "structural_tag", "format": {}}, "text.format.type"),
        ({"type": "json_schema", "schema": SCHEMA}, "text.format.name"),
        ({"type": "json_schema", "name": "a"}, "text.format.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "text.format.name"),
        ("text", "text.format"),
    ],
)
def test_a_wrong_format_of_a_response_is_refused_by_its_place(wanted: Any, param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse("responses", text={"format": wanted})
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("input_text", "use 'text'"),
        ("input_image", "use 'image_url'"),
        ("txet", "did you mean text?"),
    ],
)
def test_a_part_of_another_api_is_named_with_the_one_to_use(kind: str, hint: str) -> None:
    with pytest.raises(BadRequest, match=hint) as raised:
        parse("chat", messages=[{"role": "user", "content": [{"type": kind, "text": "hi"}]}])
    assert raised.value.param == "messages[0].content[0]"


def test_a_file_is_refused_without_a_list_of_parts() -> None:
    with pytest.raises(BadRequest, match="this server has no files; send the text") as raised:
        parse("chat", messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}])
    assert raised.value.param == "messages[0].content[0]"
    assert "video" not in raised.value.message


@pytest.mark.parametrize("operation", ["chat", "responses"])
def test_hints_for_the_cache_and_empty_lists_change_nothing_and_moderation_is_refused(operation: str) -> None:
    hints: dict[str, Any] = {"prompt_cache_options": {"mode": "explicit"}, "context_management": []}
    assert parse(operation, **hints).body == parse(operation).body
    with pytest.raises(BadRequest, match="content_filter") as raised:
        parse(operation, moderation={"model": "omni"})
    assert raised.value.param == "moderation"


def test_a_reference_to_a_stored_item_is_refused_with_what_to_set() -> None:
    with pytest.raises(BadRequest, match=r"store: false.*AI SDK") as raised:
        parse("responses", input=[{"type": "item_reference", "id": "msg_1"}, *MESSAGES])
    assert raised.value.param == "input[0]"


def test_coheres_name_of_a_text_to_tokenize_is_refused_with_vllms() -> None:
    with pytest.raises(BadRequest, match="text: send it as `prompt`"):
        parse_bytes("tokenize", b'{"model": "chat", "text": "hi"}')
