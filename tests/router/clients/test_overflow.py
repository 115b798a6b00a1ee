"""A prompt that the model's context cannot hold, and one that it can without the answer: in the words of each vendor,
by which its clients know what to shorten."""

import json
import re
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import CARD, CONTEXT, FakeEngine, refuse

FITS, TOO_LONG = 30, 150
"""Lengths of prompts, in tokens."""

WANTED = 80
"""Tokens that do not fit beside a prompt that does."""


def limited(engine: FakeEngine) -> Callable[[dict[str, Any]], Response]:
    """vLLM's checks of lengths; a token is a word `hi`."""

    def answer(body: dict[str, Any]) -> Response:
        texts = {name: value for name, value in body.items() if name in ("messages", "prompt", "input", "documents")}
        length = len(texts["prompt"]) if isinstance(texts.get("prompt"), list) else json.dumps(texts).count("hi")
        if engine.paths[-1] == "/tokenize":
            return JSONResponse({"count": length, "max_model_len": CONTEXT, "tokens": [1] * length})
        wanted = next((body[name] for name in body if name.startswith("max_") and name.endswith("tokens")), 0)
        if wanted > CONTEXT:
            return refuse(400, f"max_tokens={wanted} cannot be greater than max_model_len=max_total_tokens={CONTEXT}.")(
                body
            )
        if length > CONTEXT - wanted:
            least = CONTEXT - wanted + 1
            message = (
                f"This model's maximum context length is {CONTEXT} tokens. However, you requested {wanted} output "
                f"tokens and your prompt contains at least {least} input tokens, for a total of at least "
                f"{least + wanted} tokens. Please reduce the length of the input prompt or the number of requested "
                "output tokens."
            )
            return refuse(400, message, param="input_tokens")(body)
        return JSONResponse({"input_tokens": length})

    return answer


@pytest.fixture
def url(rig: Rig) -> str:
    for engine in (rig.blue, rig.mini):
        engine.answer, engine.card = limited(engine), CARD
    return rig.url


def words(count: int) -> str:
    return " ".join(["hi"] * count)


def conversation(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": words(count)}]


OPENAI = ["/v1", "/openai/v1", "/openai/deployments/chat", "/serverless/v1", "/dedicated/v1"]
CHATS = [f"{prefix}/chat/completions" for prefix in OPENAI]


@pytest.mark.parametrize("wanted", [WANTED, 1_000])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [*CHATS, "/invocations", "/score"])
def test_openais_code_and_sentence_say_what_is_too_long(url: str, path: str, stream: bool, wanted: int) -> None:
    fields = {"model": "chat", "stream": stream}
    answer = httpx.post(url + path, json={**fields, "messages": conversation(TOO_LONG)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert error["type"] == "invalid_request_error"
    assert (
        f"maximum context length is {CONTEXT} tokens. However, your messages resulted in 150 tokens" in error["message"]
    )
    answer = httpx.post(url + path, json={**fields, "messages": conversation(FITS), "max_tokens": wanted})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    requested = f"you requested {FITS + wanted} tokens ({FITS} in the messages, {wanted} in the completion)"
    assert requested in error["message"]


@pytest.mark.parametrize("prefix", OPENAI[:3])
def test_so_do_those_of_prompts_and_inputs(url: str, prefix: str) -> None:
    long = {"model": "chat", "prompt": words(TOO_LONG)}
    wide = {"model": "chat", "prompt": words(FITS), "max_tokens": WANTED}
    for body, text in ((long, "prompt resulted in 150 tokens"), (wide, "30 in the prompt, 80 in the completion")):
        error = httpx.post(f"{url}{prefix}/completions", json=body).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert text in error["message"]


def test_an_embeddings_input_too(url: str) -> None:
    answer = httpx.post(f"{url}/v1/embeddings", json={"model": "embed", "input": words(TOO_LONG)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


@pytest.mark.parametrize("prefix", [*OPENAI[:3], "/openai", *OPENAI[3:]])
@pytest.mark.parametrize(
    "body", [{"input": words(TOO_LONG)}, {"input": conversation(FITS), "max_output_tokens": WANTED}]
)
def test_a_response_fails_with_the_code_in_a_status_or_as_a_stream(url: str, prefix: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{url}{prefix}/responses", json={"model": "chat", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    answer = httpx.post(f"{url}{prefix}/responses", json={"model": "chat", **body, "stream": True})
    kinds = re.findall("^event: (.*)$", answer.text, re.MULTILINE)
    assert (answer.status_code, kinds[:2], kinds[2:]) == (
        200,
        ["response.created", "response.in_progress"],
        ["error", "response.failed"],
    )
    failed = json.loads(answer.text.rpartition("data: ")[2])["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "context_length_exceeded")
    assert failed["error"]["message"] == error["message"]


def test_openais_sdk_raises_with_the_code(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        stream = client.responses.stream(model="chat", input=words(TOO_LONG))
        with pytest.raises(openai.APIError) as failed, stream as events:
            list(events)
        assert failed.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": words(TOO_LONG)}])
        assert raised.value.code == "context_length_exceeded"


@pytest.mark.parametrize("prefix", ["", "/anthropic", "/serverless"])
@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_sentences_have_the_numbers_that_clients_look_for(url: str, prefix: str, stream: bool) -> None:
    def message(length: int, wanted: int) -> str:
        body = {"model": "chat", "max_tokens": wanted, "messages": conversation(length), "stream": stream}
        answer = httpx.post(f"{url}{prefix}/v1/messages", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        text: str = answer.json()["error"]["message"]
        return text

    for wanted in (1, WANTED):
        too_long = message(TOO_LONG, wanted)
        assert re.fullmatch(r"prompt is too long: at least \d+ tokens > 99 maximum", too_long)
        # Claude Code's pattern.
        assert re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", too_long)
    sentence = (
        "input length and `max_tokens` exceed context limit: 30 + {} > 100, decrease input length or `max_tokens` and "
        "try again"
    )
    for wanted in (WANTED, 32_000):
        assert message(FITS, wanted) == sentence.format(wanted)


def test_anthropics_sdk_can_shorten_the_answer_by_the_numbers(url: str) -> None:
    fields: Any = {"model": "chat", "max_tokens": WANTED, "messages": conversation(FITS)}
    with (
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError) as raised,
    ):
        client.messages.create(**fields)
    counts = re.search(r"exceed context limit: (\d+) \+ (\d+) > (\d+)", str(raised.value))
    assert counts is not None
    length, wanted, context = map(int, counts.groups())
    assert wanted > context - length >= FITS


@pytest.mark.parametrize("path", ["/chat/completions", "/models/chat/completions"])
@pytest.mark.parametrize(
    "body", [{"messages": conversation(TOO_LONG)}, {"messages": conversation(30), "max_tokens": 80}]
)
def test_azures_error_has_the_code(url: str, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(url + path, params={"api-version": "2024-05-01-preview"}, json={"model": "chat", **body})
    assert (answer.status_code, answer.json()["code"]) == (400, "context_length_exceeded")
    assert answer.headers["x-ms-error-code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": conversation(TOO_LONG)}, "messages resulted in 150 tokens"),
        ({"messages": conversation(30), "max_tokens": 80}, "30 in the messages, 80 in the completion"),
        ({"input": words(TOO_LONG)}, "input resulted in at least 101 tokens"),
        ({"prompt": words(TOO_LONG)}, "has 150 of this model's 100 tokens"),
        ({"prompt": words(30), "max_tokens": 80}, "has 30 of this model's 100 tokens"),
    ],
)
def test_databricks_has_a_parameters_code_and_the_sentence(url: str, body: dict[str, Any], sentence: str) -> None:
    answer = httpx.post(f"{url}/serving-endpoints/chat/invocations", json=body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert sentence in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "long", "wide"),
    [
        (
            "/tgi/chat/generate",
            {"inputs": "hi " * TOO_LONG},
            {"inputs": "hi " * FITS, "parameters": {"max_new_tokens": WANTED}},
        ),
        (
            "/tgi/chat/v1/chat/completions",
            {"model": "tgi", "messages": conversation(TOO_LONG)},
            {"model": "tgi", "messages": conversation(FITS), "max_tokens": WANTED},
        ),
    ],
)
def test_tgi_has_its_own_sentences(url: str, path: str, long: Any, wide: Any) -> None:
    assert "`inputs` must have less than 99 tokens. Given: " in httpx.post(url + path, json=long).text
    assert "`inputs` tokens + `max_new_tokens` must be <= 100. Given: " in httpx.post(url + path, json=wide).text


@pytest.mark.parametrize("body", [{"prompt": words(TOO_LONG)}, {"prompt": words(60), "max_tokens": WANTED}])
def test_friendlis_completions_have_openais_code(url: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{url}/serverless/v1/completions", json={"model": "chat", **body})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
