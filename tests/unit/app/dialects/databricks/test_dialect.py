"""Databricks' chat, completions and embeddings: each documented field at its bounds and beyond, tasks and errors."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import parse as parse_config
from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, ParseContext, Request, ServingContext
from app.dialects.databricks.dialect import Databricks
from app.errors import BadRequest, Broken, ClientError, NotFound, Rejected, SwitchyardError, TimedOut, WrongTask
from tests.support.clients.dialect_calls import engine_body
from tests.support.clients.samples import CONTEXT

CONFIG = parse_config(
    {
        "endpoints": {
            "chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"blue": 100}},
            "talk": {"tasks": ["chat"], "traffic": {"blue": 100}},
            "embed": {"tasks": ["rerank", "embeddings"], "traffic": {"mini": 100}},
            "rank": {"tasks": ["rerank"], "traffic": {"mini": 100}},
        },
        "deployments": {
            "blue": {"url": "http://blue", "model": "m"},
            "mini": {
                "url": "http://mini",
                "model": "e",
                "tasks": ["embeddings", "rerank"],
                "instruction_template": "Instruct: {instruction}\nQuery: {input}",
            },
        },
    }
)
MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES},
    "completions": {"prompt": "hi"},
    "embeddings": {"input": "hi"},
    "responses": {"input": "hi"},
}
BLUE, MINI = (ServingContext(name, CONFIG.deployments[name]) for name in ("blue", "mini"))


def parse(operation: str, **fields: Any) -> Call:
    return parse_bytes(operation, json.dumps({**REQUIRED[operation], **fields}).encode())


def parse_bytes(operation: str, body: bytes) -> Call:
    return Databricks().parse(
        operation, Request("POST", "/serving-endpoints/x", body), ParseContext(CONFIG, CONTEXT.random)
    )


def invoke(name: str, body: dict[str, Any], **params: str) -> Call:
    request = Request("POST", "/x", json.dumps(body).encode(), params={"name": name, **params}, id="r-1")
    return Databricks().parse("invocations", request, ParseContext(CONFIG, CONTEXT.random))


def function(properties: int = 1, **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(properties)}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, **fields}}


CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SYSTEM = {"role": "system", "content": "be brief"}

VALID: list[tuple[str, str, Any]] = [
    *[
        (operation, field, value)
        for operation in ("chat", "completions")
        for field, values in {
            "max_tokens": (1, 10**6),
            "temperature": (0, 1, 2),
            "top_p": (0.001, 1),
            "top_k": (1, 2**31 - 1),
            "stop": ("x", ["x", "y"], []),
            "n": (1, 5, 200),
            "frequency_penalty": (-2, 2),
            "presence_penalty": (-2, 2),
            "logit_bias": ({"5": 1.5},),
            "seed": (0, 2**63 - 1),
        }.items()
        for value in values
    ],
    *[
        ("chat", "messages", value)
        for value in (
            [SYSTEM, *MESSAGES],
            [*MESSAGES, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b", "name": "ada"}],
            [
                *MESSAGES,
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "content": "5", "tool_call_id": "c1"},
            ],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]}],
            [{"role": "assistant", "content": "a", "reasoning": "hm"}, *MESSAGES],
        )
    ],
    ("chat", "tools", [function()]),
    ("chat", "tools", [function(strict=True, description="d")]),
    ("chat", "tools", [function(15)]),
    ("chat", "tools", [function(name=f"f{i}") for i in range(32)]),
    ("chat", "response_format", {"type": "text"}),
    ("chat", "response_format", {"type": "json_object"}),
    *[("chat", "response_format", schema(**fields)) for fields in ({}, {"strict": True, "description": "d"})],
    *[("chat", "reasoning_effort", value) for value in ("low", "medium", "high")],
    ("chat", "max_completion_tokens", 1),
    ("chat", "parallel_tool_calls", False),
    *[("chat", "logprobs", value) for value in (True, False)],
    ("completions", "logprobs", 0),
    *[("completions", "prompt", value) for value in ("", "a", ["a", "b"])],
    *[("embeddings", "input", value) for value in ("a", ["a", "b"])],
    *[("embeddings", "encoding_format", value) for value in ("float", "base64")],
    ("embeddings", "dimensions", 8),
]


@pytest.mark.parametrize(("operation", "field", "value"), VALID)
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any) -> None:
    assert parse(operation, **{field: value}).body[field] == value


INVALID: list[tuple[str, dict[str, Any], str]] = [
    *[
        (operation, {field: value}, field)
        for operation in ("chat", "completions")
        for field, values in {
            "max_tokens": (0, -1, 1.5, "5"),
            "stream": ("yes", 1),
            "stream_options": ({"include_usage": True},),
            "temperature": (-0.1, 2.1, "1"),
            "top_p": (0, 1.1),
            "top_k": (0, -1, 2**31),
            "stop": ("", [""], 5, [5], ["x"] * 65),
            "n": (0, -1, True, 1025, 10**30),
            "frequency_penalty": (2.1,),
            "presence_penalty": (-2.1,),
            "logit_bias": ([1],),
            "seed": (2**63,),
            "user": (5,),
        }.items()
        for value in values
    ],
    *[
        ("chat", {"messages": value}, at)
        for value, at in (
            ([], "messages"),
            ("hi", "messages"),
            ([5], "messages[0]"),
            ([{"content": "x"}], "messages[0].role"),
            ([{"role": "developer", "content": "x"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0]"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": "song"}]}], "messages[0].content[0].type"),
            ([*MESSAGES, SYSTEM], "messages[1].role"),
            ([SYSTEM, SYSTEM, *MESSAGES], "messages[1].role"),
            ([{"role": "tool", "content": "5"}], "messages[0]"),
            ([{"role": "user", "content": "x", "tool_call_id": "c1"}], "messages[0]"),
            ([{"role": "user", "content": "x", "tool_calls": [CALLED]}], "messages[0]"),
            (
                [{"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": [1]}}]}],
                "messages[0].tool_calls[0].function.arguments",
            ),
            ([{"role": "assistant", "tool_calls": [{**CALLED, "type": "x"}]}], "messages[0].tool_calls[0].type"),
        )
    ],
    ("chat", {"tools": [function(name=f"f{i}") for i in range(33)]}, "tools"),
    ("chat", {"tools": [function(16)]}, "tools[0].function.parameters"),
    ("chat", {"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ("chat", {"tools": [function(name="a b")]}, "tools[0].function.name"),
    ("chat", {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    *[("chat", {"tool_choice": choice}, "tool_choice") for choice in ("auto", "required")],
    ("chat", {"tools": [function()], "tool_choice": "perhaps"}, "tool_choice"),
    (
        "chat",
        {"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    ("chat", {"response_format": {"type": "yaml"}}, "response_format.type"),
    ("chat", {"response_format": {"type": "json_schema"}}, "response_format"),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema"),
    ("chat", {"logprobs": 3}, "logprobs"),
    ("chat", {"top_logprobs": 3}, "top_logprobs"),
    ("chat", {"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("chat", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("chat", {"reasoning_effort": "max"}, "reasoning_effort"),
    ("chat", {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": 5}, "prompt"),
    ("completions", {"prompt": [1, 2]}, "prompt"),
    ("completions", {"error_behavior": "ignore"}, "error_behavior"),
    ("completions", {"suffix": 5}, "suffix"),
    ("completions", {"echo": "yes"}, "echo"),
    ("completions", {"use_raw_prompt": "no"}, "use_raw_prompt"),
    ("completions", {"echo": True, "logprobs": 1}, "logprobs"),
    ("completions", {"best_of": 1, "n": 2}, "best_of"),
    ("embeddings", {"input": []}, "input"),
    ("embeddings", {"input": 5}, "input"),
    ("embeddings", {"input": [1, 2]}, "input"),
    ("embeddings", {"instruction": 5}, "instruction"),
    ("embeddings", {"encoding_format": "int8"}, "encoding_format"),
    ("embeddings", {"dimensions": 0}, "dimensions"),
    *[
        (operation, {field: []}, field)
        for operation in ("chat", "completions", "embeddings")
        for field in ("dataframe_records", "dataframe_split", "inputs", "instances")
    ],
    *[
        (operation, {field: value}, field)
        for operation in REQUIRED
        for field, value in {"client_request_id": 5, "usage_context": {"a": 5}, "extra_params": {"a": 5}}.items()
    ],
]


@pytest.mark.parametrize(("operation", "fields", "param"), INVALID)
def test_an_invalid_field_is_rejected_by_name(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(operation, **fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)
    assert param in raised.value.message
    body = json.loads(Databricks().render_error(raised.value, operation, Request("POST", "/x")).body)
    assert body["error_code"] == "INVALID_PARAMETER_VALUE"


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    *[(operation, {name: 1}, name) for operation in REQUIRED for name in ("temprature", "Temperature")],
    ("chat", {"min_p": 0.1}, "min_p"),
    ("chat", {"prompt": "hi"}, "prompt"),
    ("chat", {"messages": [{**MESSAGES[0], "mood": "good"}]}, "messages[0].mood"),
    ("chat", {"tools": [function(colour="red")]}, "tools[0].function.colour"),
    ("completions", {"tools": []}, "tools"),
    ("embeddings", {"stream": True}, "stream"),
]


@pytest.mark.parametrize(("operation", "fields", "path"), UNKNOWN)
def test_an_unknown_field_is_rejected_with_databricks_text(operation: str, fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse(operation, **fields)
    assert raised.value.message == f'Bad request: json: unknown field "{path}"'
    body = json.loads(Databricks().render_error(raised.value, operation, Request("POST", "/x")).body)
    assert body["error_code"] == "BAD_REQUEST"


@pytest.mark.parametrize("operation", REQUIRED)
def test_a_missing_required_field_is_rejected_by_name(operation: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_bytes(operation, b"{}")
    assert raised.value.param == next(iter(REQUIRED[operation]))


@pytest.mark.parametrize("operation", REQUIRED)
def test_null_means_absent_and_answers_are_not_streamed_by_default(operation: str) -> None:
    nothing = parse(operation, user=None)
    assert (nothing.body, nothing.translation.stream) == (parse(operation).body, False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    "messages prompt input stream n best_of tools tool_choice stop text reasoning extra_params suffix model".split()
)


@given(
    st.sampled_from([*REQUIRED, "invocations"]),
    st.sampled_from(["chat", "embed", "blue"]),
    st.dictionaries(names, json_values, max_size=6) | json_values,
)
def test_any_json_is_accepted_or_rejected_as_the_clients_fault(operation: str, name: str, value: Any) -> None:
    params = {"name": name} if operation == "invocations" else {}
    request = Request("POST", "/x", json.dumps(value).encode(), params=params)
    with suppress(ClientError):
        assert isinstance(Databricks().parse(operation, request, ParseContext(CONFIG, CONTEXT.random)), Call)


@given(st.sampled_from(list(REQUIRED)), st.binary(max_size=64))
def test_any_bytes_are_rejected_as_the_clients_fault(operation: str, body: bytes) -> None:
    with pytest.raises(ClientError):
        parse_bytes(operation, body)


RECORDS = {
    "client_request_id": "x",
    "metadata": {"a": "b"},
    "prompt_cache_key": "x",
    "prompt_cache_retention": "24h",
    "safety_identifier": "x",
    "service_tier": "auto",
    "store": True,
    "usage_context": {"a": "b"},
    "user": "u",
}


@pytest.mark.parametrize("operation", ["chat", "completions", "embeddings"])
@pytest.mark.parametrize("field", RECORDS)
def test_fields_for_the_callers_records_are_accepted_and_not_sent(operation: str, field: str) -> None:
    call = parse(operation, **{field: RECORDS[field]})
    assert call.body == parse(operation).body
    assert call.user == {"user": "u", "safety_identifier": "x"}.get(field)


def test_extra_params_are_fields_as_json_or_strings() -> None:
    extra = {"top_k": "5", "reasoning_effort": "high", "stop": '["a"]', "top_p": "null"}
    body = parse("chat", extra_params=extra).body
    assert (body["top_k"], body["reasoning_effort"], body["stop"]) == (5, "high", ["a"])
    assert "top_p" not in body
    with pytest.raises(BadRequest, match="top_k"):
        parse("chat", extra_params={"top_k": "0"})
    with pytest.raises(BadRequest, match=r"extra_params\.n: "):
        parse("chat", n=1, extra_params={"n": "2"})
    with pytest.raises(BadRequest, match=r"extra_params\.extra_params: "):
        parse("chat", extra_params={"extra_params": "{}"})


def test_cache_control_and_stream_indices_are_not_sent() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{**CALLED, "index": 0, "cache_control": {}}]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "assistant", "content": "b", "tool_calls": []},
    ]
    body = parse("chat", messages=messages, tools=[{**function(), "cache_control": {}}]).body
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "assistant", "content": "b"},
    ]
    assert body["tools"] == [function()]


def test_an_assistants_message_may_have_text_and_calls_with_arguments_as_an_object() -> None:
    called = {**CALLED, "function": {"name": "f", "arguments": {"city": "Köln", "days": [1, 2]}}}
    body = parse(
        "chat", messages=[*MESSAGES, {"role": "assistant", "content": "Let me see.", "tool_calls": [called]}]
    ).body
    sent = {**CALLED, "function": {"name": "f", "arguments": '{"city":"Köln","days":[1,2]}'}}
    assert body["messages"][1] == {"role": "assistant", "content": "Let me see.", "tool_calls": [sent]}


def test_tool_choice_is_not_sent_without_tools() -> None:
    assert parse("chat", tools=[], tool_choice="none").body == REQUIRED["chat"]


def test_several_greedy_choices_are_rewritten_for_the_engine() -> None:
    body = parse("chat", temperature=0, n=2).body
    assert (body["temperature"], body["top_k"], body["n"]) == (1.0, 1, 2)


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_usage_is_requested_for_every_stream(operation: str) -> None:
    call = parse(operation, stream=True)
    assert call.translation.stream
    assert call.body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in parse(operation).body


TASKS: list[tuple[str, dict[str, Any], str]] = [
    ("chat", REQUIRED["chat"], "chat"),
    ("chat", REQUIRED["completions"], "completions"),
    ("chat", REQUIRED["responses"], "responses"),
    ("embed", REQUIRED["embeddings"], "embeddings"),
    ("blue", REQUIRED["chat"], "chat"),
    ("mini", REQUIRED["embeddings"], "embeddings"),
]


@pytest.mark.parametrize(("name", "body", "task"), TASKS)
def test_the_endpoints_task_decides_how_a_body_is_parsed(name: str, body: dict[str, Any], task: str) -> None:
    call = invoke(name, body)
    assert (call.task, call.model, call.deployment) == (task, name, None)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("talk", REQUIRED["completions"], r"expects `messages` \(llm/v1/chat\); `prompt` is another task's"),
    ("talk", REQUIRED["embeddings"], "expects `messages`"),
    ("embed", REQUIRED["chat"], r"expects `input` \(llm/v1/embeddings\); `messages` is another task's"),
    ("rank", {"query": "a", "documents": ["b"]}, "has no task of this API"),
    ("chat", {"temperature": 1}, "expects `messages` .* or `prompt` .* or `input` .*no field of its task"),
]


@pytest.mark.parametrize(("name", "body", "message"), WRONG)
def test_a_body_of_another_task_is_an_error_that_names_the_expected_fields(
    name: str, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(WrongTask, match=message):
        invoke(name, body)


def test_an_unknown_endpoint_is_not_found() -> None:
    with pytest.raises(NotFound) as raised:
        invoke("gone", REQUIRED["chat"])
    reply = Databricks().render_error(raised.value, "invocations", Request("POST", "/x", id="r-1"))
    body = json.loads(reply.body)
    assert (reply.status, body["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
    assert body["message"].startswith("The given endpoint does not exist, ")
    assert body["details"][0]["request_id"] == "r-1"


def test_a_deployment_is_chosen_by_the_path_or_by_the_model() -> None:
    assert invoke("chat", REQUIRED["chat"], deployment="blue").deployment == "blue"
    assert invoke("chat", {**REQUIRED["chat"], "model": "blue"}).deployment == "blue"
    assert invoke("chat", {**REQUIRED["chat"], "model": "chat"}).deployment is None
    assert parse("chat", model="blue").model == "blue"


ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}


def reply_to(call: Call, answer: dict[str, Any], serving: ServingContext = BLUE) -> dict[str, Any]:
    reply = call.translation.reply(json.dumps(answer).encode(), serving)
    assert reply.headers == {"served-model-name": serving.deployment}
    value: dict[str, Any] = json.loads(reply.body)
    return value


def test_databricks_own_sdk_gets_the_finish_reason_under_both_names() -> None:
    (choice,) = reply_to(invoke("chat", REQUIRED["chat"]), ANSWER)["choices"]
    assert (choice["finish_reason"], choice["finishReason"]) == ("length", "length")
    assert reply_to(parse("chat"), ANSWER) == ANSWER


def test_reasoning_tokens_are_reported_for_models_that_reason() -> None:
    usage = {**ANSWER["usage"], "completion_tokens_details": {"reasoning_tokens": 2}}  # type: ignore[dict-item]
    assert reply_to(parse("chat"), {**ANSWER, "usage": usage})["usage"]["reasoning_tokens"] == 2
    assert "reasoning_tokens" not in reply_to(parse("chat"), ANSWER)["usage"]


def test_the_usage_of_embeddings_has_no_completion_tokens() -> None:
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "prompt_tokens_details": None}
    answer = {"id": "e", "object": "list", "model": "e", "data": [], "usage": usage}
    assert reply_to(parse("embeddings"), answer, MINI) == {**answer, "usage": {"prompt_tokens": 3, "total_tokens": 3}}


@pytest.mark.parametrize(
    ("serving", "expected"), [(BLUE, "Find {input} a text"), (MINI, "Instruct: Find {input}\nQuery: a text")]
)
@pytest.mark.parametrize("several", [False, True])
def test_an_instruction_is_put_into_each_text_by_the_deployments_template(
    serving: ServingContext, expected: str, several: bool
) -> None:
    call = parse("embeddings", input=["a text"] * 2 if several else "a text", instruction="Find {input}")
    assert engine_body(call, serving) == {"input": [expected] * (2 if several else 1)}
    assert engine_body(parse("embeddings"), serving) == REQUIRED["embeddings"]


def test_an_instruction_that_would_be_copied_at_length_is_refused() -> None:
    with pytest.raises(BadRequest, match="instruction: 8999 more copies of 1002 bytes"):
        parse("embeddings", input=["a"] * 9000, instruction="i" * 1000)


@pytest.mark.parametrize("operation", REQUIRED)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"choices":[{}]}', b'{"usage":5}'])
def test_a_malformed_answer_is_an_error_that_the_exchange_expects(operation: str, body: bytes) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        parse(operation).translation.reply(body, BLUE)


ERRORS: list[tuple[SwitchyardError, int, str]] = [
    (BadRequest("no"), 400, "BAD_REQUEST"),
    (BadRequest("no", param="n"), 400, "INVALID_PARAMETER_VALUE"),
    (Rejected("no", status=422, param="n"), 400, "INVALID_PARAMETER_VALUE"),
    (TimedOut("no"), 504, "DEADLINE_EXCEEDED"),
    (Broken("no"), 500, "INTERNAL_ERROR"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS)
def test_errors_are_one_flat_object(error: SwitchyardError, status: int, code: str) -> None:
    reply = Databricks().render_error(error, "chat", Request("POST", "/x"))
    body = json.loads(reply.body)
    assert (reply.status, body["error_code"], body["message"]) == (status, code, "no")
    assert not {"error", "detail"} & set(body)


def test_the_message_names_the_field_that_the_engine_rejected() -> None:
    error = Rejected("The context length is 10 tokens.", status=400, param="messages")
    body = json.loads(Databricks().render_error(error, "invocations", Request("POST", "/x")).body)
    assert body["message"] == "messages: The context length is 10 tokens."
    assert body["error_code"] == "INVALID_PARAMETER_VALUE"


def test_a_schema_without_a_name_gets_the_one_that_vllm_requires() -> None:
    """`ChatDatabricks.with_structured_output(method="json_schema")` sends none."""
    form: dict[str, Any] = {"schema": {"type": "object"}, "strict": True}
    unnamed = {"type": "json_schema", "json_schema": form}
    sent = parse("chat", response_format=unnamed).body["response_format"]
    assert sent == {**unnamed, "json_schema": {**form, "name": "answer"}}
    assert parse("chat", response_format=schema()).body["response_format"] == schema()
