"""TGI's answers, streams and errors, and the requests on shared paths that it claims."""

import json
from random import Random
from typing import Any

import pytest

from app.config.schema import parse as parse_config
from app.dialects.azure.dialect import Azure
from app.dialects.base import (
    EVENT_STREAM,
    MALFORMED_ANSWER_ERRORS,
    Call,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Stream,
)
from app.dialects.openai import fields
from app.dialects.openai import fields as vllm_fields
from app.dialects.openai.dialect import OpenAI
from app.dialects.tgi.chat import Chat as TGIChat
from app.dialects.tgi.dialect import TGI
from app.errors import (
    BadRequest,
    Broken,
    HeadersTooLarge,
    Incomplete,
    InternalError,
    NotFound,
    Rejected,
    SwitchyardError,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unprocessable,
    WrongTask,
)
from app.sse import Decoder
from tests.support.clients.dialect_calls import outcome
from tests.support.clients.samples import CONFIG, CONTEXT, EOS, MODEL, SERVED
from tests.support.engine import engine_answers as completions

SERVING = ServingContext("blue", SERVED.settings, MODEL, total_s=0.5, engine_s=0.4)
TGI_3 = ParseContext(parse_config({**CONFIG.model_dump(exclude_unset=True), "tgi": {"profile": "tgi"}}), Random(0))
PROMPT = MODEL.encode("say hello")
HELLO = MODEL.encode("hello😀")


def parse(
    operation: str = "root", *, stream: bool = False, context: ParseContext = CONTEXT, agent: str = "", **fields: Any
) -> Call:
    body = json.dumps({"inputs": "say hello", "stream": stream, "parameters": fields}).encode()
    return TGI().parse(operation, Request("POST", "/", body, headers={"user-agent": agent}), context)


def answer(call: Call, *choices: dict[str, Any]) -> Any:
    """The client's answer if the engine's answer has these choices."""
    return json.loads(reply(call, *choices).body)


def reply(call: Call, *choices: dict[str, Any]) -> Reply:
    return call.translation.reply(json.dumps({"choices": choices}).encode(), SERVING)


def open_stream(call: Call) -> Stream:
    return call.translation.open_stream(SERVING)


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    assert b"\n\n\n" not in data
    return [json.loads(event.data) for event in Decoder().feed(data)]


def streamed(call: Call, choice: dict[str, Any]) -> list[Any]:
    """The events of a stream with one token per chunk."""
    stream = open_stream(call)
    parts = completions.portions(MODEL, choice, [1] * len(choice["token_ids"]))
    data = stream.feed(completions.stream(parts))
    assert stream.close() == b""
    return events(data)


def test_an_answer_without_details_is_the_text() -> None:
    assert answer(parse(), completions.choice(MODEL, PROMPT, HELLO, top=None)) == {"generated_text": "hello😀"}


def test_the_headers_have_the_times() -> None:
    headers = reply(parse(), completions.choice(MODEL, PROMPT, HELLO)).headers
    assert headers == {
        "x-compute-type": "gpu+optimized",
        "x-compute-characters": "9",
        "x-compute-time": "0.500000",
        "x-total-time": "500",
        "x-validation-time": "100",
        "x-queue-time": "0",
        "x-inference-time": "400",
        "x-time-per-token": str(round(400 / len(HELLO))),
        "x-prompt-tokens": str(len(PROMPT)),
        "x-generated-tokens": str(len(HELLO)),
    }


@pytest.mark.parametrize("flag", ["details", "decoder_input_details"])
def test_either_flag_adds_the_details(flag: str) -> None:
    flags: Any = {flag: True}
    call = parse(**flags, seed=7, do_sample=True)
    details = answer(call, completions.choice(MODEL, PROMPT, HELLO))["details"]
    assert list(details["tokens"][0]) == ["id", "text", "logprob", "special"]
    assert [token["id"] for token in details["tokens"]] == HELLO
    assert "".join(token["text"] for token in details["tokens"]) == "hello😀"
    assert details["tokens"][0]["logprob"] == -0.5
    assert {name: value for name, value in details.items() if name not in ("tokens", "prefill")} == {
        "finish_reason": "length",
        "generated_tokens": len(HELLO),
        "prompt_tokens": len(PROMPT),
        "input_length": len(PROMPT),
        "seed": 7,
    }
    if flag == "details":
        assert details["prefill"] == []
    else:
        assert [token["id"] for token in details["prefill"]] == PROMPT
        assert details["prefill"][0]["logprob"] is None
        assert details["prefill"][1]["logprob"] == -3.0


@pytest.mark.parametrize(
    ("end", "finish_reason"),
    [
        ({}, "length"),
        ({"finish_reason": "stop"}, "eos_token"),
        ({"finish_reason": "stop", "stop": "hello"}, "stop_sequence"),
    ],
)
def test_a_finish_reason_has_tgis_name(end: dict[str, Any], finish_reason: str) -> None:
    choice = completions.choice(MODEL, PROMPT, [*MODEL.encode("hello"), 0], **end)
    details = answer(parse(details=True), choice)["details"]
    assert details["finish_reason"] == finish_reason
    assert details["tokens"][-1] == {**details["tokens"][-1], "text": EOS, "special": True}


def test_an_end_at_the_last_allowed_token_counts_as_length() -> None:
    choice = completions.choice(MODEL, PROMPT, [*MODEL.encode("hello"), 0], finish_reason="stop")
    limit = len(choice["token_ids"])
    assert answer(parse(details=True, max_new_tokens=limit), choice)["details"]["finish_reason"] == "length"
    assert answer(parse(details=True, max_new_tokens=limit + 1), choice)["details"]["finish_reason"] == "eos_token"


def test_a_stop_token_is_eos_only_if_the_model_says_so() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO, finish_reason="stop")
    assert answer(parse(details=True), {**choice, "stop_reason": 5})["details"]["finish_reason"] == "stop_sequence"
    assert answer(parse(details=True), {**choice, "stop_reason": 0})["details"]["finish_reason"] == "eos_token"


@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_an_aborted_generation_is_a_failure(reason: str) -> None:
    with pytest.raises(Broken):
        answer(parse(details=True), completions.choice(MODEL, PROMPT, HELLO, finish_reason=reason))


def test_an_answer_without_an_end_is_incomplete() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO)
    with pytest.raises(Incomplete):
        answer(parse(), {**choice, "finish_reason": None})
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        answer(parse())


@pytest.mark.parametrize("wanted", [True, False])
def test_return_full_text_puts_the_prompt_first(wanted: bool) -> None:
    call = parse(return_full_text=wanted)
    expected = "say hellohello😀" if wanted else "hello😀"
    assert answer(call, completions.choice(MODEL, PROMPT, HELLO))["generated_text"] == expected
    last = streamed(parse(stream=True, return_full_text=wanted), completions.choice(MODEL, PROMPT, HELLO))[-1]
    assert last["generated_text"] == expected


@pytest.mark.parametrize(
    ("operation", "context", "prefixed"),
    [("root", TGI_3, True), ("generate", TGI_3, False), ("root", CONTEXT, False), ("generate", CONTEXT, False)],
)
def test_the_profile_may_put_the_prompt_first(operation: str, context: ParseContext, prefixed: bool) -> None:
    generated = answer(parse(operation, context=context), completions.choice(MODEL, PROMPT, HELLO))
    text = (generated[0] if isinstance(generated, list) else generated)["generated_text"]
    assert text == ("say hellohello😀" if prefixed else "hello😀")


@pytest.mark.parametrize(
    ("operation", "context", "agent", "fields", "is_list"),
    [
        pytest.param("root", CONTEXT, "", {}, False, id="MindIE's object"),
        pytest.param("root", CONTEXT, "", {"details": True, "seed": 1, "top_k": 5}, False, id="MindIE's fields"),
        pytest.param("root", TGI_3, "", {}, True, id="TGI's profile"),
        pytest.param("root", CONTEXT, "unknown/None; hf_hub/0.36.2", {}, True, id="Hugging Face's client"),
        *[
            pytest.param("root", CONTEXT, "", {name: None}, True, id=name)
            for name in ("best_of", "top_n_tokens", "grammar", "frequency_penalty", "adapter_id", "stop")
        ],
        pytest.param("invocations", TGI_3, "", {}, True, id="SageMaker's route"),
        pytest.param("generate", TGI_3, "hf_hub", {"stop": ["x"]}, False, id="generate"),
    ],
)
def test_the_answer_is_an_object_or_a_list(
    operation: str, context: ParseContext, agent: str, fields: dict[str, Any], is_list: bool
) -> None:
    call = parse(operation, context=context, agent=agent, **fields)
    assert isinstance(answer(call, completions.choice(MODEL, PROMPT, HELLO)), list) is is_list


@pytest.mark.parametrize(
    ("context", "fields", "reported"),
    [
        (CONTEXT, {}, True),
        (TGI_3, {}, False),
        (TGI_3, {"seed": 7}, False),
        (TGI_3, {"do_sample": True}, True),
        (CONTEXT, {"do_sample": True}, True),
    ],
)
def test_the_details_report_the_seed(context: ParseContext, fields: dict[str, Any], reported: bool) -> None:
    call = parse("generate", context=context, details=True, **fields)
    seed = answer(call, completions.choice(MODEL, PROMPT, HELLO))["details"]["seed"]
    assert (seed is not None) is reported
    if reported and "do_sample" in fields:
        assert seed == call.body["seed"]


def test_the_likeliest_candidate_is_the_answer_and_the_others_are_in_the_details() -> None:
    call = parse(best_of=2, do_sample=True, details=True, return_full_text=True)
    worse = completions.choice(MODEL, PROMPT, MODEL.encode("hello there"))
    better = completions.choice(MODEL, PROMPT, HELLO[:1], index=1)
    (best,) = answer(call, worse, better)
    (other,) = best["details"]["best_of_sequences"]
    assert best["generated_text"] == "say hello" + better["text"]
    assert other["generated_text"] == "say hello" + worse["text"]
    assert (other["seed"], best["details"]["seed"]) == (call.body["seed"], call.body["seed"] + 1)
    assert {"finish_reason", "generated_tokens", "prefill", "tokens"} <= set(other)


def test_top_tokens_are_reported_on_request() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO, top=2)
    top = answer(parse(details=True, top_n_tokens=2), choice)[0]["details"]["top_tokens"]
    assert [len(tokens) for tokens in top] == [2] * len(HELLO)
    assert top[0][0]["id"] == HELLO[0]
    assert "top_tokens" not in answer(parse(details=True), choice)["details"]
    event = streamed(parse(stream=True, top_n_tokens=2), choice)[0]
    assert [token["id"] for token in event["top_tokens"]] == [HELLO[0], 3]
    assert "top_tokens" not in streamed(parse(stream=True), choice)[0]


@pytest.mark.parametrize("operation", ["root", "generate_stream", "invocations"])
def test_a_stream_has_an_event_for_each_token(operation: str) -> None:
    call = parse(operation, stream=True, details=True, seed=7)
    assert call.translation.stream
    *others, last = parts = streamed(call, completions.choice(MODEL, PROMPT, HELLO))
    assert list(parts[0]) == ["index", "token", "generated_text", "details"]
    assert [event["index"] for event in parts] == list(range(1, len(HELLO) + 1))
    assert [event["token"]["id"] for event in parts] == HELLO
    assert all(event["generated_text"] is event["details"] is None for event in others)
    assert last["generated_text"] == "hello😀" == "".join(event["token"]["text"] for event in parts)
    assert last["details"] == {
        "finish_reason": "length",
        "generated_tokens": len(HELLO),
        "prompt_tokens": len(PROMPT),
        "input_length": len(PROMPT),
        "seed": 7,
    }


def test_the_last_event_has_details_only_on_request() -> None:
    assert streamed(parse(stream=True), completions.choice(MODEL, PROMPT, HELLO))[-1]["details"] is None


def test_generate_never_streams() -> None:
    assert not parse("generate", stream=True).translation.stream


def test_a_stream_has_the_compute_headers() -> None:
    headers = open_stream(parse(stream=True)).headers
    assert headers == {"x-compute-type": "gpu+optimized", "x-compute-characters": "9"}


def test_an_end_without_a_token_gets_a_special_token() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO)
    alone = {**choice, "text": "", "token_ids": [], "logprobs": None}
    data = completions.stream([{**choice, "finish_reason": None}, alone])
    last = events(open_stream(parse(stream=True)).feed(data))[-1]
    assert last["token"] == {"id": HELLO[-1], "text": "", "logprob": 0.0, "special": True}
    assert last["generated_text"] == "hello😀"


def test_an_engine_error_ends_a_stream() -> None:
    stream = open_stream(parse(stream=True))
    first = completions.portions(MODEL, completions.choice(MODEL, PROMPT, HELLO), [1])[:1]
    error = {"error": {"message": "CUDA", "type": "InternalServerError", "code": 500}}
    data = completions.stream(first)[: -len(b"data: [DONE]\n\n")] + completions.frame(error)
    token, failure = events(stream.feed(data) + stream.close())
    assert token["token"]["id"] == HELLO[0]
    assert failure == {
        "error": "Request failed during generation: The deployment failed while serving the request",
        "error_type": "generation",
    }
    assert stream.close() == b""


def test_a_stream_that_breaks_off_is_incomplete() -> None:
    (failure,) = events(open_stream(parse(stream=True)).close())
    assert failure["error_type"] == "incomplete_generation"
    assert failure["error"].startswith("Incomplete generation")


ERRORS: list[tuple[SwitchyardError, int, str | None, str]] = [
    (Unprocessable("`top_k` must be strictly positive"), 422, "validation", "Input validation error: `top_k` must be"),
    (Rejected("top_k: too large", status=400, param="top_k"), 422, "validation", "Input validation error: top_k: too"),
    (Rejected("Grammar error: odd", status=400), 422, "validation", "Input validation error: grammar is not valid: od"),
    (BadRequest("The body is not valid JSON"), 400, "validation", "Input validation error: The body"),
    (BadRequest("`inputs`: wrong", param="inputs"), 422, "validation", "Input validation error: `inputs`"),
    (BadRequest("inputs: stopped", param="inputs", code="content_filter"), 422, "validation", "inputs: stopped"),
    (WrongTask("model: does other things", param="model"), 422, "validation", "model: does other things"),
    (Unprocessable("no", code="suffix not supported"), 422, "suffix not supported", "no"),
    (NotFound("no such endpoint", param="model"), 404, "not_found", "no such endpoint"),
    (TooLarge("too large"), 413, "refused", "too large"),
    (HeadersTooLarge("too large"), 431, "refused", "too large"),
    (Unavailable("full", retry_after=1), 429, "overloaded", "Model is overloaded"),
    (Unavailable("gone"), 503, "healthcheck", "gone"),
    (Broken("failed"), 424, "generation", "Request failed during generation: failed"),
    (TimedOut("late"), 424, "generation", "Request failed during generation: late"),
    (Incomplete("cut off"), 500, "incomplete_generation", "Incomplete generation: cut off"),
    (InternalError("ours"), 500, "internal", "ours"),
]

IN_BAND = {"validation", "generation", "overloaded", "incomplete_generation"}


def error_reply(error: SwitchyardError, operation: str, body: Any = None) -> Reply:
    return TGI().render_error(
        error, operation, Request("POST", "/", b"" if body is None else json.dumps(body).encode())
    )


@pytest.mark.parametrize(("error", "status", "kind", "text"), ERRORS)
def test_errors_have_a_status_and_a_type(error: SwitchyardError, status: int, kind: str, text: str) -> None:
    reply = error_reply(error, "generate", {"inputs": "x", "stream": True})
    body = json.loads(reply.body)
    assert (reply.status, body["error_type"]) == (status, kind)
    assert text in body["error"]
    assert set(body) == {"error", "error_type"}


@pytest.mark.parametrize(("error", "status", "kind", "text"), ERRORS)
@pytest.mark.parametrize("operation", ["root", "generate_stream", "invocations"])
def test_an_error_before_a_stream_is_its_only_event(
    operation: str, error: SwitchyardError, status: int, kind: str, text: str
) -> None:
    reply = error_reply(error, operation, {"inputs": "x", "stream": True})
    if kind in IN_BAND and not isinstance(error, BadRequest):
        (body,) = events(reply.body)
        assert (reply.status, reply.media_type) == (200, EVENT_STREAM)
    else:
        body = json.loads(reply.body)
        assert reply.status == status
    assert body["error_type"] == kind
    assert text in body["error"]


def test_an_unauthorized_answer_is_empty() -> None:
    reply = error_reply(Unauthorized("no key"), "generate_stream", {"inputs": "x"})
    assert (reply.status, reply.body) == (401, b"")


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_an_error_before_a_chat_stream_is_its_only_event(operation: str) -> None:
    reply = error_reply(Unprocessable("no"), operation, {"stream": True})
    assert reply.status == 200
    (first,) = Decoder().feed(reply.body)
    assert json.loads(first.data)["error"] == {
        "message": "Input validation error: no",
        "http_status_code": 422,
        "type": "validation",
    }
    assert json.loads(first.data)["error_type"] == "validation"
    assert json.loads(error_reply(Unprocessable("no"), operation, {}).body)["error_type"] == "validation"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("gone"), 503),
        (TimedOut("late"), 503),
        (Broken("failed"), 503),
        (Unavailable("busy", retry_after=1), 200),
        (Rejected("no such route", status=404), 200),
        (NotFound("no such endpoint"), 404),
    ],
)
def test_a_health_check_fails_only_if_the_deployment_does(error: SwitchyardError, status: int) -> None:
    reply = error_reply(error, "health")
    assert reply.status == status
    if status == 503:
        assert json.loads(reply.body) == {"error": "unhealthy", "error_type": "healthcheck"}


def finished(call: Call) -> Any:
    """The answer of a call that needs no engine."""
    result = outcome(call, SERVING)
    assert isinstance(result, Reply)
    return json.loads(result.body)


def test_tokens_have_their_places_in_the_text() -> None:
    def tokens(text: str, **parameters: Any) -> Any:
        body = json.dumps({"inputs": text, "parameters": parameters}).encode()
        return finished(TGI().parse("tokenize", Request("POST", "/tokenize", body), CONTEXT))

    text = "hello 日本 😀"
    placed = tokens(text)
    assert [token["id"] for token in placed] == MODEL.encode(text)
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in placed)
    assert tokens(text, truncate=2) == placed[-2:]
    assert list(placed[0]) == ["id", "text", "start", "stop"]


def test_info_has_the_names_of_both_descriptions() -> None:
    info = finished(TGI().parse("info", Request("GET", "/info"), CONTEXT))
    assert (info["model_id"], info["max_total_tokens"], info["max_input_tokens"]) == ("blue", 100, 99)
    assert info["max_input_length"] == 99
    assert info["models"][0]["model_id"] == "blue"


def test_the_model_list_has_the_mounted_endpoint() -> None:
    request = Request("GET", "/", params={"endpoint": "chat"}, configured_at=1_700_000_000)
    (card,) = json.loads(TGI().answer("models", request, CONFIG).body)["data"]
    assert (card["id"], card["kind"], card["created"]) == ("chat", "endpoint", 1_700_000_000)
    assert card["tasks"] == list(CONFIG.endpoints["chat"].tasks)
    assert json.loads(TGI().answer("models", Request("GET", "/"), CONFIG).body)["data"][0]["id"] == "chat"
    with pytest.raises(NotFound):
        TGI().answer("models", Request("GET", "/", params={"endpoint": "gone"}), CONFIG)


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "claimed"),
    [
        ("/v1/chat/completions", {**CHAT, "model": "chat"}, False),
        ("/v1/chat/completions", {**CHAT, "model": "tgi"}, True),
        ("/v1/chat/completions", {**CHAT, "model": "dummy"}, True),
        ("/v1/chat/completions", {**CHAT, "model": "https://llm.example.com"}, True),
        ("/v1/chat/completions", {**CHAT, "model": "https://llm.example.com/another"}, False),
        ("/v1/chat/completions", CHAT, True),
        ("/v1/chat/completions", {**CHAT, "model": None}, True),
        ("/v1/chat/completions", {**CHAT, "model": "c", "response_format": {"type": "json", "value": {}}}, True),
        ("/v1/chat/completions", {**CHAT, "model": "c", "response_format": {"type": "json_object"}}, False),
        ("/v1/chat/completions", {**CHAT, "model": "c", "metadata": {"value": "tgi", "model": "tgi"}}, False),
        ("/v1/chat/completions", {"model": "c", "messages": [{"role": "user", "content": '"model": "tgi"'}]}, False),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 5, "guideline": "g"}, True),
        ("/v1/chat/completions", {**CHAT, "model": "tgi", "top_k": 5}, True),
        ("/v1/chat/completions", {**CHAT, "top_k": 5, "response_format": {"type": "json", "value": {}}}, True),
        ("/v1/chat/completions", [], False),
        ("/tokenize", {"inputs": "x"}, True),
        ("/tokenize", {"prompt": "x"}, False),
        ("/tokenize", CHAT, False),
        ("/tokenize", {}, False),
        ("/tokenize", {"promt": "x"}, False),
        ("/tokenize", {"model": "chat"}, False),
        ("/invocations", {"inputs": "x"}, True),
        ("/invocations", CHAT, False),
        ("/invocations", {"prompt": "x"}, False),
        ("/invocations", {"promt": "x"}, False),
        ("/generate", {}, True),
    ],
)
def test_the_body_decides_who_claims_a_shared_path(path: str, body: Any, claimed: bool) -> None:
    route = next(route for route in TGI.routes if route.path == path)
    assert TGI().claims(route, Request("POST", path, json.dumps(body).encode())) is claimed
    if path in ("/tokenize", "/invocations", "/v1/chat/completions"):
        assert any(route.path == path for route in OpenAI.routes)


ONLY_OPENAIS = sorted((fields.Chat.model_fields.keys() | vllm_fields.ENGINE_CHAT) - TGIChat.model_fields.keys())


@pytest.mark.parametrize("model", [{}, {"model": None}])
@pytest.mark.parametrize("name", [*ONLY_OPENAIS, "max_token"])
def test_a_chat_without_a_model_is_not_tgis_where_tgi_would_ignore_a_field(name: str, model: dict[str, Any]) -> None:
    route = next(route for route in TGI.routes if route.path == "/v1/chat/completions")
    body = json.dumps({**CHAT, **model, name: 1}).encode()
    assert not TGI().claims(route, Request("POST", route.path, body))


def test_a_chat_of_the_openai_sdk_is_tgis_only_if_it_says_so() -> None:
    route = next(route for route in TGI.routes if route.path == "/v1/chat/completions")
    for body, claimed in ((CHAT, False), ({**CHAT, "model": "tgi"}, True)):
        for headers in ({"x-stainless-lang": "python"}, {"user-agent": "OpenAI/Python 2.0"}):
            request = Request("POST", route.path, json.dumps(body).encode(), headers=headers)
            assert TGI().claims(route, request) is claimed


def test_azure_has_an_info_route_too() -> None:
    assert any(route.path == "/info" for route in Azure.routes)
    assert any(route.path == "/info" for route in TGI.routes)
