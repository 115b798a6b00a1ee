"""The official OpenAI SDK against the real application."""

import base64
import json
import math
import socket
import struct
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from tests.real.conftest import Application, at_once
from tests.support.clients.conversations import MESSAGES, QUESTION, STRUCTURED, TOOL, answers

pytestmark = pytest.mark.real

GREEDY: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}


def test_a_chat_is_answered(application: Application) -> None:
    answer = application.sdk.chat.completions.create(**GREEDY)
    assert answers(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model in ("smollm2-blue", "smollm2-green")
    assert answer.system_fingerprint.startswith(f"{answer.model}-vllm-")
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("deployment", ["smollm2-blue", "smollm2-green"])
def test_the_streamed_answer_equals_the_whole_one(application: Application, deployment: str) -> None:
    request = GREEDY | {"model": deployment}
    whole = application.sdk.chat.completions.create(**request)
    chunks = list(application.sdk.chat.completions.create(**request, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert {chunk.model for chunk in chunks} == {whole.model} == {deployment}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)


def test_trailers_are_no_headers(application: Application) -> None:
    """Through the ingress, too. Serve makes the router's server; this fails if that takes another protocol."""
    body = json.dumps(GREEDY).encode()
    parts = [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n",
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%s\r\n0\r\nazureml-model-deployment: there-is-none\r\n\r\n" % (len(body), body),
    ]
    url = httpx.URL(application.url)
    with socket.create_connection((url.host, url.port or 80), timeout=60) as connection:
        connection.sendall(b"".join(parts))
        with connection.makefile("rb") as answer:
            received = answer.read()
    assert received.startswith(b"HTTP/1.1 200"), received
    assert b"azureml-model-deployment: smollm2-" in received.lower()


def test_with_include_usage_the_stream_ends_with_usage(application: Application) -> None:
    options = {"include_usage": True}
    *_, last = application.sdk.chat.completions.create(**GREEDY, stream=True, stream_options=options)
    assert last.choices == []
    assert last.usage.completion_tokens > 0


async def test_the_async_sdk_streams(application: Application) -> None:
    async with openai.AsyncOpenAI(base_url=f"{application.url}/v1", api_key="unused") as sdk:
        chat: Any = sdk.chat.completions
        stream = await chat.create(**GREEDY, stream=True)
        assert answers("".join([c.choices[0].delta.content or "" async for c in stream]))


def test_the_stream_on_the_wire_has_the_form_that_every_parser_reads(application: Application) -> None:
    with httpx.stream("POST", f"{application.url}/v1/chat/completions", json={**GREEDY, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        body = b"".join(answer.iter_raw()).decode()
    *frames, done, end = body.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert "\r" not in body
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_tool_is_called(application: Application, choice: Any) -> None:
    answer = application.sdk.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[TOOL],
        tool_choice=choice,
        temperature=0,
        max_tokens=64,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)


@pytest.mark.parametrize(("tokens", "calls"), [(16, []), (26, ["get_weather"])], ids=["in its name", "after its name"])
def test_a_forced_call_that_is_cut_short_is_the_same_in_whole_answers_and_in_streams(
    application: Application, tokens: int, calls: list[str]
) -> None:
    say = {"role": "user", "content": "What is the weather in Paris?"}
    fields: dict[str, Any] = {
        "model": "smollm2-blue",
        "input": [say],
        "tools": [{"type": "function", **TOOL["function"]}],
        "tool_choice": "required",
        "temperature": 0,
        "max_output_tokens": tokens,
    }
    answer, whole, (*_, last) = at_once(
        lambda: application.sdk.chat.completions.create(
            model="smollm2-blue", messages=[say], tools=[TOOL], tool_choice="required", temperature=0, max_tokens=tokens
        ),
        lambda: application.sdk.responses.create(**fields),
        lambda: list(application.sdk.responses.create(**fields, stream=True)),
    )
    message = answer.choices[0].message
    assert [call.function.name for call in message.tool_calls or []] == calls
    assert not message.content
    for response in (whole, last.response):
        assert (response.status, response.output_text) == ("incomplete", "")
        assert [(item.type, item.name, item.status) for item in response.output] == [
            ("function_call", name, "incomplete") for name in calls
        ]


def test_a_json_schema_is_kept_to(application: Application) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = application.sdk.chat.completions.create(
        **{**GREEDY, **STRUCTURED, "model": "smollm2-blue"},
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
    )
    document = json.loads(answer.choices[0].message.content)
    assert document["city"] in ("Paris", "Rome")
    assert 0 <= document["people"] <= 99


MUTUAL = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
SCHEMAS: list[dict[str, Any]] = [{"$ref": "#"}, MUTUAL, {"type": "string", "pattern": r"[^\s\S]"}, {"enum": []}]
NOTHING: list[dict[str, Any]] = [
    *(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
        for schema in SCHEMAS
    ),
    {"structured_outputs": {"regex": r"[^\s\S]"}},
    {"structured_outputs": {"regex": "(?!)"}},
    {"structured_outputs": {"grammar": "root ::= root"}},
    {"structured_outputs": {"choice": []}},
]
"""Constraints that admit no text, rejected by the router or by vLLM."""


@pytest.mark.parametrize("stream", [False, True])
def test_constraints_that_admit_nothing_are_rejected_by_name_and_open_no_breaker(
    application: Application, stream: bool
) -> None:
    request = {**GREEDY, "model": "smollm2-blue", "stream": stream}
    for fields in NOTHING:
        with pytest.raises(openai.BadRequestError) as raised:
            application.sdk.chat.completions.create(**request, extra_body=fields)
        assert raised.value.param == next(iter(fields))
    assert httpx.get(f"{application.url}/ready").json()["open_breakers"] == []
    assert application.sdk.chat.completions.create(**{**request, "stream": False}).model == "smollm2-blue"


def test_logprobs_are_given_for_every_token(application: Application) -> None:
    answer = application.sdk.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(max(top.logprob for top in token.top_logprobs), abs=1e-4)


def test_several_choices_are_given(application: Application) -> None:
    answer = application.sdk.chat.completions.create(**{**GREEDY, "temperature": 1.5}, n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_several_greedy_choices_all_equal_the_greedy_answer(application: Application) -> None:
    create = partial(application.sdk.chat.completions.create, **{**GREEDY, "model": "smollm2-green"})
    one, two = at_once(create, partial(create, n=2))
    text = one.choices[0].message.content
    assert [choice.message.content for choice in two.choices] == [text, text]


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(application: Application) -> None:
    answer = application.sdk.chat.completions.create(**{**GREEDY, "model": "smollm2-green"}, stop=["Blue"])
    assert answer.choices[0].message.content.endswith("Red, ")
    assert answer.choices[0].finish_reason == "stop"


def test_reaching_the_length_limit_is_the_finish_reason(application: Application) -> None:
    answer = application.sdk.chat.completions.create(**{**GREEDY, "max_tokens": 2})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


def test_the_same_seed_gives_the_same_answer(application: Application) -> None:
    fields = {**GREEDY, "model": "smollm2-green", "temperature": 1.2}
    create = partial(application.sdk.chat.completions.create, **fields)
    sampled = at_once(*(partial(create, seed=seed) for seed in (7, 7, 8)))
    first, second, other = (answer.choices[0].message.content for answer in sampled)
    assert first == second
    assert first != other


def test_completions_take_text_ids_and_batches(application: Application) -> None:
    ask = application.sdk.completions.create
    text, batch, ids, streamed = at_once(
        lambda: ask(model="chat", prompt="The capital of France is", temperature=0, max_tokens=4),
        lambda: ask(model="chat", prompt=["One two three", "Red green"], temperature=0, max_tokens=3, echo=True),
        lambda: ask(model="chat", prompt=[504, 260], max_tokens=2),
        lambda: list(ask(model="chat", prompt="Once upon a time", max_tokens=5, temperature=0, stream=True)),
    )
    assert text.choices[0].text
    assert [choice.text.split()[0] for choice in batch.choices] == ["One", "Red"]
    assert ids.usage.prompt_tokens == 2
    assert "".join(chunk.choices[0].text for chunk in streamed)


def test_best_of_returns_the_likeliest_answers(application: Application) -> None:
    request = {"model": "smollm2-green", "prompt": "Once upon a time", "max_tokens": 6, "temperature": 1.3, "seed": 3}
    create = partial(application.sdk.completions.create, **request)
    all_four, best_of_four = at_once(partial(create, n=4, logprobs=0), partial(create, best_of=4))
    every, (kept,) = all_four.choices, best_of_four.choices
    best = max(every, key=lambda c: sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs))
    assert kept.text == best.text
    assert kept.logprobs is None


def test_embeddings_come_as_floats_or_base64(application: Application) -> None:
    floats = application.sdk.embeddings.create(model="embed", input="hello", encoding_format="float")
    packed = httpx.post(
        f"{application.url}/v1/embeddings", json={"model": "embed", "input": "hello", "encoding_format": "base64"}
    ).json()["data"][0]["embedding"]
    vector = struct.unpack(f"<{384}f", base64.b64decode(packed))
    assert floats.data[0].embedding == pytest.approx(vector, abs=1e-6)
    assert math.fsum(x * x for x in vector) == pytest.approx(1, abs=1e-3)
    assert floats.usage.prompt_tokens == floats.usage.total_tokens > 0


def test_embeddings_take_ids_lists_and_batches_of_256(application: Application) -> None:
    create = application.sdk.embeddings.create
    texts = [f"sentence number {i}" for i in range(256)]
    batch = create(model="embed", input=texts)
    assert [item.index for item in batch.data] == list(range(256))
    one = create(model="embed", input=texts[200]).data[0].embedding
    assert cosine(one, batch.data[200].embedding) > 0.9999
    ids = create(model="embed", input=[101, 7592, 102]).data[0].embedding
    assert cosine(ids, create(model="embed", input="hello").data[0].embedding) > 0.9999
    assert len(create(model="embed", input=[[101, 7592, 102], [101, 2088, 102]]).data) == 2


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_dimensions_that_the_model_cannot_give_are_rejected(application: Application) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        application.sdk.embeddings.create(model="embed", input="hello", dimensions=64)


def test_responses_whole_and_streamed(application: Application) -> None:
    request = {"model": "chat", "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    create = partial(application.sdk.responses.create, **request)
    answer, events, cut = at_once(
        create, lambda: list(create(stream=True)), lambda: list(create(max_output_tokens=2, stream=True))
    )
    assert answer.status == "completed"
    assert answers(answer.output_text)
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert answers("".join(event.delta for event in events if event.type == "response.output_text.delta"))
    (done,) = (event.item for event in cut if event.type == "response.output_item.done")
    assert cut[-1].type == "response.incomplete"
    assert (cut[-1].response.status, done.status) == ("incomplete", "incomplete")
    assert (done.id, cut[-1].response.error, cut[-1].response.store) == (cut[-1].response.output[0].id, None, False)


def test_a_conversation_continues_when_its_history_is_sent(application: Application) -> None:
    turns = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    fields: dict[str, Any] = {"model": "smollm2-green", "temperature": 0}
    chats = [{"role": "system", "content": "Be brief."}, *turns]
    responses, chat = at_once(
        lambda: application.sdk.responses.create(**fields, instructions="Be brief.", input=turns, max_output_tokens=16),
        lambda: application.sdk.chat.completions.create(**fields, messages=chats, max_completion_tokens=16),
    )
    assert responses.output_text == chat.choices[0].message.content
    assert responses.usage.input_tokens == chat.usage.prompt_tokens


def test_the_models_can_be_listed(application: Application) -> None:
    names = [model.id for model in application.sdk.models.list()]
    assert names == ["chat", "embed", "smollm2-blue", "smollm2-green", "minilm"]
    assert application.sdk.models.retrieve("smollm2-blue").object == "model"


ERRORS: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = [
    ({"model": "gone"}, openai.NotFoundError, "model"),
    ({"model": "embed"}, openai.BadRequestError, "model"),
    ({"messages": []}, openai.BadRequestError, "messages"),
    ({"temperature": 3}, openai.BadRequestError, "temperature"),
    ({"n": "two"}, openai.BadRequestError, "n"),
    ({"max_tokens": 9000}, openai.BadRequestError, "messages"),
    ({"extra_body": {"top_k": -5}}, openai.BadRequestError, "top_k"),
    ({"extra_body": {"min_p": 7}}, openai.BadRequestError, "min_p"),
    ({"extra_body": {"unheard_of": 1}}, openai.BadRequestError, "unheard_of"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, openai.BadRequestError, "messages"),
    ({"response_format": {"type": "yaml"}}, openai.BadRequestError, "response_format"),
    ({"stop": [""]}, openai.BadRequestError, None),
]


@pytest.mark.parametrize(("fields", "kind", "param"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_raise_the_sdks_exceptions(
    application: Application, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str | None, stream: bool
) -> None:
    with pytest.raises(kind) as raised:
        application.sdk.chat.completions.create(**{**GREEDY, **fields}, stream=stream)
    assert raised.value.type == "invalid_request_error"
    assert raised.value.param is None or param is None or raised.value.param.startswith(param)
    assert param is None or param in raised.value.message
    assert "Traceback" not in raised.value.message
    assert raised.value.request_id


def test_anthropics_sdk_works(application: Application) -> None:
    import anthropic

    request = {"model": "chat", "max_tokens": 24, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=application.url, api_key="unused", max_retries=0) as client:
        sdk: Any = client

        def streamed() -> str:
            with sdk.messages.stream(**request) as stream:
                return "".join(stream.text_stream)

        whole, text = at_once(lambda: sdk.messages.create(**request), streamed)
        assert answers(whole.content[0].text)
        assert answers(text)
        assert sdk.messages.count_tokens(model="chat", messages=MESSAGES).input_tokens > 5
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            sdk.messages.create(**{**request, "max_tokens": 9_000})
