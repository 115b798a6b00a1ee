"""Friendli's SDK, sync and async, and its documented requests, against the real application."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest
from friendli.core.models import SDKError
from friendli.friendli import AsyncFriendli, SyncFriendli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from deployments.weights.cache import default_cache, prepare
from tests.real.conftest import Application, at_once
from tests.support.clients.conversations import MESSAGES, QUESTION, STRUCTURED, answers

pytestmark = pytest.mark.real

GREEN = "smollm2-green"  # without a prefix cache, so that the same question is computed alike
PROMPT = "The capital of France is"
MANY_BYTES = "Repeat after me: 😀 日本語 é 😀 日本語 é 😀 日本語 é 😀"
STORY = "Once upon a time there was a little bird. The little bird"
MANY: dict[str, Any] = {
    "prompt": STORY,
    "n": 4,
    "max_tokens": 72,
    "seed": 11,
    "temperature": 0.6,
    "eos_token": [49_151],  # an id that does not come
}
"""288 tokens, which repeat unless something prevents it."""

Ids = Sequence[int]


@pytest.fixture(scope="module")
def friendli(application: Application) -> Iterator[Any]:
    with SyncFriendli(token="flp_x", server_url=application.url, retry_config=None, timeout_ms=240_000) as sdk:
        yield sdk


def complete(friendli: Any, **body: Any) -> Any:
    """Completes with the current SDK."""
    fields = {"model": GREEN, **({} if "tokens" in body else {"prompt": PROMPT}), **body}
    return friendli.serverless.completions.complete(serverless_completions_body=fields, retries=None)


def post(application: Application, path: str = "/serverless/v1/completions", **body: Any) -> httpx.Response:
    return httpx.post(application.url + path, json={"model": GREEN, **body}, timeout=240)


def answer(application: Application, **body: Any) -> Any:
    """Completes with the form of Friendli's reference."""
    result = post(application, **body)
    assert result.status_code == 200, result.text
    return result.json()


def events(application: Application, **body: Any) -> tuple[list[Any], Any]:
    """The token events of a stream in the form of Friendli's reference, and its last event."""
    result = post(application, **body, stream=True)
    assert result.status_code == 200, result.text
    *tokens, last = (json.loads(line.removeprefix("data: ")) for line in result.text.split("\n\n") if line)
    assert {event["event"] for event in tokens} <= {"token_sampled"}
    assert last["event"] == "complete"
    return tokens, last


def ids_of(friendli: Any, text: str) -> list[int]:
    ids: list[int] = friendli.serverless.token.tokenize(model=GREEN, prompt=text, retries=None).tokens
    return ids


def tokens_of(result: Any) -> list[list[int]]:
    return [choice["tokens"] for choice in result["choices"]]


def ngrams(ids: Ids, n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


class Stories(NamedTuple):
    """Answers to MANY, from one batch of the engine."""

    prompt: list[int]
    """The ids of the second one's prompt."""
    unhindered: Any
    without_repeats: Any


@pytest.fixture(scope="module")
def stories(application: Application, friendli: Any) -> Stories:
    prompt = ids_of(friendli, STORY.partition(".")[0])  # without the field the story repeats
    fields = {**MANY, "prompt": None, "tokens": prompt, "no_repeat_ngram": 2}
    answers = at_once(lambda: answer(application, **MANY), lambda: answer(application, **fields))
    return Stories(prompt, *answers)


@pytest.fixture(scope="module")
def unhindered(stories: Stories) -> Any:
    """The answer to MANY with nothing forbidden."""
    return stories.unhindered


@pytest.fixture(scope="module")
def free(unhindered: Any) -> list[list[int]]:
    """Its tokens."""
    tokens = tokens_of(unhindered)
    assert sum(map(len, tokens)) == 288
    return tokens


@pytest.mark.parametrize("prompt", [PROMPT, MANY_BYTES])
def test_greedy_answers_equal_the_openai_apis_in_every_form(
    application: Application, friendli: Any, prompt: str
) -> None:
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 24, "temperature": 0}

    def streamed() -> list[Any]:
        with complete(friendli, **fields, stream=True) as stream:
            return [event.data.choices[0] for event in stream]

    openai, sdk, of_tokens, chunks, (tokens, last), reference = at_once(
        lambda: application.sdk.completions.create(model=GREEN, **fields),
        lambda: complete(friendli, **fields),
        lambda: complete(friendli, tokens=ids_of(friendli, prompt), max_tokens=24, temperature=0),
        streamed,
        lambda: events(application, **fields),
        lambda: answer(application, **fields),
    )
    expected, whole = openai.choices[0].text, sdk.choices[0]
    assert whole.text == expected
    assert of_tokens.choices[0].text == expected
    assert "".join(chunk.text for chunk in chunks) == expected
    assert [chunk.token for chunk in chunks[:-1]] == whole.tokens
    assert "".join(event["text"] for event in tokens) == expected == last["choices"][0]["text"]
    assert [event["token"] for event in tokens] == whole.tokens == last["choices"][0]["tokens"]
    assert last["usage"] == {**reference["usage"]}


async def test_the_async_sdk(application: Application) -> None:
    async with AsyncFriendli(token="flp_x", server_url=application.url) as client:
        sdk: Any = client
        body = {"model": GREEN, "prompt": PROMPT, "max_tokens": 5, "temperature": 0}
        whole = await sdk.dedicated.completions.complete(dedicated_completions_body=body, retries=None)
        stream = await sdk.container.completions.complete(
            request={**body, "stream": True}, server_url=application.url, retries=None
        )
        async with stream:
            text = "".join([event.data.choices[0].text async for event in stream])
    assert text == whole.choices[0].text


def test_a_reported_seed_draws_the_same_tokens_again(application: Application) -> None:
    fields: dict[str, Any] = {"prompt": STORY, "max_tokens": 16}
    first, second = answer(application, **fields, n=2)["choices"]
    assert first["text"] != second["text"]
    seeds = [second["seed"], 2**64 - 2, first["seed"]]
    *again, listed, (_, last) = at_once(
        *(partial(answer, application, **fields, seed=choice["seed"]) for choice in (first, second)),
        lambda: answer(application, **fields, n=3, seed=seeds),
        lambda: events(application, **fields, n=3, seed=seeds),
    )
    for choice, result in zip((first, second), again, strict=True):
        (same,) = result["choices"]
        assert (same["seed"], same["tokens"]) == (choice["seed"], choice["tokens"])
    assert [choice["seed"] for choice in listed["choices"]] == seeds
    assert tokens_of(listed)[::2] == [second["tokens"], first["tokens"]]
    assert tokens_of(last) == tokens_of(listed)


def test_no_ngram_comes_twice(stories: Stories, free: list[list[int]]) -> None:
    for ids in tokens_of(stories.without_repeats):
        seen = ngrams([*stories.prompt, *ids], 2)
        assert len(set(seen)) == len(seen)
    assert sum(len(ngrams(ids, 2)) - len(set(ngrams(ids, 2))) for ids in free) > 15


def test_forbidden_sequences_and_words_do_not_appear(
    application: Application, friendli: Any, free: list[list[int]]
) -> None:
    """Forbids what is most frequent when nothing is forbidden."""
    counted = {n: Counter(gram for ids in free for gram in ngrams(ids, n)) for n in (1, 2, 3)}
    sequences = [gram for n in (1, 2, 3) for gram, _ in counted[n].most_common(4)]
    words = [" bird", " little bird"]
    forbidden = {*sequences, *(tuple(ids_of(friendli, word)) for word in words)}
    assert sum(counted[len(gram)][gram] for gram in forbidden) > 20
    listed = [{"tokens": list(gram)} for gram in sequences]
    result = answer(application, **MANY, bad_word_tokens=listed, bad_words=words)
    for ids in tokens_of(result):
        assert not forbidden & {gram for n in (1, 2, 3) for gram in ngrams(ids, n)}


def test_nothing_comes_after_a_stop_token(application: Application, free: list[list[int]]) -> None:
    """The same seeds give the same tokens up to the first stop id, wherever it is in its sequence."""
    counted = Counter(id for ids in free for id in ids[20:])
    stops = [id for id, _ in counted.most_common(3)]
    listed = [{"tokens": stops[:2]}, {"tokens": stops[2:]}]
    fields = {**MANY, "stop_tokens": listed}
    whole, (tokens, last) = at_once(lambda: answer(application, **fields), lambda: events(application, **fields))
    choices = whole["choices"]
    for choice, streamed, before in zip(choices, last["choices"], free, strict=True):
        until = next(position for position, id in enumerate(before) if id in stops)
        assert choice["tokens"] == streamed["tokens"] == before[:until]
        assert choice["finish_reason"] == "stop"
        own = [event["token"] for event in tokens if event["index"] == choice["index"]]
        assert own == choice["tokens"]


def test_nothing_comes_after_a_stop_phrase(application: Application, unhindered: Any) -> None:
    phrases = ["ird", " the", "."]
    fields = {**MANY, "stop": phrases}
    whole, (tokens, last) = at_once(lambda: answer(application, **fields), lambda: events(application, **fields))
    choices = whole["choices"]
    for choice, streamed, before in zip(choices, last["choices"], unhindered["choices"], strict=True):
        expected = re.split("|".join(map(re.escape, phrases)), before["text"], maxsplit=1)[0]
        assert choice["text"] == streamed["text"] == expected
        assert choice["tokens"] == streamed["tokens"] == before["tokens"][: len(choice["tokens"])]
        own = [event for event in tokens if event["index"] == choice["index"]]
        assert "".join(event["text"] for event in own) == expected
        assert [event["token"] for event in own] == choice["tokens"]


def test_lengths_count_the_prompt(application: Application, friendli: Any) -> None:
    prompt = len(ids_of(friendli, PROMPT))
    result = answer(application, prompt=PROMPT, max_total_tokens=prompt + 7, min_total_tokens=prompt + 7)
    assert result["usage"] == {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
    refused = post(application, prompt=PROMPT, max_total_tokens=prompt)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_total_tokens")


def test_another_end_of_sequence(application: Application, free: list[list[int]]) -> None:
    end = free[0][50]
    result = answer(application, **{**MANY, "n": 1, "eos_token": [end]})["choices"][0]
    assert result["tokens"] == free[0][: free[0].index(end)]
    assert result["finish_reason"] == "stop"


def test_forced_tokens_and_the_models_own_logprobs(application: Application) -> None:
    greedy = {"prompt": PROMPT, "temperature": 0, "include_output_logprobs": True}
    said, other = (
        result["choices"][0]
        for result in at_once(
            lambda: answer(application, **greedy, max_tokens=12),
            lambda: answer(application, **greedy, forced_output_tokens=[5, 6, 7]),
        )
    )
    forced = answer(application, **greedy, forced_output_tokens=said["tokens"])["choices"][0]
    assert forced["tokens"] == said["tokens"]
    assert forced["logprobs"] == pytest.approx(said["logprobs"], abs=0.01)
    assert other["tokens"] == [5, 6, 7]
    assert max(other["logprobs"]) < -1


def embedding(*ids: int) -> list[float]:
    """The model's own embeddings of these ids, one after the other."""
    weights = prepare("SmolLM2-135M-Instruct", default_cache()) / "model.safetensors"
    with safe_open(str(weights), framework="pt") as file:
        rows = file.get_slice("model.embed_tokens.weight")
        return [float(value) for id in ids for value in rows[id : id + 1].float().flatten().tolist()]


def test_a_tokens_own_embedding_changes_nothing_and_another_one_does(application: Application, friendli: Any) -> None:
    ids = ids_of(friendli, PROMPT)
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    (italy,) = ids_of(friendli, " Italy")
    france = ids.index(*ids_of(friendli, " France"))

    def replaced(indices: list[int], by: Ids) -> dict[str, Any]:
        return {**fields, "token_index_to_replace": indices, "embedding_to_replace": embedding(*by)}

    own = [replaced(indices, [ids[index] for index in indices]) for indices in ([3], [4, 0], list(range(len(ids))))]
    plain, of_italy, result, *others = at_once(
        lambda: answer(application, **fields),
        lambda: answer(application, **{**fields, "prompt": PROMPT.replace("France", "Italy")}),
        lambda: answer(application, **replaced([france], [italy])),
        *(partial(answer, application, **body) for body in own),
        *(partial(events, application, **body) for body in own),
    )
    whole, streamed = others[: len(own)], [last for _, last in others[len(own) :]]
    for other in (*whole, *streamed):
        assert tokens_of(other) == tokens_of(plain)
    assert tokens_of(result) == tokens_of(of_italy) != tokens_of(plain)
    refused = post(application, **fields, token_index_to_replace=[99], embedding_to_replace=embedding(italy))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "token_index_to_replace")


def test_beams_are_likelier_than_the_greedy_answer(application: Application) -> None:
    fields: dict[str, Any] = {"prompt": STORY, "max_tokens": 12, "min_tokens": 12, "include_output_logprobs": True}
    (greedy,), (one,), (best,) = (
        result["choices"]
        for result in at_once(
            lambda: answer(application, **fields, temperature=0),
            lambda: answer(application, **fields, num_beams=1),
            lambda: answer(application, **fields, num_beams=8, length_penalty=1.0, early_stopping=True),
        )
    )
    assert one["tokens"] == greedy["tokens"]
    assert sum(best["logprobs"]) > sum(greedy["logprobs"])
    assert len(best["tokens"]) == 12


@pytest.mark.parametrize("kind", ["NAIVE_SAMPLING", "STOCHASTIC"])
def test_sampled_beams_are_reproduced_by_their_seed(application: Application, kind: str) -> None:
    fields: dict[str, Any] = {"prompt": STORY, "max_tokens": 8, "num_beams": 3, "beam_search_type": kind, "top_k": 20}
    (first,) = answer(application, **fields)["choices"]
    (again,) = answer(application, **fields, seed=first["seed"])["choices"]
    assert again["tokens"] == first["tokens"]


def test_beams_follow_the_sampling_fields(application: Application) -> None:
    fields: dict[str, Any] = {"prompt": STORY, "max_tokens": 12, "num_beams": 4}

    def best(**more: Any) -> Any:
        (choice,) = answer(application, **fields, **more)["choices"]
        return choice

    plain, without_repeats = at_once(best, lambda: best(no_repeat_ngram=2))
    assert len(set(ngrams(without_repeats["tokens"], 2))) == len(ngrams(without_repeats["tokens"], 2))
    without_first, stopped = at_once(
        lambda: best(bad_word_tokens=[{"tokens": plain["tokens"][:1]}]),
        lambda: best(stop_tokens=[{"tokens": plain["tokens"]}]),
    )
    assert plain["tokens"][0] not in without_first["tokens"]
    assert stopped["finish_reason"] == "stop"
    assert not set(stopped["tokens"]) & set(plain["tokens"])


def test_answers_follow_the_response_format(application: Application, friendli: Any) -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "type": "object"}
    as_text: dict[str, Any] = {"type": "json_object", "schema": json.dumps(schema)}
    regex = {"type": "regex", "schema": "(red|blue)-[0-9]{3}"}
    openais: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": {**schema, "required": ["a"]}}}
    one, two, three = at_once(
        lambda: answer(application, prompt="A JSON object:", response_format=as_text, **STRUCTURED),
        lambda: answer(application, prompt="A colour and a number:", response_format=regex),
        lambda: complete(friendli, prompt="A JSON object:", response_format=openais, **STRUCTURED),
    )
    assert set(json.loads(one["choices"][0]["text"])) == {"a", "b"}
    assert re.fullmatch("(red|blue)-[0-9]{3}", two["choices"][0]["text"])
    assert isinstance(json.loads(three.choices[0].text)["a"], int)
    refused = post(application, prompt="x", response_format={"type": "regex", "schema": "("})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"logprobs": 1000}, "logprobs"),
        ({"tokens": [49_152], "prompt": None}, "tokens"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty"),
        ({"num_beams": 4, "n": 2}, "n"),
        ({"include_output_logits": True}, "include_output_logits"),
        ({"token_index_to_replace": [0], "embedding_to_replace": [0.5]}, "embedding_to_replace"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_the_field(
    application: Application, fields: dict[str, Any], param: str
) -> None:
    for more in ({}, {} if "num_beams" in fields else {"stream": True}):
        refused = post(application, **{"prompt": "x", **fields, **more})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_sdk_raises(friendli: Any) -> None:
    with pytest.raises(SDKError, match="logprobs") as raised:
        complete(friendli, logprobs=1000)
    assert raised.value.status_code == 400
    with pytest.raises(SDKError) as raised:
        complete(friendli, model="gone")
    assert raised.value.status_code == 404


def test_openais_clients_are_unaffected(application: Application) -> None:
    result = application.sdk.completions.create(model=GREEN, prompt=PROMPT, max_tokens=3, temperature=0, logprobs=0)
    assert result.object == "text_completion"
    assert not hasattr(result.choices[0], "seed")
    raw = post(application, "/v1/completions", prompt=PROMPT, max_tokens=3, temperature=0)
    assert "seed" not in raw.json()["choices"][0]
    theirs = post(application, "/v1/completions", prompt=PROMPT, max_tokens=3, temperature=0, stop_tokens=None)
    assert theirs.json()["choices"][0]["seed"]
    assert theirs.json()["choices"][0]["text"] == result.choices[0].text == raw.json()["choices"][0]["text"]


def test_the_sdk_chats(application: Application, friendli: Any) -> None:
    fields: dict[str, Any] = {"model": GREEN, "messages": MESSAGES, "temperature": 0, "max_tokens": 24, "retries": None}
    sampled = {**fields, "temperature": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    chat = friendli.serverless.chat

    def streamed() -> str:
        with friendli.dedicated.chat.complete(**fields, stream=True) as stream:
            return "".join(event.data.choices[0].delta.content or "" for event in stream)

    result, text, pair, again, called = at_once(
        lambda: chat.complete(**fields),
        streamed,
        lambda: chat.complete(**sampled, n=2, seed=[9, 4]),
        lambda: chat.complete(**sampled, seed=4),
        lambda: chat.complete(**{**fields, "max_tokens": 200}, tools=[tool], tool_choice="required"),
    )
    assert answers(result.choices[0].message.content)
    assert text == result.choices[0].message.content
    assert pair.choices[1].message.content == again.choices[0].message.content
    assert called.choices[0].message.tool_calls[0].function.name == "f"


def test_tokens_and_rendered_conversations(friendli: Any) -> None:
    ids = ids_of(friendli, MANY_BYTES)
    assert friendli.serverless.token.detokenize(model=GREEN, tokens=ids, retries=None).text == MANY_BYTES
    text = friendli.serverless.chat_render.render(model=GREEN, messages=MESSAGES, retries=None).text
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")


def test_embeddings_and_the_catalogue(friendli: Any) -> None:
    result = friendli.dedicated.embeddings.embeddings(model="embed", input_=["a", "b"], retries=None)
    assert [len(item.embedding) for item in result.data] == [384, 384]
    assert result.usage.completion_tokens == 0
    models = {model.id for model in friendli.serverless.model.models(retries=None).data}
    assert models == {"chat", "chat:smollm2-blue", "chat:smollm2-green", "embed", "embed:minilm"}


NUMBERS = st.none() | st.integers(-1, 40) | st.floats(-3, 3) | st.just(2**64)
FIELDS: dict[str, Any] = {
    "max_tokens": st.integers(-1, 8),
    **dict.fromkeys(["min_tokens", "n", "num_beams", "no_repeat_ngram", "top_k", "logprobs"], NUMBERS),
    **dict.fromkeys(["temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "seed"], NUMBERS),
    "beam_search_type": st.sampled_from(["DETERMINISTIC", "NAIVE_SAMPLING", "STOCHASTIC"]),
    "stop": st.lists(st.text(max_size=3), max_size=3),
    "stop_tokens": st.lists(
        st.fixed_dictionaries({"tokens": st.lists(st.integers(-1, 60_000), max_size=2)}), max_size=2
    ),
    "bad_words": st.lists(st.text(max_size=3), max_size=3),
    "forced_output_tokens": st.lists(st.integers(-1, 60_000), max_size=3),
    "stream": st.booleans(),
}


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])  # each is a generation of the real engine
@given(
    st.dictionaries(st.sampled_from(sorted(FIELDS)), st.none(), max_size=4).flatmap(
        lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
    )
)
def test_any_fields_are_answered_or_rejected_by_name(application: Application, fields: dict[str, Any]) -> None:
    result = post(application, **{"prompt": "a", "max_tokens": 3, **fields})
    assert result.status_code in (200, 400, 422), (fields, result.text)
    if result.status_code != 200:
        error = result.json()["error"]
        assert error["param"], (fields, error)
        assert error["param"] in error["message"]
