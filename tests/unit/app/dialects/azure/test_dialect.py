"""Azure's dialect: each documented field, valid, at its bounds and beyond; extra parameters; errors; streams."""

import base64
import json
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import parse as parse_config
from app.dialects.azure.dialect import Azure
from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, EngineRequest, Reply, Request, Stream
from app.errors import (
    BadRequest,
    Broken,
    ClientError,
    NotFound,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unauthorized,
    Unprocessable,
)
from tests.support.clients.dialect_calls import engine_request, lookups
from tests.support.clients.samples import CONTEXT, REQUEST, SERVED

MESSAGES = [{"role": "user", "content": "hi"}]
REQUIRED: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES},
    "completions": {"prompt": "hi"},
    "embeddings": {"input": ["hi"]},
}
EMPTY = {"type": "text"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
VERSION = {"api-version": "2024-05-01-preview"}


def parse(operation: str, *, extra: str | None = None, endpoint: str | None = None, **fields: Any) -> Call:
    return parse_bytes(
        operation, json.dumps({**REQUIRED[operation], **fields}).encode(), extra=extra, endpoint=endpoint
    )


def parse_bytes(operation: str, body: bytes, *, extra: str | None = None, endpoint: str | None = None) -> Call:
    headers = {} if extra is None else {"extra-parameters": extra}
    params = {} if endpoint is None else {"endpoint": endpoint}
    return Azure().parse(operation, Request("POST", "/x", body, params=params, query=VERSION, headers=headers), CONTEXT)


VALID: list[tuple[str, str, Any]] = [
    *[("chat", "frequency_penalty", value) for value in (-2, 0, 2)],
    *[("chat", "presence_penalty", value) for value in (-2, 0, 2)],
    *[("chat", "max_tokens", value) for value in (1, 10**6)],
    ("chat", "response_format", {"type": "text"}),
    ("chat", "response_format", {"type": "json_object"}),
    ("chat", "response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}),
    *[("chat", "seed", value) for value in (0, -(2**63), 2**63 - 1)],
    *[("chat", "stop", value) for value in ("x", ["x", "y"])],
    *[("chat", "temperature", value) for value in (0, 1, 2)],
    *[("chat", "top_p", value) for value in (0.01, 1)],
    ("chat", "tools", [TOOL]),
    ("chat", "messages", [{"role": role, "content": "x"} for role in ("system", "developer", "user", "assistant")]),
    *[("completions", "max_tokens", value) for value in (1, 100)],
    ("embeddings", "input", ["a", "b"]),
    ("embeddings", "dimensions", 8),
]


@pytest.mark.parametrize(("operation", "field", "value"), VALID)
def test_a_valid_field_reaches_the_engine(operation: str, field: str, value: Any) -> None:
    assert parse(operation, **{field: value}).body[field] == value


INVALID: list[tuple[str, dict[str, Any], str, Any]] = [
    ("chat", {"messages": []}, "messages", []),
    ("chat", {"messages": "hi"}, "messages", "hi"),
    ("chat", {"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", "boss"),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0]",
        {"type": "text"},
    ),
    ("chat", {"frequency_penalty": 2.1}, "frequency_penalty", 2.1),
    ("chat", {"presence_penalty": -2.1}, "presence_penalty", -2.1),
    ("chat", {"max_tokens": -1}, "max_tokens", -1),
    ("chat", {"max_tokens": 0}, "max_tokens", 0),
    ("chat", {"max_tokens": "5"}, "max_tokens", "5"),
    ("chat", {"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ("chat", {"response_format": {"type": "json_schema"}}, "response_format", {"type": "json_schema"}),
    ("chat", {"seed": 2**63}, "seed", 2**63),
    ("chat", {"stop": [""]}, "stop[0]", ""),
    ("chat", {"stop": 5}, "stop", 5),
    ("chat", {"stream": "yes"}, "stream", "yes"),
    ("chat", {"temperature": -0.1}, "temperature", -0.1),
    ("chat", {"temperature": 2.1}, "temperature", 2.1),
    ("chat", {"top_p": 1.1}, "top_p", 1.1),
    ("chat", {"tools": [{"type": "retrieval"}]}, "tools[0].type", "retrieval"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "a b"),
    ("chat", {"tool_choice": "auto"}, "tool_choice", "auto"),
    ("chat", {"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice", "perhaps"),
    (
        "chat",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
        {"type": "function", "function": {"name": "g"}},
    ),
    ("chat", {"modalities": ["audio"]}, "modalities[0]", "audio"),
    ("chat", {"stream_options": {"include_usage": True}}, "stream_options", {"include_usage": True}),
    ("completions", {"prompt": ""}, "prompt", ""),
    ("completions", {"prompt": ["a", "b"]}, "prompt", ["a", "b"]),
    ("embeddings", {"input": []}, "input", []),
    ("embeddings", {"encoding_format": "hex"}, "encoding_format", "hex"),
    ("embeddings", {"input_type": "song"}, "input_type", "song"),
    ("embeddings", {"dimensions": 0}, "dimensions", 0),
]


@pytest.mark.parametrize(("operation", "fields", "param", "value"), INVALID)
def test_an_invalid_field_is_a_422_with_its_place_and_value(
    operation: str, fields: dict[str, Any], param: str, value: Any
) -> None:
    with pytest.raises(Unprocessable) as raised:
        parse(operation, **fields)
    assert raised.value.param == param
    assert param in raised.value.message
    assert raised.value.value == value


@pytest.mark.parametrize("operation", REQUIRED)
def test_a_missing_required_field_is_a_422_that_names_it(operation: str) -> None:
    with pytest.raises(Unprocessable) as raised:
        parse_bytes(operation, b"{}")
    assert raised.value.param == next(iter(REQUIRED[operation]))


@given(
    st.sampled_from(list(REQUIRED)), st.binary(max_size=40) | st.text(max_size=40).map(lambda t: json.dumps(t).encode())
)
def test_any_bytes_are_rejected_as_the_clients_fault(operation: str, body: bytes) -> None:
    with pytest.raises(ClientError):
        parse_bytes(operation, body)


def test_documented_message_parts_are_translated_to_openais() -> None:
    parts = [
        {"type": "text", "content": "look"},
        {"type": "text", "text": "here"},
        {"type": "image", "content": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "high"}},
    ]
    call = parse("chat", messages=[{"role": "user", "content": parts, "name": "ada"}])
    assert call.body["messages"] == [
        {
            "role": "user",
            "name": "ada",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "text", "text": "here"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "high"}},
            ],
        }
    ]


def test_tool_choice_is_not_sent_without_tools() -> None:
    assert parse("chat", tools=[], tool_choice="none").body == {"messages": MESSAGES}
    assert parse("chat", tools=None).body == {"messages": MESSAGES}


def test_top_p_zero_is_greedy() -> None:
    assert parse("chat", top_p=0).body["temperature"] == 0


@pytest.mark.parametrize("mode", ["error", "Error", None])
@pytest.mark.parametrize("field", ["n", "logprobs", "top_k", "user", "logit_bias", "safe_mode"])
def test_an_extra_parameter_is_rejected_with_the_text_that_clients_match(mode: str | None, field: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_bytes("chat", json.dumps({"messages": MESSAGES, field: 1}).encode(), extra=mode)
    assert raised.value.message.startswith(
        f"Extra parameters ['{field}'] are not allowed when extra-parameters is not set"
    )
    assert raised.value.param == field


@pytest.mark.parametrize("mode", ["ignore", "drop"])
def test_the_header_drops_extra_parameters(mode: str) -> None:
    assert parse("chat", extra=mode, n=2, safe_mode=True).body == {"messages": MESSAGES}


@pytest.mark.parametrize("mode", ["pass-through", "allow", " Pass-Through "])
def test_the_header_passes_extra_parameters_to_the_engine(mode: str) -> None:
    assert parse("chat", extra=mode, top_k=5).body == {"messages": MESSAGES, "top_k": 5}


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_a_tensor_is_no_extra_parameter(operation: str) -> None:
    """A chat's would be ignored, and a completion's would be another prompt."""
    with pytest.raises(BadRequest, match="prompt_embeds: not passed"):
        parse(operation, extra="pass-through", prompt_embeds="x")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "n": "2"},
        {"temperature": 0, "n": [2]},
        {"prompt": "hi", "stream": True, "stream_options": ["include_usage"]},
    ],
)
def test_extra_parameters_of_any_type_are_passed(fields: dict[str, Any]) -> None:
    body = parse("completions" if "prompt" in fields else "chat", extra="pass-through", **fields).body
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("mode", "given", "user"), [("pass-through", "u1", "u1"), ("pass-through", 5, None), ("drop", "u1", None)]
)
def test_a_user_that_is_passed_is_the_sticky_key(mode: str, given: Any, user: str | None) -> None:
    assert parse("chat", extra=mode, user=given).user == user


def test_an_unknown_extra_parameters_mode_is_rejected() -> None:
    with pytest.raises(BadRequest, match="Unexpected EXTRA_PARAMETERS option maybe"):
        parse("chat", extra="maybe")


@pytest.mark.parametrize("version", ["2024-04-01", "2024-05-01-preview", "2030-12-31"])
def test_any_dated_version_is_accepted(version: str) -> None:
    body = json.dumps(REQUIRED["chat"]).encode()
    assert Azure().parse("chat", Request("POST", "/chat/completions", body, query={"api-version": version}), CONTEXT)


@pytest.mark.parametrize("version", ["", "latest", "2024-5-1", "2024-05-01-beta", "2024-05-01-preview "])
def test_a_malformed_version_is_rejected(version: str) -> None:
    with pytest.raises(BadRequest, match="Invalid api-version"):
        Azure().parse("chat", Request("POST", "/chat/completions", b"{}", query={"api-version": version}), CONTEXT)


def test_a_missing_version_is_rejected() -> None:
    with pytest.raises(BadRequest, match="api-version") as raised:
        Azure().parse("chat", Request("POST", "/azure/chat/completions", b"{}"), CONTEXT)
    reply = Azure().render_error(raised.value, "chat", REQUEST)
    assert reply.headers["x-ms-error-code"] == "MissingApiVersionParameter"


def test_the_endpoint_in_the_path_wins_and_the_model_may_name_one_of_its_deployments() -> None:
    assert parse("chat").model is None
    assert parse("chat", model="chat").model == "chat"
    at = parse("chat", endpoint="chat")
    assert (at.model, at.deployment) == ("chat", None)
    chosen = parse("chat", endpoint="chat", model="green")
    assert (chosen.model, chosen.deployment) == ("chat", "green")
    same = parse("chat", endpoint="chat", model="chat")
    assert (same.model, same.deployment) == ("chat", None)


def test_a_completion_without_a_limit_gets_the_rest_of_the_context() -> None:
    call = parse("completions")
    assert lookups(call, SERVED) == [EngineRequest("/tokenize", {"prompt": "hi"})]
    assert engine_request(call, SERVED, [tokenized(90)]).body["max_tokens"] == 10
    with pytest.raises(BadRequest, match=r"prompt: has 100 tokens, this model takes at most 99") as raised:
        engine_request(call, SERVED, [tokenized(100)])
    assert (raised.value.param, raised.value.code) == ("prompt", "context_length_exceeded")
    assert not lookups(parse("completions", max_tokens=3), SERVED)


def tokenized(count: int) -> dict[str, Any]:
    return {"count": count, "max_model_len": 100, "tokens": [0] * count}


VECTOR = [0.5, -0.25, 0.0, 1.0, -1.0, 0.1, -0.1, 0.2, 0.3]


def embedded(encoding: str) -> Any:
    body = {
        "id": "e",
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}],
    }
    usage = {"usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}}
    call = parse("embeddings", encoding_format=encoding)
    assert call.body["encoding_format"] == "float"
    answer = json.loads(call.translation.reply(json.dumps({**body, **usage}).encode(), SERVED).body)
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    return answer["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("float", VECTOR),
        ("ubinary", [0b10010101, 0b10000000]),
        ("binary", [0b10010101 - 128, 0b10000000 - 128]),
        ("int8", [64, -32, 0, 127, -127, 13, -13, 25, 38]),
        ("uint8", [192, 96, 128, 255, 1, 141, 115, 153, 166]),
    ],
)
def test_embeddings_come_in_every_documented_encoding(encoding: str, expected: list[float]) -> None:
    assert embedded(encoding) == expected


def test_base64_embeddings_are_little_endian_floats() -> None:
    assert struct.unpack("<9f", base64.b64decode(embedded("base64"))) == pytest.approx(VECTOR)


@pytest.mark.parametrize("data", [None, [{}], [{"embedding": 5}], [{"embedding": ["a"]}]])
@pytest.mark.parametrize("encoding", ["base64", "int8"])
def test_a_malformed_embedding_is_an_error_that_the_exchange_expects(data: Any, encoding: str) -> None:
    answer = {"data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        parse("embeddings", encoding_format=encoding).translation.reply(json.dumps(answer).encode(), SERVED)


@pytest.mark.parametrize(
    ("error", "status", "code", "body"),
    [
        (Unauthorized("no key"), 401, "Unauthorized", {"error": "Unauthorized", "message": "no key", "status": 401}),
        (NotFound("no such"), 404, "NotFound", {"error": "Not Found", "message": "no such", "status": 404}),
        (BadRequest("Extra"), 400, "invalid_input", {"detail": "Extra", "message": "Extra", "status": 400}),
        (
            BadRequest("hit", param="messages", code="content_filter"),
            400,
            "content_filter",
            {"code": "content_filter", "param": "messages", "status": 400},
        ),
        (
            Unprocessable("top_p: too big", param="top_p", value=7),
            422,
            "parameter_not_supported",
            {
                "code": "parameter_not_supported",
                "detail": {"loc": ["body", "top_p"], "value": "7", "input": 7},
                "error": "Unprocessable Entity",
                "message": "top_p: too big",
                "status": 422,
            },
        ),
        (
            Rejected("top_k must be 0 or more", status=400, param="top_k"),
            422,
            "parameter_not_supported",
            {"status": 422},
        ),
        (Rejected("slow down", status=429), 429, "TooManyRequests", {"error": "Too Many Requests", "status": 429}),
        (TimedOut("late"), 504, "InternalServerError", {"status": 504}),
    ],
)
def test_errors_have_azures_bodies_and_header(
    error: SwitchyardError, status: int, code: str, body: dict[str, Any]
) -> None:
    reply = Azure().render_error(error, "chat", REQUEST)
    assert (reply.status, reply.headers["x-ms-error-code"]) == (status, code)
    sent = json.loads(reply.body)
    assert {name: sent[name] for name in body} == body


CONFIG = parse_config(
    {
        "endpoints": {
            "chat": {"tasks": ["chat"], "traffic": {"a": 40, "b": 60}},
            "embed": {"tasks": ["embeddings", "rerank"], "traffic": {"e": 100}},
        },
        "deployments": {
            "a": {"app": "a", "model": "small"},
            "b": {"app": "b", "model": "big"},
            "e": {"app": "e", "model": "mini", "tasks": ["embeddings", "rerank"]},
        },
        "defaults": {"chat": "chat"},
    }
)


def answer(operation: str, **params: str) -> Reply:
    return Azure().answer(operation, Request("GET", "/info", params=params, query=VERSION), CONFIG)


def test_info_names_the_endpoint() -> None:
    assert json.loads(answer("info").body) == {
        "model_name": "chat",
        "model_type": "chat_completion",
        "model_provider_name": "vllm",
    }
    assert json.loads(answer("info", endpoint="embed").body)["model_type"] == "embeddings"
    with pytest.raises(NotFound):
        answer("info", endpoint="gone")


def test_image_embeddings_are_not_served() -> None:
    with pytest.raises(NotFound, match="image embeddings"):
        answer("images", endpoint="embed")


def chunk(content: str, finish_reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"content": content}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = chunk("a") + chunk('"finish_reason":"stop"') + chunk("", "stop", 1) + chunk("", "length") + USAGE + DONE


def opened() -> Stream:
    return parse("chat", stream=True).translation.open_stream(SERVED)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_usage_comes_on_the_last_chunk_with_a_choice_in_any_chunking(points: list[int]) -> None:
    stream = opened()
    edges = [0, *sorted(points), len(STREAM)]
    sent = b"".join(stream.feed(STREAM[a:b]) for a, b in pairwise(edges)) + stream.close()
    *frames, done, end = sent.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    values = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert [len(value["choices"]) for value in values] == [1, 1, 1, 1]
    assert ["usage" in value for value in values] == [False, False, False, True]
    assert values[-1]["choices"][0]["finish_reason"] == "length"
    assert values[-1]["usage"]["total_tokens"] == 12


@pytest.mark.parametrize("prefix", [b"", chunk("a"), chunk("a") + chunk("", "stop"), chunk("a")[:9]])
def test_a_stream_that_fails_sends_nothing_and_breaks_the_connection(prefix: bytes) -> None:
    stream = opened()
    stream.feed(prefix)
    with pytest.raises(Broken):
        stream.close()
    assert stream.aborts
    assert stream.fail(TimedOut("late")) == b""


def test_the_engines_error_event_fails_the_stream() -> None:
    stream = opened()
    stream.feed(chunk("a") + b'data: {"error":{"message":"too long","code":400}}\n\n')
    assert isinstance(stream.failure, Rejected)
    with pytest.raises(Rejected, match="too long"):
        stream.close()


@pytest.mark.parametrize(
    ("path", "headers", "query", "claimed"),
    [
        ("/chat/completions", {}, VERSION, True),
        ("/chat/completions", {"user-agent": "x azsdk-python-ai-inference/1"}, {}, True),
        ("/chat/completions", {"user-agent": "OpenAI/Python", "x-stainless-lang": "python"}, VERSION, False),
        ("/chat/completions", {"user-agent": "curl"}, {}, False),
        ("/azure/chat/completions", {"user-agent": "curl"}, {}, True),
        ("/azure/chat/completions", {"x-stainless-lang": "python"}, {}, False),
        ("/endpoints/{endpoint}/embeddings", {}, {}, False),
        ("/endpoints/{endpoint}/embeddings", {}, VERSION, True),
        ("/endpoints/{endpoint}/embeddings", {"user-agent": "x azsdk-python-ai-inference/1"}, {}, True),
        ("/endpoints/{endpoint}/info", {}, {}, False),
        ("/endpoints/{endpoint}/info", {}, VERSION, True),
        ("/endpoints/{endpoint}/info", {"api-key": "k"}, {}, True),
        ("/models/embeddings", {}, {}, True),
        ("/info", {}, VERSION, True),
        ("/info", {"api-key": "k"}, {}, True),
        ("/info", {"user-agent": "x azsdk-python-ai-inference/1"}, {}, True),
        ("/info", {}, {}, False),
        ("/azure/info", {}, {}, True),
    ],
)
def test_azure_claims_the_requests_of_its_clients(
    path: str, headers: dict[str, str], query: dict[str, str], claimed: bool
) -> None:
    route = next(route for route in Azure.routes if route.path == path)
    assert Azure().claims(route, Request(route.method, path, query=query, headers=headers)) is claimed
