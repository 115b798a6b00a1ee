"""TGI's answers, streams and errors, and which requests on shared paths are its."""

import json
from random import Random
from typing import Any

import pytest

from app.config.schema import parse as parse_config
from app.dialects.azure.dialect import Azure
from app.dialects.base import EVENT_STREAM, ParseContext, Reply, Request, ServingContext
from app.dialects.legacy import Call
from app.dialects.openai.dialect import OpenAI
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
from tests.support import engine_answers as completions
from tests.support.samples import CONFIG, CONTEXT, EOS, MODEL, SERVED

DEPLOYED = ServingContext("blue", SERVED.settings, MODEL, total_s=0.5, engine_s=0.4)
TGI_3 = ParseContext(parse_config({**CONFIG.model_dump(exclude_unset=True), "tgi": {"profile": "tgi"}}), Random(0))
PROMPT = MODEL.encode("say hello")
HELLO = MODEL.encode("hello😀")


def parse(
    operation: str = "root", *, stream: bool = False, context: ParseContext = CONTEXT, agent: str = "", **fields: Any
) -> Call:
    body = json.dumps({"inputs": "say hello", "stream": stream, "parameters": fields}).encode()
    return TGI().parse(operation, Request("POST", "/", body, headers={"user-agent": agent}), context)


def answered(call: Call, *choices: dict[str, Any]) -> Any:
    """What the client gets for a whole answer of the engine's."""
    return json.loads(rendered(call, *choices).body)


def rendered(call: Call, *choices: dict[str, Any]) -> Reply:
    return TGI().render(call, json.dumps({"choices": choices}).encode(), DEPLOYED)


def events(data: bytes) -> list[Any]:
    assert data.endswith(b"\n\n")
    assert b"\n\n\n" not in data
    return [json.loads(event.data) for event in Decoder().feed(data)]


def streamed(call: Call, choice: dict[str, Any]) -> list[Any]:
    """The events of a stream with one token in a chunk."""
    stream = TGI().stream(call, DEPLOYED)
    parts = completions.portions(MODEL, choice, [1] * len(choice["token_ids"]))
    data = stream.feed(completions.stream(parts))
    assert stream.close() == b""
    return events(data)


def test_the_text_alone() -> None:
    assert answered(parse(), completions.choice(MODEL, PROMPT, HELLO, top=None)) == {"generated_text": "hello😀"}


def test_the_headers_tell_the_time() -> None:
    headers = rendered(parse(), completions.choice(MODEL, PROMPT, HELLO)).headers
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
def test_either_flag_gives_the_details(flag: str) -> None:
    flags: Any = {flag: True}
    call = parse(**flags, seed=7, do_sample=True)
    details = answered(call, completions.choice(MODEL, PROMPT, HELLO))["details"]
    assert list(details["tokens"][0]) == ["id", "text", "logprob", "special"]
    assert [token["id"] for token in details["tokens"]] == HELLO
    assert "".join(token["text"] for token in details["tokens"]) == "hello😀"
    assert details["tokens"][0]["logprob"] == -0.5
    told = {name: value for name, value in details.items() if name not in ("tokens", "prefill")}
    assert told == {
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
def test_the_finish_reasons(end: dict[str, Any], finish_reason: str) -> None:
    choice = completions.choice(MODEL, PROMPT, [*MODEL.encode("hello"), 0], **end)
    details = answered(parse(details=True), choice)["details"]
    assert details["finish_reason"] == finish_reason
    assert details["tokens"][-1] == {**details["tokens"][-1], "text": EOS, "special": True}


def test_an_end_at_the_last_allowed_token_is_its_length() -> None:
    choice = completions.choice(MODEL, PROMPT, [*MODEL.encode("hello"), 0], finish_reason="stop")
    limit = len(choice["token_ids"])
    assert answered(parse(details=True, max_new_tokens=limit), choice)["details"]["finish_reason"] == "length"
    assert answered(parse(details=True, max_new_tokens=limit + 1), choice)["details"]["finish_reason"] == "eos_token"


def test_a_stop_token_is_an_end_only_if_it_is_one() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO, finish_reason="stop")
    told = answered(parse(details=True), {**choice, "stop_reason": 5})
    assert told["details"]["finish_reason"] == "stop_sequence"
    assert answered(parse(details=True), {**choice, "stop_reason": 0})["details"]["finish_reason"] == "eos_token"


@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_an_engine_that_gives_up_has_failed(reason: str) -> None:
    with pytest.raises(Broken):
        answered(parse(details=True), completions.choice(MODEL, PROMPT, HELLO, finish_reason=reason))


def test_an_answer_without_an_end_is_incomplete() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO)
    with pytest.raises(Incomplete):
        answered(parse(), {**choice, "finish_reason": None})
    with pytest.raises(Broken):
        answered(parse())


@pytest.mark.parametrize("wanted", [True, False])
def test_the_prompt_comes_first_where_it_is_asked_for(wanted: bool) -> None:
    call = parse(return_full_text=wanted)
    expected = "say hellohello😀" if wanted else "hello😀"
    assert answered(call, completions.choice(MODEL, PROMPT, HELLO))["generated_text"] == expected
    last = streamed(parse(stream=True, return_full_text=wanted), completions.choice(MODEL, PROMPT, HELLO))[-1]
    assert last["generated_text"] == expected


@pytest.mark.parametrize(
    ("operation", "context", "prefixed"),
    [("root", TGI_3, True), ("generate", TGI_3, False), ("root", CONTEXT, False), ("generate", CONTEXT, False)],
)
def test_the_prompt_comes_first_by_profile(operation: str, context: ParseContext, prefixed: bool) -> None:
    told = answered(parse(operation, context=context), completions.choice(MODEL, PROMPT, HELLO))
    text = (told[0] if isinstance(told, list) else told)["generated_text"]
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
def test_an_object_or_a_list(
    operation: str, context: ParseContext, agent: str, fields: dict[str, Any], is_list: bool
) -> None:
    call = parse(operation, context=context, agent=agent, **fields)
    assert isinstance(answered(call, completions.choice(MODEL, PROMPT, HELLO)), list) is is_list


@pytest.mark.parametrize(
    ("context", "fields", "told"),
    [
        (CONTEXT, {}, True),
        (TGI_3, {}, False),
        (TGI_3, {"seed": 7}, False),
        (TGI_3, {"do_sample": True}, True),
        (CONTEXT, {"do_sample": True}, True),
    ],
)
def test_the_seed_is_told(context: ParseContext, fields: dict[str, Any], told: bool) -> None:
    call = parse("generate", context=context, details=True, **fields)
    seed = answered(call, completions.choice(MODEL, PROMPT, HELLO))["details"]["seed"]
    assert (seed is not None) is told
    if told and "do_sample" in fields:
        assert seed == call.body["seed"]


def test_of_several_the_likeliest_is_the_answer_and_the_others_are_told() -> None:
    call = parse(best_of=2, do_sample=True, details=True, return_full_text=True)
    worse = completions.choice(MODEL, PROMPT, MODEL.encode("hello there"))
    better = completions.choice(MODEL, PROMPT, HELLO[:1], index=1)
    (told,) = answered(call, worse, better)
    (other,) = told["details"]["best_of_sequences"]
    assert told["generated_text"] == "say hello" + better["text"]
    assert other["generated_text"] == "say hello" + worse["text"]
    assert (other["seed"], told["details"]["seed"]) == (call.body["seed"], call.body["seed"] + 1)
    assert {"finish_reason", "generated_tokens", "prefill", "tokens"} <= set(other)


def test_the_likeliest_tokens_are_told_where_they_are_asked_for() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO, top=2)
    top = answered(parse(details=True, top_n_tokens=2), choice)[0]["details"]["top_tokens"]
    assert [len(tokens) for tokens in top] == [2] * len(HELLO)
    assert top[0][0]["id"] == HELLO[0]
    assert "top_tokens" not in answered(parse(details=True), choice)["details"]
    event = streamed(parse(stream=True, top_n_tokens=2), choice)[0]
    assert [token["id"] for token in event["top_tokens"]] == [HELLO[0], 3]
    assert "top_tokens" not in streamed(parse(stream=True), choice)[0]


@pytest.mark.parametrize("operation", ["root", "generate_stream", "invocations"])
def test_a_stream_has_an_event_for_each_token(operation: str) -> None:
    call = parse(operation, stream=True, details=True, seed=7)
    assert call.stream
    told = streamed(call, completions.choice(MODEL, PROMPT, HELLO))
    assert list(told[0]) == ["index", "token", "generated_text", "details"]
    assert [event["index"] for event in told] == list(range(1, len(HELLO) + 1))
    assert [event["token"]["id"] for event in told] == HELLO
    assert all(event["generated_text"] is event["details"] is None for event in told[:-1])
    assert told[-1]["generated_text"] == "hello😀" == "".join(event["token"]["text"] for event in told)
    assert told[-1]["details"] == {
        "finish_reason": "length",
        "generated_tokens": len(HELLO),
        "prompt_tokens": len(PROMPT),
        "input_length": len(PROMPT),
        "seed": 7,
    }


def test_the_last_event_has_details_only_where_they_are_asked_for() -> None:
    assert streamed(parse(stream=True), completions.choice(MODEL, PROMPT, HELLO))[-1]["details"] is None


def test_generate_never_streams() -> None:
    assert not parse("generate", stream=True).stream


def test_a_streams_headers() -> None:
    headers = TGI().stream(parse(stream=True), DEPLOYED).headers
    assert headers == {"x-compute-type": "gpu+optimized", "x-compute-characters": "9"}


def test_an_ending_of_its_own_hangs_on_a_token_that_is_no_text() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO)
    alone = {**choice, "text": "", "token_ids": [], "logprobs": None}
    told = events(
        TGI().stream(parse(stream=True), DEPLOYED).feed(completions.stream([{**choice, "finish_reason": None}, alone]))
    )
    assert told[-1]["token"] == {"id": HELLO[-1], "text": "", "logprob": 0.0, "special": True}
    assert told[-1]["generated_text"] == "hello😀"


def test_the_engines_error_ends_a_stream() -> None:
    stream = TGI().stream(parse(stream=True), DEPLOYED)
    first = completions.portions(MODEL, completions.choice(MODEL, PROMPT, HELLO), [1])[:1]
    error = {"error": {"message": "CUDA", "type": "InternalServerError", "code": 500}}
    told = events(stream.feed(completions.stream(first)[: -len(b"data: [DONE]\n\n")] + completions.frame(error)))
    assert told[0]["token"]["id"] == HELLO[0]
    assert told[1] == {
        "error": "Request failed during generation: The deployment failed while serving the request",
        "error_type": "generation",
    }
    assert stream.close() == b""


def test_a_stream_that_breaks_off_is_incomplete() -> None:
    (told,) = events(TGI().stream(parse(stream=True), DEPLOYED).close())
    assert told["error_type"] == "incomplete_generation"
    assert told["error"].startswith("Incomplete generation")


ERRORS: list[tuple[SwitchyardError, int, str | None, str]] = [
    (Unprocessable("`top_k` must be strictly positive"), 422, "validation", "Input validation error: `top_k` must be"),
    (Rejected("max_tokens: too large", status=400, param="max_tokens"), 422, "validation", "max_new_tokens: too large"),
    (Rejected("Grammar error: odd", status=400), 422, "validation", "Input validation error: grammar is not valid: od"),
    (BadRequest("The body is not valid JSON"), 400, "validation", "Input validation error: The body"),
    (BadRequest("`inputs`: wrong", param="inputs"), 422, "validation", "Input validation error: `inputs`"),
    (BadRequest("prompt: stopped", param="prompt", code="content_filter"), 422, "validation", "inputs: stopped"),
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
    told = json.loads(reply.body)
    assert (reply.status, told["error_type"]) == (status, kind)
    assert text in told["error"]
    assert set(told) == {"error", "error_type"}


@pytest.mark.parametrize(("error", "status", "kind", "text"), ERRORS)
@pytest.mark.parametrize("operation", ["root", "generate_stream", "invocations"])
def test_on_a_stream_they_are_its_only_event(
    operation: str, error: SwitchyardError, status: int, kind: str, text: str
) -> None:
    reply = error_reply(error, operation, {"inputs": "x", "stream": True})
    if kind in IN_BAND and not isinstance(error, BadRequest):
        (told,) = events(reply.body)
        assert (reply.status, reply.media_type) == (200, EVENT_STREAM)
    else:
        told = json.loads(reply.body)
        assert reply.status == status
    assert told["error_type"] == kind
    assert text in told["error"]


def test_without_credentials_the_answer_is_empty() -> None:
    reply = error_reply(Unauthorized("no key"), "generate_stream", {"inputs": "x"})
    assert (reply.status, reply.body) == (401, b"")


@pytest.mark.parametrize("operation", ["chat", "completions"])
def test_errors_of_a_chat_stream_have_openais_end(operation: str) -> None:
    reply = error_reply(Unprocessable("no"), operation, {"stream": True})
    assert reply.status == 200
    first, last = Decoder().feed(reply.body)
    assert json.loads(first.data)["error"] == {
        "message": "Input validation error: no",
        "http_status_code": 422,
        "type": "validation",
    }
    assert json.loads(first.data)["error_type"] == "validation"
    assert last.data == "[DONE]"
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
def test_health(error: SwitchyardError, status: int) -> None:
    reply = error_reply(error, "health")
    assert reply.status == status
    if status == 503:
        assert json.loads(reply.body) == {"error": "unhealthy", "error_type": "healthcheck"}


def test_tokens_with_their_places() -> None:
    def tokens(text: str, **parameters: Any) -> Any:
        body = json.dumps({"inputs": text, "parameters": parameters}).encode()
        call = TGI().parse("tokenize", Request("POST", "/tokenize", body), CONTEXT)
        assert call.path is None
        assert call.fit is not None
        fitted = json.dumps(call.fit(call.body, DEPLOYED)).encode()
        return json.loads(TGI().render(call, fitted, DEPLOYED).body)

    text = "hello 日本 😀"
    told = tokens(text)
    assert [token["id"] for token in told] == MODEL.encode(text)
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in told)
    assert tokens(text, truncate=2) == told[-2:]
    assert list(told[0]) == ["id", "text", "start", "stop"]


def test_info_has_both_descriptions_names() -> None:
    call = TGI().parse("info", Request("GET", "/info"), CONTEXT)
    told = json.loads(TGI().render(call, b"{}", DEPLOYED).body)
    assert (told["model_id"], told["max_total_tokens"], told["max_input_tokens"]) == ("m", 100, 99)
    assert told["max_input_length"] == 99
    assert told["models"][0]["model_id"] == "m"


def test_models() -> None:
    reply = TGI().answer("models", Request("GET", "/", params={"endpoint": "chat"}), CONFIG)
    assert [card["id"] for card in json.loads(reply.body)["data"]] == ["chat"]
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
        ("/v1/chat/completions", CHAT, True),
        ("/v1/chat/completions", {**CHAT, "model": None}, True),
        ("/v1/chat/completions", {**CHAT, "model": "c", "response_format": {"type": "json", "value": {}}}, True),
        ("/v1/chat/completions", {**CHAT, "model": "c", "response_format": {"type": "json_object"}}, False),
        ("/v1/chat/completions", {**CHAT, "model": "c", "metadata": {"value": "tgi", "model": "tgi"}}, False),
        ("/v1/chat/completions", {"model": "c", "messages": [{"role": "user", "content": '"model": "tgi"'}]}, False),
        ("/v1/chat/completions", [], False),
        ("/tokenize", {"inputs": "x"}, True),
        ("/tokenize", {"prompt": "x"}, False),
        ("/tokenize", CHAT, False),
        ("/tokenize", {}, True),
        ("/invocations", {"inputs": "x"}, True),
        ("/invocations", CHAT, False),
        ("/invocations", {"prompt": "x"}, False),
        ("/generate", {}, True),
    ],
)
def test_the_body_tells_whose_a_shared_path_is(path: str, body: Any, claimed: bool) -> None:
    route = next(route for route in TGI.routes if route.path == path)
    assert TGI().claims(route, Request("POST", path, json.dumps(body).encode())) is claimed
    if path in ("/tokenize", "/invocations", "/v1/chat/completions"):
        assert any(route.path == path for route in OpenAI.routes)


def test_info_is_azures_first() -> None:
    assert any(route.path == "/info" for route in Azure.routes)
    assert any(route.path == "/info" for route in TGI.routes)
