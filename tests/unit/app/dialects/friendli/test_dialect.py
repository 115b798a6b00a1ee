"""Friendli's dialect: request detection, routes, errors, and the operations other than completions."""

import json
from typing import Any

import pytest
from starlette.datastructures import Headers

from app.config.schema import parse as parse_config
from app.dialects.base import MALFORMED_ANSWER_ERRORS, EngineRequest, Reply, Request
from app.dialects.friendli.dialect import Friendli
from app.dialects.friendli.fields import form
from app.dialects.registry import DIALECTS
from app.engine.errors import engine_error
from app.engine.output import Usage
from app.errors import (
    BadRequest,
    Broken,
    DeadlinePassed,
    InternalError,
    NotFound,
    Rejected,
    SwitchyardError,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from tests.support.clients.dialect_calls import engine_request, lookups, outcome
from tests.support.clients.friendli_calls import DEPLOYED, MESSAGES, SDK, parse, reply, result
from tests.support.clients.samples import CONTEXT, MODEL

OPENAI_SDK = {"user-agent": "OpenAI/Python 2.0", "x-stainless-lang": "python"}
TEAM = {"x-friendli-team": "t"}
KEY = {"authorization": "Bearer flp_abc"}


def owner(path: str, headers: dict[str, str], body: Any) -> str:
    """The dialect that the router chooses for a POST."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request("POST", path, data, headers=dict(Headers(headers)))
    candidates = [(d, r) for d in DIALECTS for r in d.routes if (r.method, r.path) == ("POST", path)]
    return next((d for d, r in candidates if d.claims(r, request)), candidates[-1][0]).name


COMPLETION = {"model": "chat", "prompt": "hi"}

COMPLETIONS: list[tuple[dict[str, str], Any, str]] = [
    ({}, COMPLETION, "openai"),
    (SDK, COMPLETION, "friendli"),
    (OPENAI_SDK, COMPLETION, "openai"),
    *[
        ({"user-agent": f"{name}/Python 1"}, COMPLETION, "openai")
        for name in ("OpenAI", "AsyncOpenAI", "DatabricksOpenAI")
    ],
    (TEAM, COMPLETION, "friendli"),
    (KEY, COMPLETION, "friendli"),
    ({"authorization": "Bearer sk-flp_"}, COMPLETION, "openai"),
    (OPENAI_SDK | TEAM | KEY, {**COMPLETION, "num_beams": 2}, "openai"),
    ({"user-agent": "OpenAI/Python 2.0"}, {**COMPLETION, "timeout_microseconds": None}, "openai"),
    ({}, {**COMPLETION, "timeout_microseconds": None}, "friendli"),
    *[
        ({}, {**COMPLETION, name: None}, "friendli")
        for name in (
            "tokens timeout max_total_tokens min_total_tokens num_beams beam_search_type early_stopping "
            "no_repeat_ngram encoder_no_repeat_ngram encoder_repetition_penalty stop_tokens bad_word_tokens "
            "token_index_to_replace embedding_to_replace include_output_logits include_output_logprobs "
            "eos_token forced_output_tokens"
        ).split()
    ],
    ({}, {**COMPLETION, "seed": [1]}, "friendli"),
    ({}, {**COMPLETION, "seed": 1}, "openai"),
    ({}, {**COMPLETION, "response_format": {"type": "regex", "schema": "a"}}, "friendli"),
    ({}, {**COMPLETION, "response_format": {"type": "json_object", "schema": "{}"}}, "friendli"),
    ({}, {**COMPLETION, "response_format": {"type": "json_object"}}, "openai"),
    ({}, {**COMPLETION, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "openai"),
    ({}, {**COMPLETION, "prompt": '{"tokens": [1], "num_beams": 2}'}, "openai"),
    ({}, {**COMPLETION, "logit_bias": {"tokens": 1}}, "openai"),
    ({}, {**COMPLETION, "bad_words": ["a"], "min_tokens": 1, "min_p": 0.1, "logprobs": 1, "n": 2}, "openai"),
    ({}, b'{"tokens": ', "openai"),
    ({}, b'["tokens"]', "openai"),
]

CHAT = {"model": "chat", "messages": MESSAGES}

CHATS: list[tuple[dict[str, str], Any, str]] = [
    ({}, CHAT, "openai"),
    (OPENAI_SDK, CHAT, "openai"),
    (SDK, CHAT, "friendli"),
    (TEAM, CHAT, "friendli"),
    (TEAM | OPENAI_SDK, CHAT, "friendli"),
    ({}, {**CHAT, "timeout_microseconds": None}, "friendli"),
    (OPENAI_SDK, {**CHAT, "timeout_microseconds": None}, "openai"),
    ({}, {**CHAT, "messages": [{"role": "user", "content": '"timeout_microseconds":'}]}, "openai"),
    ({}, {**CHAT, "metadata": {"timeout_microseconds": 1}}, "openai"),
    (SDK, {"messages": MESSAGES}, "friendli"),
    (TEAM, {"messages": MESSAGES, "model": "tgi"}, "friendli"),
    ({}, {"messages": MESSAGES}, "tgi"),
    ({}, {"messages": MESSAGES, "timeout_microseconds": None}, "friendli"),
    *[({}, {"messages": MESSAGES, "model": model}, "tgi") for model in ("tgi", "dummy", None)],
    ({}, {**CHAT, "response_format": {"type": "json", "value": {}}}, "tgi"),
    (OPENAI_SDK, {**CHAT, "model": "tgi"}, "tgi"),
]


@pytest.mark.parametrize(("headers", "body", "dialect"), COMPLETIONS)
def test_the_dialect_of_a_completions_request(headers: dict[str, str], body: Any, dialect: str) -> None:
    assert owner("/v1/completions", headers, body) == dialect
    if isinstance(body, dict):
        assert owner("/v1/completions", headers, {**body, "prompt": [body["prompt"]] * 9000}) == dialect


@pytest.mark.parametrize(("headers", "body", "dialect"), CHATS)
def test_the_dialect_of_a_chat_request(headers: dict[str, str], body: Any, dialect: str) -> None:
    assert owner("/v1/chat/completions", headers, body) == dialect
    assert owner("/v1/chat/completions", headers, {**body, "messages": body["messages"] * 1000}) == dialect


@pytest.mark.parametrize("mount", ["/serverless/v1", "/dedicated/v1", "/v1"])
@pytest.mark.parametrize("path", ["tokenize", "detokenize", "chat/render"])
def test_tokenize_detokenize_and_render_are_friendlis_on_every_mount(mount: str, path: str) -> None:
    assert owner(f"{mount}/{path}", OPENAI_SDK, {}) == "friendli"


@pytest.mark.parametrize("mount", ["/serverless/v1", "/dedicated/v1"])
@pytest.mark.parametrize("path", ["completions", "chat/completions", "embeddings"])
def test_friendlis_own_mounts_are_friendlis_for_every_client(mount: str, path: str) -> None:
    assert owner(f"{mount}/{path}", OPENAI_SDK, {}) == "friendli"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({}, "classic"), (TEAM, "classic"), (SDK, "modern"), (OPENAI_SDK, "modern"), ({"user-agent": "curl"}, "classic")],
)
def test_the_form_of_a_stream_follows_the_client(headers: dict[str, str], expected: str) -> None:
    assert form(headers) == expected


def test_a_seed_is_drawn_for_each_request_without_one() -> None:
    drawn = [result()["seed"] for _ in range(3)]
    assert len(set(drawn)) == 3
    assert all(0 < seed < 2**53 for seed in drawn)
    assert result(seed=[], n=2)["seed"] not in drawn


def test_an_adapter_names_a_deployment_of_the_endpoint() -> None:
    call = parse("completions", model="chat:blue")
    assert (call.model, call.deployment) == ("chat", "blue")
    assert parse("chat", model="chat").model == "chat"
    assert parse("tokenize").model is None


def test_the_sticky_key_is_the_user_or_else_the_team() -> None:
    assert parse("completions", TEAM).user == "t"
    assert parse("chat", TEAM, user="u").user == "u"
    assert parse("completions").user is None


@pytest.mark.parametrize("name", ["timeout", "timeout_microseconds"])
@pytest.mark.parametrize("operation", ["completions", "chat"])
def test_the_clients_timeout_is_in_microseconds(operation: str, name: str) -> None:
    fields: dict[str, Any] = {name: 1_500_000}
    assert parse(operation, **fields).timeout_s == 1.5
    assert parse(operation).timeout_s is None


def path(fields: dict[str, Any]) -> str:
    """The engine's route for a completion."""
    return engine_request(parse("completions", **fields), DEPLOYED).path


def test_only_extended_completions_use_the_extended_route() -> None:
    plain: list[dict[str, Any]] = [{}, {"n": 2}, {"seed": [1, 2], "n": 2}, {"no_repeat_ngram": 2}, {"temperature": 3}]
    assert {path(fields) for fields in plain} == {"/v1/completions"}
    extended: list[dict[str, Any]] = [
        {"num_beams": 1},
        {"seed": [1, 3], "n": 2},
        {"token_index_to_replace": [0], "embedding_to_replace": [0.5] * 4},
    ]
    assert {path(fields) for fields in extended} == {"/switchyard/completions"}


def test_a_plain_request_has_no_more_fields_than_it_needs() -> None:
    assert result(seed=7) == {
        "prompt": MODEL.encode("say hello"),
        "stream": False,
        "return_token_ids": True,
        "temperature": 1.0,
        "seed": 7,
        "max_tokens": 100 - len(MODEL.encode("say hello")),
    }


def test_the_prompt_is_text_until_the_deployment_is_known() -> None:
    assert parse("completions").body["prompt"] == "say hello"


def test_each_seed_of_a_chat_is_a_request_of_its_own_unless_they_count_up() -> None:
    call = parse("chat", seed=[5, 2**64 - 2], n=2, temperature=0)
    requests = lookups(call, DEPLOYED)
    assert [request.path for request in requests] == ["/v1/chat/completions"] * 2
    assert [(r.body["n"], r.body["seed"], r.body["temperature"]) for r in requests] == [(1, 5, 0.0), (1, -2, 0.0)]
    answers = [
        {"id": "a", "choices": [{"index": 0, "text": text}], "usage": {"prompt_tokens": 9, "completion_tokens": n}}
        for text, n in (("x", 1), ("y", 2))
    ]
    answer = outcome(call, DEPLOYED, answers)
    assert isinstance(answer, Reply)
    joined = json.loads(answer.body)
    assert [(choice["index"], choice["text"]) for choice in joined["choices"]] == [(0, "x"), (1, "y")]
    assert joined["usage"] == {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    assert answer.usage == Usage(9, 3)
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        outcome(call, DEPLOYED, [{"choices": []}, {}])


def test_a_long_chat_is_not_sent_for_each_of_many_seeds() -> None:
    messages = [{"role": "user", "content": "a" * 1024 * 1024}]
    parse("chat", messages=messages, seed=[5, 9], n=2)
    parse("chat", messages=messages, seed=list(range(30)), n=30)
    with pytest.raises(BadRequest, match="seed") as refused:
        parse("chat", messages=messages, seed=[seed * seed for seed in range(30)], n=30)
    assert refused.value.param == "seed"


def test_seeds_of_a_chat_that_count_up_are_one_request() -> None:
    request = outcome(parse("chat", seed=[5, 6], n=2), DEPLOYED)
    assert isinstance(request, EngineRequest)
    assert (request.body["n"], request.body["seed"]) == (2, 5)


def test_reasoning_has_friendlis_name_if_the_client_requests_it() -> None:
    body = json.dumps({"choices": [{"message": {"content": '"reasoning":', "reasoning": "why"}}]}).encode()
    answer = reply(parse("chat", parse_reasoning=True), body)
    assert answer["choices"][0]["message"] == {"content": '"reasoning":', "reasoning_content": "why"}
    assert parse("chat").translation.reply(body, DEPLOYED).body == body
    stream = parse("chat", parse_reasoning=True, stream=True).translation.open_stream(DEPLOYED)
    chunk = b'data: {"choices":[{"index":0,"delta":{"reasoning":"why"}}]}\n\n'
    assert stream.feed(chunk[:20]) + stream.feed(chunk[20:]) == chunk.replace(b'"reasoning"', b'"reasoning_content"')


def test_embeddings_have_a_count_of_completion_tokens() -> None:
    answer = {"id": "e", "data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    usage = reply(parse("embeddings"), json.dumps(answer).encode())["usage"]
    assert usage == {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        reply(parse("embeddings"), b"[]")


def test_a_rendered_conversation_has_its_special_tokens() -> None:
    body = json.dumps({"token_ids": [0, *MODEL.encode("hello", special=False)]}).encode()
    assert reply(parse("render"), body) == {"text": "<|end|>hello"}
    for malformed in (b"{}", b'{"token_ids": [-1]}', b'{"token_ids": "a"}', b"x"):
        with pytest.raises(MALFORMED_ANSWER_ERRORS):
            reply(parse("render"), malformed)


def test_the_model_list_has_the_endpoints_and_their_deployments_under_accepted_names() -> None:
    config = parse_config(
        {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
            "deployments": {
                "blue": {"url": "http://blue", "model": "m"},
                "mini": {"url": "http://mini", "model": "e", "tasks": ["embeddings"]},
            },
        }
    )
    request = Request("GET", "/dedicated/v1/models", configured_at=1_700_000_000)
    cards = json.loads(Friendli().answer("models", request, config).body)["data"]
    assert [(card["id"], card["kind"], card["tasks"], card["mode"], card.get("root")) for card in cards] == [
        ("chat", "endpoint", ["chat"], "chat", None),
        ("chat:blue", "deployment", ["chat"], "chat", "m"),
        ("mini", "deployment", ["embeddings"], "embedding", "e"),
    ]
    assert {card["created"] for card in cards} == {1_700_000_000}
    assert [card["functionality"]["tool_call"] for card in cards] == [True, True, False]
    for card in cards[:2]:
        body = json.dumps({"model": card["id"], "messages": [{"role": "user", "content": "hi"}]}).encode()
        call = Friendli().parse("chat", Request("POST", "/dedicated/v1/chat/completions", body), CONTEXT)
        assert (call.model, call.deployment) == ("chat", None if card["kind"] == "endpoint" else "blue")


ERRORS: list[tuple[SwitchyardError, int, str, str | None]] = [
    (BadRequest("n: no", param="n"), 400, "invalid_request_error", "n"),
    (Unauthorized("who?"), 401, "authentication_error", None),
    (NotFound("no such model", param="model"), 404, "not_found_error", "model"),
    (Rejected("logprobs: too many", status=400, param="logprobs"), 400, "invalid_request_error", "logprobs"),
    (Rejected("Grammar error: odd", status=400), 400, "invalid_request_error", "response_format"),
    (Rejected("no_repeat_ngram must be", status=400), 400, "invalid_request_error", "no_repeat_ngram"),
    (Rejected("xtc_threshold: bad", status=400), 400, "invalid_request_error", "xtc_threshold"),
    (Rejected("beam.width: bad", status=400, param="beam.width"), 400, "invalid_request_error", "num_beams"),
    (Rejected("The engine refused it", status=400), 400, "invalid_request_error", None),
    (Unavailable("full", retry_after=1), 503, "server_error", None),
    (TimedOut("slow"), 504, "server_error", None),
    (DeadlinePassed("late"), 504, "server_error", None),
    (Broken("broken"), 502, "server_error", None),
    (InternalError("ours"), 500, "server_error", None),
]


@pytest.mark.parametrize(("error", "status", "kind", "param"), ERRORS)
def test_errors_name_the_field_as_the_client_does(
    error: SwitchyardError, status: int, kind: str, param: str | None
) -> None:
    answer = Friendli().render_error(error, "completions", Request("POST", "/x"))
    body = json.loads(answer.body)
    assert answer.status == status
    assert body["detail"] == body["error"]["message"]
    assert (body["error"]["type"], body["error"]["param"]) == (kind, param)
    assert param is None or param in body["detail"]
    assert "beam.width" not in body["detail"]


@pytest.mark.parametrize("name", ["timeout", "timeout_microseconds"])
def test_the_clients_own_timeout_is_a_429(name: str) -> None:
    request = Request("POST", "/x", json.dumps({name: 5, "prompt": "a"}).encode())
    answer = Friendli().render_error(DeadlinePassed("late"), "completions", request)
    assert answer.status == 429
    assert json.loads(answer.body)["error"] == {
        "message": f"{name}: the time for this request is over",
        "type": "rate_limit_error",
        "param": name,
        "code": "timeout",
    }
    null = Request("POST", "/x", json.dumps({name: None, "prompt": "a"}).encode())
    assert Friendli().render_error(DeadlinePassed("late"), "completions", null).status == 504


def test_errors_of_the_extended_route_name_the_clients_field() -> None:
    engine_body = {"error": {"message": "beam.length_penalty must be", "param": "beam.length_penalty", "code": 400}}
    error = engine_error(json.dumps(engine_body).encode(), 400)
    body = json.loads(Friendli().render_error(error, "completions", Request("POST", "/x")).body)
    assert body["error"]["param"] == "length_penalty"
    assert body["detail"] == "length_penalty must be"
