"""The logits processors in the real engine: each acts on every sequence of a batch, and on no other request.

Their guarantees over thousands of tokens are tested without a model, in tests/unit.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from app.internal_api import INTERNAL_KEY_HEADER
from deployments.weights.cache import default_cache, prepare
from tests.real.conftest import Application, at_once

pytestmark = pytest.mark.real

BLUE, GREEN = "smollm2-blue", "smollm2-green"
"""Green has no prefix cache: the same question is computed alike. Texts to compare are green's."""
PROMPTS = [
    "The history of the bicycle begins",
    "Dear neighbour, thank you for",
    "Once upon a time there was a",
    "The difference between rain and snow is",
]

Text = tuple[list[int], list[int]]
"""The token ids of a prompt and of its output."""


def post(application: Application, path: str, body: dict[str, Any], deployment: str = GREEN) -> httpx.Response:
    """To vLLM's own server in the deployment."""
    url = f"{application.url}/deployments/{deployment}{path}"
    return httpx.post(url, json=body, headers={INTERNAL_KEY_HEADER: application.internal_key}, timeout=240)


def complete(
    application: Application, xargs: dict[str, Any] | None, deployment: str = GREEN, **fields: Any
) -> list[Text]:
    """Every prompt's completion."""
    body = {"model": "SmolLM2-135M-Instruct", "prompt": PROMPTS, "ignore_eos": True, "return_token_ids": True}
    answer = post(application, "/v1/completions", {**body, "vllm_xargs": xargs, **fields}, deployment)
    assert answer.status_code == 200, answer.text
    return [(choice["prompt_token_ids"], choice["token_ids"]) for choice in answer.json()["choices"]]


GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 110}
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 150}
N = 3


@dataclass(frozen=True)
class Texts:
    """Texts from two engines, each with and without a processor in one batch."""

    greedy: list[Text]
    without_repeats: list[Text]
    marked: list[Text]
    unmarked: list[Text]


@pytest.fixture(scope="module")
def texts(application: Application) -> Texts:
    return Texts(
        *at_once(
            lambda: complete(application, None, BLUE, **GREEDY),
            lambda: complete(application, {"no_repeat_ngram": N}, BLUE, **GREEDY),
            lambda: complete(application, {"watermark": True}, **SAMPLED),
            lambda: complete(application, {"watermark": False}, **SAMPLED),
        )
    )


@pytest.fixture(scope="module")
def greedy(texts: Texts) -> list[Text]:
    """The model's own texts, without processors."""
    return texts.greedy


@pytest.fixture(scope="module")
def vocabulary_size() -> int:
    config = prepare("SmolLM2-135M-Instruct", default_cache()) / "config.json"
    size: int = json.loads(config.read_text())["vocab_size"]
    return size


def ngrams(text: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]


def test_the_watermark_is_found_in_marked_text_only(texts: Texts, vocabulary_size: int) -> None:
    from deployments.engine.logits.processors import detect  # imports torch: only here

    scores = [detect(output, vocabulary_size).z for _, output in texts.marked]
    not_found = [detect(output, vocabulary_size).z for _, output in texts.unmarked]
    assert min(scores) > 4, scores
    assert max(not_found) < 4, not_found


def test_no_ngram_comes_twice(texts: Texts) -> None:
    for prompt, output in texts.without_repeats:
        seen = ngrams(prompt + output, N)
        assert len(set(seen)) == len(seen)
    repeated = [prompt + output for prompt, output in texts.greedy]
    assert sum(len(ngrams(text, N)) - len(set(ngrams(text, N))) for text in repeated) > 50


def test_forbidden_sequences_do_not_appear(application: Application, greedy: list[Text]) -> None:
    """Forbids the beginnings of the model's own outputs, one of each length."""
    forbidden = sorted({tuple(output[i : i + n]) for _, output in greedy for i, n in [(0, 2), (2, 3), (5, 1)]})
    flat = [number for ids in forbidden for number in (-1, *ids)][1:]
    texts = complete(application, {"bad_word_tokens": flat}, BLUE, temperature=0, max_tokens=60)
    for _, output in texts:
        assert not {ids for n in (1, 2, 3) for ids in ngrams(output, n)} & set(forbidden)


def test_forced_tokens_appear_with_the_models_logprobs(application: Application, greedy: list[Text]) -> None:
    forced = greedy[0][1][:64]
    texts = complete(application, {"forced_output_tokens": forced}, BLUE, max_tokens=64)
    assert [output for _, output in texts] == [forced] * len(PROMPTS)
    body = {"model": "SmolLM2-135M-Instruct", "prompt": PROMPTS[0], "max_tokens": 8, "logprobs": 0, "ignore_eos": True}
    free = post(application, "/v1/completions", {**body, "temperature": 0, "return_token_ids": True})
    (choice,) = free.json()["choices"]
    same = post(application, "/v1/completions", {**body, "vllm_xargs": {"forced_output_tokens": choice["token_ids"]}})
    logprobs = same.json()["choices"][0]["logprobs"]["token_logprobs"]
    assert logprobs == pytest.approx(choice["logprobs"]["token_logprobs"], abs=0.01)


def test_a_temperature_above_vllms_limit_flattens_the_distribution(application: Application) -> None:
    [(_, output)] = complete(
        application, {"temperature": 1000}, BLUE, prompt=PROMPTS[:1], temperature=2, seed=1, max_tokens=50
    )
    assert len(set(output)) > 47  # of 49,152, nearly alike


def test_a_tiny_typical_mass_leaves_one_token_for_every_seed(application: Application) -> None:
    def fields(seed: int, mass: float) -> list[Text]:
        return complete(application, {"typical_p": mass}, temperature=1, seed=seed, max_tokens=12)

    one, two, typical = at_once(lambda: fields(1, 1e-6), lambda: fields(2, 1e-6), lambda: fields(1, 1))
    assert one == two
    assert one != typical


def test_top_choices_are_excluded_as_the_seed_says(application: Application) -> None:
    def fields(seed: int, probability: float) -> list[Text]:
        xargs = {"xtc_threshold": 0.01, "xtc_probability": probability}
        return complete(application, xargs, temperature=1, top_k=1, seed=seed, max_tokens=12)

    always, half, again, never, other = at_once(
        *(partial(fields, seed, share) for seed, share in [(1, 1), (1, 0.5), (1, 0.5), (1, 0), (2, 0.5)])
    )
    assert again == half
    assert other != half
    assert all(a[1][0] != n[1][0] for a, n in zip(always, never, strict=True))  # the first token is none of the top
    assert half not in (always, never)


@pytest.mark.parametrize(
    ("xargs", "message"),
    [
        ({"watermark": "yes"}, "watermark must be true or false, got 'yes'"),
        ({"no_repeat_ngram": 0}, "no_repeat_ngram must be at least 1, got 0"),
        ({"bad_word_tokens": [5, -1]}, "bad_word_tokens holds an empty sequence"),
        ({"bad_word_tokens": [49152]}, "bad_word_tokens holds 49152, which is no token id: they are 0 to 49151"),
        ({"forced_output_tokens": [-2]}, "forced_output_tokens holds -2, which is no token id"),
        ({"typical_p": 1.5}, "typical_p must be above 0 and at most 1, got 1.5"),
        ({"xtc_probability": 2}, "xtc_probability must be between 0 and 1, got 2"),
        ({"temperature": 5}, "temperature among the vllm_xargs needs 2 as the request's temperature, got 1"),
    ],
)
def test_wrong_values_are_rejected_by_name(application: Application, xargs: dict[str, Any], message: str) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "a", "temperature": 1, "vllm_xargs": xargs}
    answer = post(application, "/v1/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_the_token_route_supports_the_processors(application: Application) -> None:
    def generate(ids: Any) -> httpx.Response:
        params = {"max_tokens": 3, "extra_args": {"forced_output_tokens": ids}}
        return post(application, "/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": params})

    assert generate([5, 6, 7]).json()["choices"][0]["token_ids"] == [5, 6, 7]
    refused = generate([[5], [6]])
    assert (refused.status_code, refused.json()["error"]["message"].partition(",")[0]) == (
        400,
        "forced_output_tokens must be a list of integers",
    )


def test_the_openai_api_reaches_the_processors(application: Application) -> None:
    def say(**xargs: Any) -> Any:
        extra = {"vllm_xargs": xargs, "return_token_ids": True}
        return application.sdk.completions.create(model=GREEN, prompt="a", max_tokens=3, extra_body=extra)

    assert say(forced_output_tokens=[5, 6, 7]).choices[0].token_ids == [5, 6, 7]
    with pytest.raises(openai.BadRequestError, match="no_repeat_ngram must be at least 1"):
        say(no_repeat_ngram=0)


def test_the_engine_survives_all_of_these_requests(application: Application) -> None:
    asks = {
        "watermark": True,
        "no_repeat_ngram": 3,
        "bad_word_tokens": [7, -1, 9, 9],
        "typical_p": 0.9,
        "xtc_threshold": 0.1,
        "xtc_probability": 0.5,
        "temperature": 3,
    }
    grammar = {"structured_outputs": {"regex": "(ab)*c"}}
    plain, grammatical = at_once(
        lambda: complete(application, asks, BLUE, temperature=2, max_tokens=20, top_p=0.9, frequency_penalty=1),
        lambda: complete(application, asks, BLUE, temperature=2, max_tokens=20, ignore_eos=False, **grammar),
    )
    assert all(output for _, output in plain + grammatical)
