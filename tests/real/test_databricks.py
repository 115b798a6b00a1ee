"""Databricks' SDK, and the OpenAI SDK at `/serving-endpoints`, against the real application."""

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.errors import BadRequest, InvalidParameterValue, NotFound
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole

from app.internal_api import INTERNAL_KEY_HEADER
from tests.real.conftest import Application, at_once
from tests.support.clients.conversations import MESSAGES as USER
from tests.support.clients.conversations import QUESTION, STRUCTURED, TOOL, answers

pytestmark = pytest.mark.real

SDK_MESSAGES = [ChatMessage(role=ChatMessageRole.USER, content=QUESTION)]
BLUE, GREEN = "smollm2-blue", "smollm2-green"
"""Green has no prefix cache: the same question is computed alike."""


@pytest.fixture(scope="module")
def endpoints(application: Application) -> Any:
    workspace = WorkspaceClient(config=Config(host=application.url, token="dapi-x", retry_timeout_seconds=5))
    return workspace.serving_endpoints


@pytest.fixture(scope="module")
def sdk(application: Application) -> Iterator[Any]:
    base_url = f"{application.url}/serving-endpoints"
    with openai.OpenAI(base_url=base_url, api_key="dapi-x", max_retries=0, timeout=120) as client:
        yield client


def engine(application: Application, path: str, **body: Any) -> Any:
    """The engine's own answer, without the router."""
    url = f"{application.url}/deployments/{GREEN}{path}"
    body = {"model": "SmolLM2-135M-Instruct", "temperature": 0, **body}
    return (
        httpx.post(url, json=body, headers={INTERNAL_KEY_HEADER: application.internal_key}, timeout=120)
        .raise_for_status()
        .json()
    )


def invoke(application: Application, name: str = GREEN, **body: Any) -> httpx.Response:
    url = f"{application.url}/serving-endpoints/{name}/invocations"
    return httpx.post(url, json={"temperature": 0, **body}, timeout=120)


def test_query_a_chat_endpoint(endpoints: Any) -> None:
    query = partial(endpoints.query, messages=SDK_MESSAGES, temperature=0)
    answer, cut = at_once(partial(query, "chat", max_tokens=24), partial(query, GREEN, max_tokens=2))
    assert answers(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.served_model_name in (BLUE, GREEN)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert cut.choices[0].finish_reason == "length"


def test_the_streamed_chat_equals_the_whole_one(sdk: Any) -> None:
    request = {"model": GREEN, "messages": USER, "temperature": 0, "max_tokens": 24}
    create = partial(sdk.chat.completions.create, **request)
    whole, chunks = at_once(create, lambda: list(create(stream=True)))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_is_called_and_its_answer_read(sdk: Any, choice: Any) -> None:
    fields = [{"role": "user", "content": "What is the weather in Paris?"}]
    request = {"model": "chat", "tools": [TOOL], "temperature": 0}
    called = sdk.chat.completions.create(messages=fields, tool_choice=choice, max_tokens=64, **request)
    message = called.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    history = [*fields, message.model_dump(), result]
    read = sdk.chat.completions.create(messages=history, tool_choice="none", max_tokens=24, **request)
    assert read.choices[0].message.content


def test_a_json_schema_is_kept_to(application: Application) -> None:
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    result = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema, "strict": True}}
    answer = invoke(application, messages=USER, **STRUCTURED, response_format=result).json()
    assert json.loads(answer["choices"][0]["message"]["content"])["color"] in ("red", "blue")
    assert answer["choices"][0]["finishReason"] == answer["choices"][0]["finish_reason"]


def test_log_probabilities_and_several_choices(application: Application) -> None:
    answer = invoke(
        application, messages=USER, max_tokens=5, n=2, logprobs=True, top_logprobs=3, reasoning_effort="low"
    )
    one, two = answer.json()["choices"]
    assert one["message"]["content"] == two["message"]["content"]
    assert [len(token["top_logprobs"]) for token in one["logprobs"]["content"]] == [3] * 5


def test_raw_prompts_reach_the_engine_unchanged(application: Application) -> None:
    prompts = ["The capital of France is", "One two three"]
    direct, answer = at_once(
        lambda: engine(application, "/v1/completions", prompt=prompts, max_tokens=6),
        lambda: invoke(application, prompt=prompts, max_tokens=6, use_raw_prompt=True).json(),
    )
    assert [choice["text"] for choice in answer["choices"]] == [choice["text"] for choice in direct["choices"]]
    assert answer["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]


def test_prompts_are_put_into_the_chat_template(application: Application) -> None:
    direct, answer = at_once(
        lambda: engine(application, "/v1/chat/completions", messages=USER, max_tokens=24),
        lambda: invoke(application, prompt=QUESTION, max_tokens=24).json(),
    )
    assert answer["choices"][0]["text"] == direct["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_batch_with_several_choices_echo_and_suffix(endpoints: Any) -> None:
    extra = {"use_raw_prompt": "true", "echo": "true", "suffix": "<end>"}
    request = {"prompt": ["The capital of France is", "One two three"], "max_tokens": 4, "temperature": 0, "n": 2}
    answer = endpoints.query(GREEN, **request, extra_params=extra)
    assert [choice.index for choice in answer.choices] == [0, 0, 1, 1]
    assert answer.choices[0].text == answer.choices[1].text
    assert answer.choices[0].text.startswith("The capital of France is Paris")
    assert all(choice.text.endswith("<end>") for choice in answer.choices)
    assert answer.usage.completion_tokens == 16


def test_the_streamed_completion_equals_the_whole_one(sdk: Any) -> None:
    request = {
        "model": GREEN,
        "prompt": ["Once upon a time", "One two three"],
        "max_tokens": 8,
        "temperature": 0,
        "extra_body": {"echo": True, "suffix": "<end>", "error_behavior": "truncate"},
    }
    create = partial(sdk.completions.create, **request)
    whole, (*chunks, last) = at_once(create, lambda: list(create(stream=True)))
    texts: dict[int, str] = {}
    for chunk in (*chunks, last):
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert [texts[choice.index] for choice in whole.choices] == [choice.text for choice in whole.choices]
    assert all(chunk.usage is None for chunk in chunks)
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_a_completion_without_a_limit_is_not_cut_at_vllms_default(application: Application) -> None:
    answer = invoke(application, prompt="Count: one, two, three,", use_raw_prompt=True, stop=["ten"]).json()
    assert answer["usage"]["completion_tokens"] > 16 or answer["choices"][0]["finish_reason"] == "stop"


LONG = "word " * 8_185


def test_a_prompt_that_leaves_no_room_is_rejected(endpoints: Any) -> None:
    """That it is truncated if the request says so is tested with a model of few positions, in tests/engine."""
    with pytest.raises(InvalidParameterValue, match=r"prompt: .*of this model's 8192 tokens"):
        endpoints.query(BLUE, prompt=LONG, max_tokens=500, temperature=0)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_an_instruction_is_part_of_what_is_embedded(endpoints: Any, sdk: Any) -> None:
    plain = endpoints.query("embed", input=["a green frog"])
    answer = endpoints.query("embed", input=["a green frog"], extra_params={"instruction": "Find animals:"})
    same = sdk.embeddings.create(model="embed", input="Find animals: a green frog")
    assert answer.served_model_name == "minilm"
    assert cosine(answer.data[0].embedding, same.data[0].embedding) > 0.9999
    assert cosine(answer.data[0].embedding, plain.data[0].embedding) < 0.99
    assert answer.usage.prompt_tokens == same.usage.prompt_tokens > plain.usage.prompt_tokens
    assert answer.usage.completion_tokens is None


def test_a_response_whole_and_streamed(sdk: Any) -> None:
    request = {"model": GREEN, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    create = partial(sdk.responses.create, **request)
    answer, events = at_once(
        lambda: create(metadata={"a": "b"}),
        lambda: list(create(stream=True, stream_options={"include_usage": True})),
    )
    assert answers(answer.output_text)
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert (answer.metadata, answer.max_output_tokens) == ({"a": "b"}, 24)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == answer.output_text == events[-1].response.output_text
    assert events[-1].response.output[0].id == deltas[0].item_id
    assert events[-1].response.usage.total_tokens == answer.usage.total_tokens


def test_a_response_that_reaches_its_length_limit_is_incomplete(sdk: Any) -> None:
    request = {"model": GREEN, "input": QUESTION, "temperature": 0, "max_output_tokens": 2}
    answer = sdk.responses.create(**request)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[-1].status == "incomplete"
    *_, last = sdk.responses.create(**request, stream=True)
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_a_conversation_continues_when_its_history_is_sent(sdk: Any) -> None:
    create = sdk.responses.create
    first = create(model=GREEN, input="My name is Ada.", temperature=0, max_output_tokens=24)
    turns = [{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": "My name?"}]
    second = create(model=GREEN, instructions="Be brief.", input=turns, temperature=0, max_output_tokens=16)
    chat = sdk.chat.completions.create(
        model=GREEN,
        messages=[
            {"role": "system", "content": "Be brief."},
            turns[0],
            {"role": "assistant", "content": first.output_text},
            turns[-1],
        ],
        temperature=0,
        max_tokens=16,
    )
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize("nested", [True, False])
def test_tools_and_formats_of_responses_in_both_forms(sdk: Any, nested: bool) -> None:
    function: Any = TOOL["function"]
    tool = TOOL if nested else {"type": "function", **function}
    request = {"model": GREEN, "temperature": 0, "max_output_tokens": 64}
    schema = {"name": "c", "schema": {"type": "object", "properties": {"color": {"enum": ["red"]}}}, "strict": True}
    form = {"type": "json_schema", **({"json_schema": schema} if nested else schema)}
    create = partial(sdk.responses.create, **request)
    answer, formatted = at_once(
        lambda: create(input="What is the weather in Paris?", tools=[tool], tool_choice="required"),
        lambda: create(input=QUESTION, text={"format": form}),
    )
    called = answer.output[0]
    assert (called.type, called.name) == ("function_call", "get_weather")
    assert json.loads(formatted.output_text) in ({"color": "red"}, {})
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": json.loads(called.arguments)}
    output = {"type": "function_call_output", "call_id": "c1", "output": {"degrees": 20}}
    history = [{"role": "user", "content": "What is the weather in Paris?"}, call, output]
    assert create(input=history, tools=[tool], tool_choice="none", max_output_tokens=24).output_text


def test_files_and_log_probabilities_of_responses(sdk: Any) -> None:
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}
    request = {"model": GREEN, "temperature": 0, "max_output_tokens": 3}
    parts = [file, {"type": "input_text", "text": "Say it."}]
    answer = sdk.responses.create(**request, input=[{"role": "user", "content": parts}], top_logprobs=2)
    assert [len(token.top_logprobs) for token in answer.output[0].content[0].logprobs] == [2, 2, 2]
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    with pytest.raises(openai.BadRequestError, match="input"):
        sdk.responses.create(**request, input=[{"role": "user", "content": [image]}])


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"n": 20_000}, "n: "),
    ({"max_tokens": 9_000}, "9000 in the completion"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"min_p": 0.5}, 'unknown field "min_p"'),
    ({"messages": [{"role": "user", "content": LONG * 2}]}, "context length .*your messages"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
            ]
        },
        "messages",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "x"}}}},
        "(?i)schema|grammar|json",
    ),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice"),
]


@pytest.mark.parametrize(("fields", "message"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_400_and_name_the_field(
    application: Application, fields: dict[str, Any], message: str, stream: bool
) -> None:
    answer = invoke(application, **{"messages": USER, **fields, "stream": stream})
    body = answer.json()
    assert (answer.status_code, set(body)) == (400, {"error_code", "message", "details"})
    assert re.search(message, body["message"])
    assert body["error_code"] in ("BAD_REQUEST", "INVALID_PARAMETER_VALUE")
    assert body["details"][0]["request_id"] == answer.headers["x-request-id"]


def test_the_sdks_exceptions(endpoints: Any) -> None:
    with pytest.raises(NotFound, match="The given endpoint does not exist"):
        endpoints.query("gone", messages=SDK_MESSAGES)
    with pytest.raises(InvalidParameterValue, match="expects `input`"):
        endpoints.query("embed", messages=SDK_MESSAGES)
    with pytest.raises(BadRequest, match="unknown field"):
        endpoints.query("chat", messages=SDK_MESSAGES, extra_params={"min_p": "0.5"})
    with pytest.raises(InvalidParameterValue, match="temperature"):
        endpoints.query("chat", messages=SDK_MESSAGES, temperature=3)


def test_a_request_can_name_a_served_model(application: Application) -> None:
    for name in ("smollm2-blue", "smollm2-green"):
        answer = httpx.post(
            f"{application.url}/serving-endpoints/chat/served-models/{name}/invocations",
            json={"messages": USER, "max_tokens": 1},
            timeout=60,
        )
        assert (answer.status_code, answer.headers["served-model-name"]) == (200, name)
