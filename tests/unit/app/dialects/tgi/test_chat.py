"""TGI's routes in OpenAI's form, SageMaker's and Vertex's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import Request, ServingContext
from app.dialects.legacy import Call
from app.dialects.tgi.dialect import TGI
from app.errors import BadRequest, Broken, ClientError, Unprocessable
from app.sse import Decoder
from tests.support import engine_answers as completions
from tests.support.samples import CONTEXT, EXTENDED, MODEL, SERVED

DEPLOYED = ServingContext("blue", SERVED.settings, EXTENDED)
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
SCHEMA = {"properties": {"a": {"type": "integer"}}}


def parse(operation: str = "chat", *, path: str = "/tgi/v1/x", **fields: Any) -> Call:
    required: dict[str, Any] = {"prompt": "hello"} if operation == "completions" else {"messages": MESSAGES}
    body = json.dumps({**required, **fields}).encode()
    return TGI().parse(operation, Request("POST", path, body), CONTEXT)


def question(operation: str = "chat", **fields: Any) -> dict[str, Any]:
    call = parse(operation, **fields)
    return call.body if call.fit is None else call.fit(call.body, DEPLOYED)


def test_the_least_chat() -> None:
    call = parse()
    assert (call.task, call.path, call.body, call.model) == (
        "chat",
        "/v1/chat/completions",
        {"messages": MESSAGES},
        None,
    )


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
    assert question(**{field: value}) == {"messages": MESSAGES, **sent}


def test_several_greedy_choices_are_asked_for_in_the_engines_words() -> None:
    assert question(temperature=0, n=2) == {"messages": MESSAGES, "n": 2, "temperature": 1.0, "top_k": 1}


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
def test_what_goes_together(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    assert question(**fields) == {"messages": MESSAGES, **sent}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ("hi", "hi\n---\nchoose:"),
        (None, "\n---\nchoose:"),
        (
            [{"type": "text", "text": "hi"}],
            [{"type": "text", "text": "hi"}, {"type": "text", "text": "\n---\nchoose:"}],
        ),
    ],
)
def test_the_tool_prompt_comes_after_the_last_message(content: Any, sent: Any) -> None:
    messages = [*MESSAGES, {"role": "user", "content": content}]
    asked = question(messages=messages, tools=[TOOL], tool_prompt="choose:")
    assert asked["messages"] == [*MESSAGES, {"role": "user", "content": sent}]


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
def test_what_is_wrong_is_refused_by_name(operation: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unprocessable) as raised:
        question(operation, **fields)
    assert (raised.value.param or "").startswith(param)


def test_completions_have_the_profiles_length() -> None:
    assert question("completions") == {"prompt": "hello", "max_tokens": 20}
    assert question("completions", max_tokens=5)["max_tokens"] == 5
    assert question("completions", prompt=["hello", "日" * 45])["max_tokens"] == 100 - len(MODEL.encode("日" * 45))


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_stream_counts_its_tokens(operation: str) -> None:
    call = parse(operation, stream=True, stream_options={"include_usage": False})
    assert call.stream
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
def test_the_models_name_counts_only_at_the_root(path: str, model: Any, named: str | None, deployment: Any) -> None:
    call = parse(path=path, model=model)
    assert (call.model, call.deployment) == (named, deployment)


def test_below_an_endpoint_the_name_can_choose_its_deployment() -> None:
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
def test_invocations_are_of_three_kinds(body: dict[str, Any], task: str, path: str) -> None:
    call = TGI().parse("invocations", Request("POST", "/tgi/invocations", json.dumps(body).encode()), CONTEXT)
    assert (call.task, call.path) == (task, path)


def chat_answer(content: str | None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def test_a_whole_answer_has_what_the_clients_insist_on() -> None:
    told = json.loads(TGI().render(parse(), json.dumps(chat_answer("hi")).encode(), DEPLOYED).body)
    assert told["system_fingerprint"] == "3.3.6-native"
    assert told["choices"][0]["logprobs"] is None
    kept = json.dumps({**chat_answer("hi"), "system_fingerprint": "f"}).encode()
    assert json.loads(TGI().render(parse(), kept, DEPLOYED).body)["system_fingerprint"] == "f"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[1]}'])
def test_an_answer_that_makes_no_sense_is_the_deployments_fault(body: bytes) -> None:
    with pytest.raises(Broken):
        TGI().render(parse(), body, DEPLOYED)


def test_every_chunk_has_a_role_and_tool_calls() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"content": "hi"}, {"tool_calls": [{"index": 0}]}, {}]
    frames = [
        completions.frame({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in deltas
    ]
    usage = completions.frame({"id": "c", "choices": [], "usage": USAGE})
    for asked in (True, False):
        stream = TGI().stream(parse(stream=True, stream_options={"include_usage": asked}), DEPLOYED)
        told = Decoder().feed(stream.feed(b"".join(frames) + usage + b"data: [DONE]\n\n") + stream.close())
        assert told.pop().data == "[DONE]"
        chunks = [json.loads(event.data) for event in told]
        assert all(chunk["system_fingerprint"] for chunk in chunks)
        sent = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert [delta["role"] for delta in sent] == ["assistant"] * 4
        assert [delta["tool_calls"] for delta in sent] == [None, None, [{"index": 0}], None]
        assert ("usage" in chunks[-1]) is asked
        assert stream.usage is not None


def vertex(*instances: Any) -> Call:
    body = json.dumps({"instances": instances}).encode()
    return TGI().parse("vertex", Request("POST", "/vertex", body), CONTEXT)


def test_vertex_asks_several_questions_and_tells_their_texts() -> None:
    call = vertex(
        {"inputs": "hello", "parameters": {"max_new_tokens": 5, "return_full_text": True}}, {"messages": MESSAGES}
    )
    assert (call.task, call.path) == ("chat", None)
    assert call.fit is not None
    assert call.fan_out is not None
    lookup = call.fan_out(call.fit(call.body, DEPLOYED))
    assert [path for path, _ in lookup.questions] == ["/v1/completions", "/v1/chat/completions"]
    assert lookup.questions[0][1]["prompt"] == MODEL.encode("hello")
    assert lookup.questions[0][1]["max_tokens"] == 5
    first = {"choices": [completions.choice(MODEL, MODEL.encode("hello"), MODEL.encode(" world"))]}
    told = lookup.then(call.body, [first, chat_answer("hi")])
    reply = TGI().render(call, json.dumps(told).encode(), DEPLOYED)
    assert json.loads(reply.body) == {"predictions": ["hello world", "hi"]}


def test_vertex_texts_without_chats_need_no_chat() -> None:
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
def test_vertex_names_the_instance_that_is_wrong(instances: list[Any], error: type[ClientError], param: str) -> None:
    with pytest.raises(error) as raised:
        vertex(*instances)
    assert raised.value.param == param
    assert param.partition(".")[0] in raised.value.message


@pytest.mark.parametrize("body", [{}, {"instances": "x"}, {"instances": None}])
def test_vertex_needs_instances(body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as raised:
        TGI().parse("vertex", Request("POST", "/vertex", json.dumps(body).encode()), CONTEXT)
    assert raised.value.param == "instances"


@pytest.mark.parametrize("tells_places", [True, False])
def test_a_chats_tokens_have_their_places_in_the_templates_text(tells_places: bool) -> None:
    call = parse("chat_tokenize", tools=[TOOL], temperature=0.5, stream=True)
    assert (call.path, call.stream) == ("/v1/chat/completions/render", False)
    assert call.body == {"messages": MESSAGES, "tools": [TOOL], "return_token_offsets": True}
    encoding = MODEL.tokenizer.encode("hello 日本")
    places = encoding.offsets if tells_places else None
    body = json.dumps({"token_ids": encoding.ids, "token_offsets": places}).encode()
    told = json.loads(TGI().render(call, body, DEPLOYED).body)
    assert told["templated_text"] == "hello 日本"
    assert [token["id"] for token in told["tokenize_response"]] == encoding.ids
    assert told["tokenize_response"][0]["text"] == "hello 日本"[: encoding.offsets[0][1]]
    with pytest.raises(Broken):
        TGI().render(call, b'{"token_ids":[1],"token_offsets":[]}', DEPLOYED)


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
def test_any_body_is_taken_or_refused_as_the_clients_fault(operation: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": MESSAGES, "prompt": "x", **fields}).encode()
    try:
        call = TGI().parse(operation, Request("POST", "/tgi", body), CONTEXT)
        if call.fit is not None:
            call.fit(call.body, DEPLOYED)
    except ClientError as raised:
        error = raised
    else:
        return
    assert TGI().render_error(error, operation, Request("POST", "/tgi", body)).status in (200, 400, 422)


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_temperature_that_needs_a_processor_is_refused_where_there_is_none(operation: str) -> None:
    call = parse(operation, temperature=2.5)
    assert call.needs_model
    assert call.fit is not None
    with pytest.raises(Unprocessable, match=r"^`temperature`: deployment 'blue' is a plain vLLM server") as raised:
        call.fit(call.body, ServingContext("blue", SERVED.settings, MODEL))
    assert raised.value.param == "temperature"


def test_a_chat_needs_the_model_only_for_that() -> None:
    assert not parse(temperature=2).needs_model


@pytest.mark.parametrize(
    "instance",
    [{"messages": MESSAGES, "temperature": 2.5}, {"inputs": "hello", "parameters": {"temperature": 2.5}}],
)
def test_vertex_refuses_it_too(instance: dict[str, Any]) -> None:
    call = vertex({"inputs": "hello"}, instance)
    assert call.fit is not None
    with pytest.raises(Unprocessable, match=r"^`temperature`: deployment 'blue' is a plain vLLM server"):
        call.fit(call.body, ServingContext("blue", SERVED.settings, MODEL))
