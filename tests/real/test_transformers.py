"""Beam search and embeddings on real weights, compared with those of transformers on the same weights."""

from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from app.internal_api import INTERNAL_KEY_HEADER
from tests.real.conftest import Application, at_once
from tests.support.engine import transformers_reference as reference

pytestmark = pytest.mark.real

GREEN = "smollm2-green"  # in float32 and without a prefix cache, as the reference
MODEL = "SmolLM2-135M-Instruct"
STORY = "Once upon a time there was a little bird. The little bird"


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "early, by the sum": {"early_stopping": True, "length_penalty": 0.0},
    "no n-gram twice": {"no_repeat_ngram": 2},
}


def search(settings: dict[str, Any]) -> dict[str, Any]:
    return {"width": 4, "early_stopping": False, "length_penalty": 1.0, "no_repeat_ngram": 1, **settings}


@pytest.fixture(scope="module")
def found(application: Application) -> dict[str, list[Any]]:
    """The choices of every search, all from one batch of the engine."""

    def choices(settings: dict[str, Any]) -> list[Any]:
        beam = search(settings)
        fields = {"model": MODEL, "prompt": STORY, "max_tokens": 12, "n": 4, "beam": beam, "return_token_ids": True}
        url = f"{application.url}/deployments/{GREEN}/switchyard/completions"
        headers = {INTERNAL_KEY_HEADER: application.internal_key}
        answer = httpx.post(url, json=fields, headers=headers, timeout=240)
        assert answer.status_code == 200, answer.text
        result: list[Any] = answer.json()["choices"]
        return result

    return dict(zip(SETTINGS, at_once(*(partial(choices, settings) for settings in SETTINGS.values())), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_search_finds_the_beams_of_transformers(found: dict[str, list[Any]], name: str) -> None:
    fields = search(SETTINGS[name])
    expected = reference.beams(
        STORY,
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=12,
        early_stopping=fields["early_stopping"],
        length_penalty=fields["length_penalty"],
        no_repeat_ngram_size=fields["no_repeat_ngram"] if fields["no_repeat_ngram"] > 1 else 0,
    )
    assert [choice["token_ids"] for choice in found[name]] == [ids for ids, _ in expected]
    np.testing.assert_allclose([choice["beam_score"] for choice in found[name]], [s for _, s in expected], rtol=1e-3)


def test_embeddings_agree_with_transformers(application: Application) -> None:
    texts = ["hello", "A longer sentence about cats and dogs.", "Ünïcödé 中文 😀", "x " * 200]
    served = application.sdk.embeddings.create(model="embed", input=texts)
    for item, expected in zip(served.data, reference.embed(texts), strict=True):  # both have the length one
        assert np.dot(item.embedding, expected) >= 0.999


def test_the_route_needs_the_internal_key(application: Application) -> None:
    url = f"{application.url}/deployments/{GREEN}/switchyard/completions"
    assert httpx.post(url, json={"model": MODEL, "prompt": "a"}).status_code == 401
