"""TGI's and Hugging Face's clients, sync and async, against the real application."""

import json
import re
from functools import partial
from typing import Any

import httpx
import huggingface_hub.errors as hub
import pytest
import text_generation.errors as tgi
from huggingface_hub import AsyncInferenceClient, InferenceClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_generation import AsyncClient, Client

from tests.real.conftest import Application, at_once
from tests.support.clients.conversations import MESSAGES, STRUCTURED, answers

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")]

GREEN = "smollm2-green"  # without a prefix cache, so that the same question is computed alike
PROMPT = "The capital of France is"
MANY_BYTES = "Repeat after me: 😀 日本語 é 😀 日本語 é 😀 日本語 é 😀"
SAMPLED: dict[str, Any] = {"do_sample": True, "details": True}


@pytest.fixture(scope="module")
def url(application: Application) -> str:
    return f"{application.url}/tgi/{GREEN}"


@pytest.fixture(scope="module")
def hf(url: str) -> Any:
    return InferenceClient(base_url=url, timeout=240)


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, timeout=240)


def openai_text(application: Application, prompt: str, tokens: int) -> str:
    """The same engine's answer through the OpenAI API."""
    answer = application.sdk.completions.create(model=GREEN, prompt=prompt, max_tokens=tokens, temperature=0)
    text: str = answer.choices[0].text
    return text


def post(application: Application, path: str, body: Any) -> httpx.Response:
    return httpx.post(application.url + path, json=body, timeout=240)


@pytest.mark.parametrize("prompt", [PROMPT, MANY_BYTES])
def test_greedy_answers_equal_the_openai_apis_in_every_mode(application: Application, hf: Any, prompt: str) -> None:
    fields: dict[str, Any] = {"prompt": prompt, "max_new_tokens": 24}
    expected, text, whole, parts, events = at_once(
        lambda: openai_text(application, prompt, 24),
        lambda: hf.text_generation(**fields),
        lambda: hf.text_generation(**fields, details=True),
        lambda: list(hf.text_generation(**fields, stream=True)),
        lambda: list(hf.text_generation(**fields, stream=True, details=True)),
    )
    assert text == whole.generated_text == expected
    assert "".join(token.text for token in whole.details.tokens if not token.special) == expected
    assert whole.details.generated_tokens == len(whole.details.tokens)
    assert "".join(text for text, event in zip(parts, events, strict=True) if not event.token.special) == expected
    assert [event.token.id for event in events] == [token.id for token in whole.details.tokens]
    assert [event.token.text for event in events] == [token.text for token in whole.details.tokens]
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert events[-1].generated_text == expected
    assert events[-1].details.finish_reason == whole.details.finish_reason


async def test_hugging_faces_async_client(application: Application, url: str) -> None:
    expected = openai_text(application, PROMPT, 8)
    async with AsyncInferenceClient(base_url=url, timeout=240) as hf:
        assert await hf.text_generation(PROMPT, max_new_tokens=8) == expected
        answer: Any = await hf.text_generation(PROMPT, max_new_tokens=8, details=True)
        assert answer.generated_text == expected
        assert "".join([part async for part in await hf.text_generation(PROMPT, max_new_tokens=8, stream=True)])
        events: Any = await hf.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True)
        assert [event async for event in events][-1].generated_text == expected


async def test_tgis_own_clients(application: Application, client: Client, url: str) -> None:
    expected = openai_text(application, PROMPT, 8)
    answer = client.generate(PROMPT, max_new_tokens=8, decoder_input_details=True)
    assert answer.generated_text == expected
    assert answer.details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in answer.details.prefill[1:])
    assert "".join(token.text for token in answer.details.prefill) == PROMPT
    assert list(client.generate_stream(PROMPT, max_new_tokens=8))[-1].generated_text == expected
    aclient = AsyncClient(url, timeout=240)
    assert (await aclient.generate(PROMPT, max_new_tokens=8)).generated_text == expected
    events = [event async for event in aclient.generate_stream(PROMPT, max_new_tokens=8)]
    assert events[-1].generated_text == expected
    with pytest.raises(tgi.ValidationError, match="max_new_tokens"):
        client.generate(PROMPT, max_new_tokens=9000)
    with pytest.raises(tgi.ValidationError, match="max_new_tokens"):
        [event async for event in aclient.generate_stream(PROMPT, max_new_tokens=9000)]


def test_the_clients_chat(client: Client, hf: Any) -> None:
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    result, chunks, answer = at_once(
        lambda: client.chat(MESSAGES, temperature=0.0, max_tokens=24),
        lambda: list(hf.chat_completion(MESSAGES, temperature=0, max_tokens=24, stream=True)),
        lambda: hf.chat_completion(MESSAGES, **STRUCTURED, response_format=form),
    )
    assert answers(result.choices[0].message.content or "")
    assert answers("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    assert json.loads(answer.choices[0].message.content)["color"] in ("red", "blue")


def test_a_reported_seed_reproduces_the_answer(hf: Any) -> None:
    sampled = partial(hf.text_generation, PROMPT, **SAMPLED)
    first, *others = at_once(*[partial(sampled, max_new_tokens=12)] * 4)
    assert len({answer.generated_text for answer in (first, *others)}) > 1
    seeds = [2**63 - 1, 2**64 - 1]
    again, *pairs = at_once(
        partial(sampled, max_new_tokens=12, seed=first.details.seed),
        *(partial(sampled, max_new_tokens=5, seed=seed) for seed in seeds + seeds),
    )
    assert again.generated_text == first.generated_text
    assert again.details.seed == first.details.seed
    texts = [answer.generated_text for answer in pairs]
    assert texts[:2] == texts[2:]


def test_the_temperature_alone_samples_as_on_tgi(client: Client) -> None:
    sampled = at_once(*[partial(client.generate, PROMPT, max_new_tokens=12, temperature=1.5)] * 3)
    assert len({answer.generated_text for answer in sampled}) > 1


def test_do_sample_false_is_greedy_whatever_else_is_set(application: Application) -> None:
    fields = {"do_sample": False, "temperature": 1.5, "top_k": 50, "top_p": 0.9, "max_new_tokens": 8}
    answer, expected = at_once(
        lambda: post(application, f"/tgi/{GREEN}", {"inputs": PROMPT, "parameters": fields}).json(),
        lambda: openai_text(application, PROMPT, 8),
    )
    assert answer == {"generated_text": expected}


def test_the_best_of_two_is_the_likelier(hf: Any) -> None:
    answer = hf.text_generation(PROMPT, max_new_tokens=10, best_of=2, **SAMPLED)
    (other,) = answer.details.best_of_sequences

    def mean(tokens: Any) -> float:
        return float(sum(token.logprob for token in tokens) / len(tokens))

    assert mean(answer.details.tokens) >= mean(other.tokens)
    assert abs(answer.details.seed - other.seed) == 1
    again = hf.text_generation(PROMPT, max_new_tokens=10, **SAMPLED, seed=answer.details.seed)
    assert again.generated_text == answer.generated_text


def test_grammars_constrain_the_text(hf: Any) -> None:
    schema = {"properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"]}
    values = [("json", schema), ("json", json.dumps(schema)), ("regex", "[0-9]{3}-[a-f]{2}")]
    *objects, text = at_once(
        *(
            partial(hf.text_generation, PROMPT, max_new_tokens=60, grammar={"type": kind, "value": value})
            for kind, value in values
        )
    )
    assert all(isinstance(json.loads(text)["city"], str) for text in objects)
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", text)
    for wrong in ({"type": "regex", "value": "(["}, {"type": "json", "value": {"properties": 5}}):
        with pytest.raises(hub.ValidationError, match="grammar is not valid"):
            hf.text_generation(PROMPT, max_new_tokens=5, grammar=wrong)


def test_truncate_keeps_the_last_tokens(application: Application, hf: Any) -> None:
    ids = [token["id"] for token in post(application, "/tokenize", {"inputs": PROMPT}).json()]
    answer = hf.text_generation(PROMPT, max_new_tokens=2, details=True, decoder_input_details=True, truncate=3)
    assert [token.id for token in answer.details.prefill] == ids[-3:]


def test_stop_strings_stay_in_the_text(hf: Any) -> None:
    fields: dict[str, Any] = {"max_new_tokens": 40, "details": True, "stop": ["five", "zzz"]}
    count = partial(hf.text_generation, "Count: one, two, three, four,", **fields)
    answer, events, inside = at_once(count, lambda: list(count(stream=True)), partial(count, stop=["fi"]))
    assert answer.generated_text.endswith("five")
    assert answer.details.finish_reason == "stop_sequence"
    assert "".join(event.token.text for event in events) == answer.generated_text == events[-1].generated_text
    assert inside.generated_text.endswith("fi")
    assert "".join(token.text for token in inside.details.tokens) == inside.generated_text


def test_the_likeliest_tokens(hf: Any) -> None:
    answer = hf.text_generation(PROMPT, max_new_tokens=3, details=True, top_n_tokens=3)
    for token, top in zip(answer.details.tokens, answer.details.top_tokens, strict=True):
        assert top[0]["id"] == token.id
        assert [other["logprob"] for other in top] == sorted((other["logprob"] for other in top), reverse=True)
        assert len(top) == 3


def test_temperatures_above_2_are_supported(application: Application, hf: Any) -> None:
    wild = partial(hf.text_generation, PROMPT, max_new_tokens=6, temperature=9.5)
    greedy, one, two, alike = at_once(
        lambda: openai_text(application, PROMPT, 6),
        partial(wild, seed=1),
        partial(wild, seed=2),
        partial(wild, top_k=1),
    )
    assert alike == greedy
    assert one != two


def test_typical_p_really_works(hf: Any) -> None:
    fields = [{"typical_p": mass, "seed": seed} for mass in (0.001, 0.999) for seed in (1, 2, 3)]
    texts = at_once(*(partial(hf.text_generation, PROMPT, max_new_tokens=8, **more) for more in fields))
    assert len(set(texts[:3])) == 1
    assert len(set(texts[3:])) > 1


def test_a_watermark_is_found_again(hf: Any) -> None:
    """test_logits.py tests that unmarked text scores below 4."""
    from deployments.engine.logits.processors import detect  # imports torch: only here

    answer = hf.text_generation("Once upon a time", max_new_tokens=96, seed=5, watermark=True, **SAMPLED)
    assert detect([token.id for token in answer.details.tokens], 49152).z > 4


def test_tokens_equal_the_engines(application: Application) -> None:
    answer = post(application, "/tokenize", {"inputs": MANY_BYTES}).json()
    assert all(MANY_BYTES[token["start"] : token["stop"]] == token["text"] for token in answer)
    engines = post(application, "/tokenize", {"prompt": MANY_BYTES, "model": GREEN}).json()
    assert [token["id"] for token in answer] == engines["tokens"]
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "hé 😀"}]}
    answer = post(application, f"/tgi/{GREEN}/chat_tokenize", fields).json()
    assert "hé 😀" in answer["templated_text"]
    engines = post(application, "/tokenize", {**fields, "model": GREEN}).json()
    assert [token["id"] for token in answer["tokenize_response"]] == engines["tokens"]
    assert "".join(token["text"] for token in answer["tokenize_response"]).startswith("<|im_start|>")


def test_info_health_and_metrics(application: Application, url: str) -> None:
    hf = InferenceClient(provider="hf-inference")
    info = hf.get_endpoint_info(model=url)
    assert info["model_id"] in ("smollm2-blue", "smollm2-green")
    assert info["max_total_tokens"] == 8192
    assert hf.health_check(model=url)
    assert hf.health_check(model=application.url)
    assert httpx.get(f"{application.url}/").status_code == 200
    assert httpx.get(f"{url}/ping").status_code == 200
    names = httpx.get(f"{application.url}/tgi/chat/metrics").text
    assert "tgi_request_count" in names


def test_vertex_and_sagemaker(application: Application) -> None:
    fields = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
    expected, answer, of_prompt, of_chat = at_once(
        lambda: openai_text(application, PROMPT, 8),
        lambda: post(application, f"/tgi/{GREEN}/vertex", {"instances": [fields, chat]}).json(),
        lambda: post(application, f"/tgi/{GREEN}/invocations", fields).json(),
        lambda: post(application, f"/tgi/{GREEN}/invocations", chat).json(),
    )
    assert answer["predictions"][0] == expected
    assert answer["predictions"][1]
    assert of_prompt == {"generated_text": expected}
    assert of_chat["choices"][0]["message"]["content"]


def test_mindies_request_is_answered_with_an_object(application: Application) -> None:
    fields = {"decoder_input_details": True, "details": True, "do_sample": True, "max_new_tokens": 20, "seed": 42}
    sampling = {"repetition_penalty": 1.03, "temperature": 0.5, "top_k": 10, "top_p": 0.95, "typical_p": 0.5}
    body = {"inputs": "My name is Olivier and I", "parameters": {**fields, **sampling, "watermark": True}}
    result = post(application, "/", body).json()
    details = result["details"]
    assert "".join(token["text"] for token in details["tokens"] if not token["special"]) == result["generated_text"]
    assert (details["seed"], len(details["prefill"])) == (42, details["prompt_tokens"])
    answer = post(application, "/", {**body, "parameters": {**fields, "decoder_input_details": False}, "stream": True})
    *_, last, end = answer.text.split("\n\n")
    assert end == ""
    assert json.loads(last.removeprefix("data: "))["details"]["seed"] == 42


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
sampling_fields = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.001, 1e300),
        "top_k": st.integers(1, 2**31 - 1),
        "top_p": st.floats(0.001, 0.999),
        "typical_p": st.floats(0.001, 0.999),
        "repetition_penalty": st.floats(1e-300, 1e300),
        "frequency_penalty": st.floats(-2, 2),
        "seed": st.integers(1, 2**64 - 1),
        "watermark": st.booleans(),
        "stop": st.lists(st.text(min_size=1, max_size=3), max_size=4),
        "truncate": st.integers(1, 8191),
        "top_n_tokens": st.integers(0, 5),
        "details": st.booleans(),
        "grammar": json_values | st.fixed_dictionaries({"type": st.just("json"), "value": json_values}),
    },
)
bodies = st.fixed_dictionaries(
    {"inputs": st.text(max_size=20), "stream": st.booleans(), "parameters": sampling_fields | json_values}
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])  # each is a generation of the real engine
@given(body=bodies)
def test_no_body_is_an_internal_error(application: Application, body: dict[str, Any]) -> None:
    if isinstance(body["parameters"], dict):
        body["parameters"].setdefault("max_new_tokens", 2)
    answer = httpx.post(f"{application.url}/tgi/{GREEN}", content=json.dumps(body), timeout=60)
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        result = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))
        assert result.get("error_type", "validation") == "validation", result
