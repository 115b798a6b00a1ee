"""The deployment's beam search on real weights, compared with transformers' on the same weights."""

from typing import Any

import httpx
import numpy as np
import pytest

from app.internal_api import INTERNAL_KEY_HEADER
from tests.real.conftest import Application
from tests.support.engine import transformers_reference as reference

pytestmark = pytest.mark.real

GREEN = "smollm2-green"  # in float32, as the reference
MODEL = "SmolLM2-135M-Instruct"
STORY = "Once upon a time there was a little bird. The little bird"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"early_stopping": True, "length_penalty": 0.0}, id="early, by the sum"),
        pytest.param({"no_repeat_ngram": 2}, id="no n-gram twice"),
    ],
)
def test_a_search_finds_the_beams_of_transformers(application: Application, settings: dict[str, Any]) -> None:
    search = {"width": 4, "early_stopping": False, "length_penalty": 1.0, "no_repeat_ngram": 1, **settings}
    fields = {"model": MODEL, "prompt": STORY, "max_tokens": 12, "n": 4, "beam": search, "return_token_ids": True}
    url = f"{application.url}/deployments/{GREEN}/switchyard/completions"
    answer = httpx.post(url, json=fields, headers={INTERNAL_KEY_HEADER: application.internal_key}, timeout=240)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    expected = reference.beams(
        STORY,
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=12,
        early_stopping=search["early_stopping"],
        length_penalty=search["length_penalty"],
        no_repeat_ngram_size=search["no_repeat_ngram"] if search["no_repeat_ngram"] > 1 else 0,
    )
    assert [choice["token_ids"] for choice in choices] == [ids for ids, _ in expected]
    np.testing.assert_allclose([choice["beam_score"] for choice in choices], [s for _, s in expected], rtol=1e-3)


def test_the_route_needs_the_internal_key(application: Application) -> None:
    url = f"{application.url}/deployments/{GREEN}/switchyard/completions"
    assert httpx.post(url, json={"model": MODEL, "prompt": "a"}).status_code == 401
