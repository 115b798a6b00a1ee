"""TGI's routes in the formats of OpenAI, SageMaker and Vertex."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, EngineRequest, Reply, Request, ServingContext
from app.dialects.tgi.dialect import TGI
from app.engine.output import Usage
from app.errors import BadRequest, ClientError, Unprocessable
from app.sse import Decoder
from tests.support.clients.dialect_calls import engine_request, lookups, outcome
from tests.support.clients.samples import CONTEXT, EXTENDED, MODEL, SERVED
from tests.support.engine import engine_answers as completions

SERVING = ServingContext("blue", SERVED.settings, EXTENDED)
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
SCHEMA = {"properties": {"a": {"type": "integer"}}}


def parse(operation: str = "chat", *, path: str = "/tgi/v1/x", **fields: Any) -> Call:
    required: dict[str, Any] = {"prompt": "hello"} if operation == "completions" else {"messages": MESSAGES}
    body = json.dumps({**required, **fields}).encode()
    return TGI().parse(operation, Request("POST", path, body), CONTEXT)


def engine_body(operation: str = "chat", **fields: Any) -> Any:
    return engine_request(parse(operation, **fields), SERVING).body


def test_a_minimal_chat_reaches_the_engine_unchanged() -> None:
    call = parse()
    assert (call.task, call.model) == ("chat", None)
    assert engine_request(call, SERVING) == EngineRequest("/v1/chat/completions", {"messages": MESSAGES})


SENT: list[tuple[str, Any, dict[str, Any]]] = [
    *[
        (name, value, {name: value})
        for name, value in [
            ("frequency_penalty", -2),
            ("presence_penalty", 2),
            ("repetition_penalty", 1.3),
            ("logit_bias", {"5": 1.5}),
            ("max_tokens", 5),
            ("max_completion_tokens", 5),
            ("n", 2),
            ("seed", 2**63 - 1),
            ("stop", ["a"]),
            ("temperature", 0),
            ("top_p", 1.0),
            ("response_format", {"type": "json_object"}),
            ("tools", [TOOL]),
        ]
    ],
    ("seed", 2**64 - 2, {"seed": -2}),
    ("temperature", 3.0, {"temperature": 2.0, "vllm_xargs": {"temperature": 3.0}}),
    ("top_p", 0, {"top_p": 1.0, "temperature": 0.0}),
    (
        "response_format",
        {"type": "json", "value": SCHEMA},
        {"structured_outputs": {"json": {"type": "object", **SCHEMA}}},
    ),
    ("response_format", {"type": "regex", "value": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    ("guideline", "be brief", {"chat_template_kwargs": {"guideline": "be brief"}}),
]


@pytest.mark.parametrize(("field", "value", "sent"), SENT)
def test_a_field_reaches_the_engine(field: str, value: Any, sent: dict[str, Any]) -> None:
    assert engine_body(**{field: value}) == {"messages": MESSAGES, **sent}


def test_several_greedy_choices_are_sampled_with_top_k_1() -> None:
    assert engine_body(temperature=0, n=2) == {"messages": MESSAGES, "n": 2, "temperature": 1.0, "top_k": 1}


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"tools": []}, {}),
        ({"tools": None, "tool_choice": None}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [TOOL], "tool_choice": "required"}),
        (
            {"tools": [TOOL], "tool_choice": "f"},
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({"tool_prompt": "choose:"}, {}),
        ({"top_logprobs": 5}, {}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
        ({"unknown": 1, "model": "tgi"}, {}),
        ({"stream_options": {"include_usage": True}}, {}),
    ],
)
def test_fields_that_depend_on_others_are_kept_only_with_them(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    assert engine_body(**fields) == {"messages": MESSAGES, **sent}


@pytest.mark.parametrize(
    ("role", "content", "sent"),
    [
        ("user", "hi", "hi\n---\nchoose:"),
        ("assistant", None, "\n---\nchoose:"),
        (
            "user",
            [{"type": "text", "text": "hi"}],
            [{"type": "text", "text": "hi"}, {"type": "text", "text": "\n---\nchoose:"}],
        ),
    ],
)
def test_the_tool_prompt_comes_after_the_last_message(role: str, content: Any, sent: Any) -> None:
    messages = [*MESSAGES, {"role": role, "content": content}]
    body = engine_body(messages=messages, tools=[TOOL], tool_prompt="choose:")
    assert body["messages"] == [*MESSAGES, {"role": role, "content": sent}]


@pytest.mark.parametrize(
    ("operation", "fields", "param"),
    [
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": "hi"}, "messages"),
        ("chat", {"messages": [{"content": "hi"}]}, "messages[0].role"),
        ("chat", {"top_logprobs": 6, "logprobs": True}, "top_logprobs"),
        ("chat", {"logit_bias": [1.0]}, "logit_bias"),
        ("chat", {"temperature": -1}, "temperature"),
        ("chat", {"max_tokens": 0}, "max_tokens"),
        ("chat", {"seed": 2**64}, "seed"),
        ("chat", {"stream": "yes"}, "stream"),
        ("chat", {"tools": [{"type": "function"}]}, "tools[0].function"),
        ("chat", {"tools": [TOOL], "tool_choice": "g"}, "tool_choice"),
        ("chat", {"response_format": {"type": "json", "value": {}}}, "response_format"),
        ("chat", {"response_format": {"type": "bnf", "value": ""}}, "response_format"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ["a"] * 5}, "prompt"),
        ("completions", {"prompt": [1]}, "prompt"),
        ("completions", {"suffix": "x"}, "suffix"),
        ("completions", {"suffix": ""}, "suffix"),
        ("completions", {"prompt": "日" * 200}, "prompt"),
    ],
)
def test_an_invalid_field_is_rejected_by_name(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unprocessable) as raised:
        engine_body(operation, **fields)
    assert (raised.value.param or "").startswith(param)


def test_the_profile_sets_the_length_of_completions() -> None:
    assert engine_body("completions") == {"prompt": "hello", "max_tokens": 20}
    assert engine_body("completions", max_tokens=5)["max_tokens"] == 5
    assert engine_body("completions", prompt=["hello", "日" * 45])["max_tokens"] == 100 - len(MODEL.encode("日" * 45))


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_every_stream_asks_the_engine_for_usage(operation: str) -> None:
    call = parse(operation, stream=True, stream_options={"include_usage": False})
    assert call.translation.stream
    assert call.body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("path", "model", "named", "deployment"),
    [
        ("/v1/chat/completions", "chat", "chat", None),
        ("/v1/chat/completions", "gone", "gone", None),
        ("/v1/chat/completions", "tgi", None, None),
        ("/tgi/v1/chat/completions", "meta-llama/x", None, None),
        ("/tgi/v1/chat/completions", None, None, None),
    ],
)
def test_the_model_name_counts_only_at_the_root(path: str, model: Any, named: str | None, deployment: Any) -> None:
    call = parse(path=path, model=model)
    assert (call.model, call.deployment) == (named, deployment)


def test_below_an_endpoint_the_model_name_can_choose_a_deployment() -> None:
    body = json.dumps({"messages": MESSAGES, "model": "blue"}).encode()
    request = Request("POST", "/tgi/chat/v1/chat/completions", body, params={"endpoint": "chat"})
    call = TGI().parse("chat", request, CONTEXT)
    assert (call.model, call.deployment) == ("chat", "blue")


@pytest.mark.parametrize(
    ("body", "task", "path"),
    [
        ({"inputs": "hello"}, "completions", "/v1/completions"),
        ({"messages": MESSAGES}, "chat", "/v1/chat/completions"),
        ({"prompt": "hello"}, "completions", "/v1/completions"),
    ],
)
def test_invocations_take_three_kinds_of_request(body: dict[str, Any], task: str, path: str) -> None:
    call = TGI().parse("invocations", Request("POST", "/tgi/invocations", json.dumps(body).encode()), CONTEXT)
    assert (call.task, engine_request(call, SERVING).path) == (task, path)


def reply(call: Call, answer: Any) -> Any:
    return json.loads(call.translation.reply(json.dumps(answer).encode(), SERVING).body)


def chat_answer(content: str | None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def test_a_whole_answer_has_the_fields_that_clients_require() -> None:
    answer = reply(parse(), chat_answer("hi"))
    assert answer["system_fingerprint"] == "3.3.6-native"
    assert answer["choices"][0]["logprobs"] is None
    assert reply(parse(), {**chat_answer("hi"), "system_fingerprint": "f"})["system_fingerprint"] == "f"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[1]}'])
def test_a_malformed_answer_raises_an_error_for_the_exchange(body: bytes) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        parse().translation.reply(body, SERVING)


def test_every_chunk_has_a_role_and_tool_calls() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"content": "hi"}, {"tool_calls": [{"index": 0}]}, {}]
    frames = [
        completions.frame(
            {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
        )
        for delta in deltas
    ]
    usage = completions.frame({"id": "c", "choices": [], "usage": USAGE})
    for include_usage in (True, False):
        call = parse(stream=True, stream_options={"include_usage": include_usage})
        stream = call.translation.open_stream(SERVING)
        events = Decoder().feed(stream.feed(b"".join(frames) + usage + b"data: [DONE]\n\n") + stream.close())
        assert events.pop().data == "[DONE]"
        chunks = [json.loads(event.data) for event in events]
        assert all(chunk["system_fingerprint"] for chunk in chunks)
        sent = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert [delta["role"] for delta in sent] == ["assistant"] * 4
        assert [delta["tool_calls"] for delta in sent] == [None, None, [{"index": 0}], None]
        assert ("usage" in chunks[-1]) is include_usage
        assert stream.usage is not None


def vertex(*instances: Any) -> Call:
    body = json.dumps({"instances": instances}).encode()
    return TGI().parse("vertex", Request("POST", "/vertex", body), CONTEXT)


def test_vertex_sends_all_instances_at_once_and_returns_their_texts() -> None:
    call = vertex(
        {"inputs": "hello", "parameters": {"max_new_tokens": 5, "return_full_text": True}}, {"messages": MESSAGES}
    )
    assert call.task == "chat"
    requests = lookups(call, SERVING)
    assert [request.path for request in requests] == ["/v1/completions", "/v1/chat/completions"]
    assert requests[0].body["prompt"] == MODEL.encode("hello")
    assert requests[0].body["max_tokens"] == 5
    generation = {"choices": [completions.choice(MODEL, MODEL.encode("hello"), MODEL.encode(" world"))]}
    finished = outcome(call, SERVING, [generation, chat_answer("hi")])
    assert isinstance(finished, Reply)
    assert json.loads(finished.body) == {"predictions": ["hello world", "hi"]}
    assert finished.usage == Usage(9, 3)


def test_vertex_without_chats_is_a_completions_task() -> None:
    assert vertex({"inputs": "hello"}).task == "completions"


@pytest.mark.parametrize(
    ("instances", "error", "param"),
    [
        ([], Unprocessable, "instances"),
        ([{"inputs": "x"}] * 129, Unprocessable, "instances"),
        (["x"], BadRequest, "instances[0]"),
        ([{"inputs": "x"}, {"inputs": 5}], BadRequest, "instances[1].inputs"),
        ([{"inputs": ""}], Unprocessable, "instances[0].inputs"),
        ([{"inputs": "x", "parameters": {"top_k": 0}}], Unprocessable, "instances[0].parameters.top_k"),
        ([{"messages": []}], Unprocessable, "instances[0].messages"),
    ],
)
def test_vertex_names_the_invalid_instance(instances: list[Any], error: type[ClientError], param: str) -> None:
    with pytest.raises(error) as raised:
        vertex(*instances)
    assert raised.value.param == param
    assert param.partition(".")[0] in raised.value.message


@pytest.mark.parametrize("body", [{}, {"instances": "x"}, {"instances": None}])
def test_vertex_requires_instances(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as raised:
        TGI().parse("vertex", Request("POST", "/vertex", json.dumps(body).encode()), CONTEXT)
    assert raised.value.param == "instances"


@pytest.mark.parametrize("has_offsets", [True, False])
def test_chat_tokens_have_their_places_in_the_templated_text(has_offsets: bool) -> None:
    call = parse("chat_tokenize", tools=[TOOL], temperature=0.5, stream=True)
    assert not call.translation.stream
    body = {"messages": MESSAGES, "tools": [TOOL], "return_token_offsets": True}
    assert engine_request(call, SERVING) == EngineRequest("/v1/chat/completions/render", body)
    encoding = MODEL.tokenizer.encode("hello 日本")
    answer = reply(call, {"token_ids": encoding.ids, "token_offsets": encoding.offsets if has_offsets else None})
    assert answer["templated_text"] == "hello 日本"
    assert [token["id"] for token in answer["tokenize_response"]] == encoding.ids
    assert answer["tokenize_response"][0]["text"] == "hello 日本"[: encoding.offsets[0][1]]
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        reply(call, {"token_ids": [1], "token_offsets": []})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["messages", "prompt", "tools", "tool_choice", "response_format", "stop", "stream", "n", "seed"]
)


@given(
    operation=st.sampled_from(["chat", "completions", "chat_tokenize", "invocations", "vertex"]),
    fields=st.dictionaries(names, json_values, max_size=5),
)
def test_any_body_is_accepted_or_rejected_as_a_client_error(operation: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": MESSAGES, "prompt": "x", **fields}).encode()
    try:
        lookups(TGI().parse(operation, Request("POST", "/tgi", body), CONTEXT), SERVING)
    except ClientError as raised:
        error = raised
    else:
        return
    assert TGI().render_error(error, operation, Request("POST", "/tgi", body)).status in (200, 400, 422)


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_temperature_that_needs_a_processor_is_rejected_without_one(operation: str) -> None:
    call = parse(operation, temperature=2.5)
    assert call.translation.needs_model
    with pytest.raises(Unprocessable, match=r"^`temperature`: deployment 'blue' is a plain vLLM server") as raised:
        engine_request(call, ServingContext("blue", SERVED.settings, MODEL))
    assert raised.value.param == "temperature"


def test_a_chat_needs_the_model_only_for_processors() -> None:
    assert not parse(temperature=2).translation.needs_model


@pytest.mark.parametrize(
    "instance",
    [{"messages": MESSAGES, "temperature": 2.5}, {"inputs": "hello", "parameters": {"temperature": 2.5}}],
)
def test_vertex_rejects_such_a_temperature_too(instance: dict[str, Any]) -> None:
    call = vertex({"inputs": "hello"}, instance)
    with pytest.raises(Unprocessable, match=r"^`temperature`: deployment 'blue' is a plain vLLM server"):
        lookups(call, ServingContext("blue", SERVED.settings, MODEL))
