"""Sampling on a machine without a C++ compiler, for which vLLM would compile parts of its sampler."""

from typing import Any

import httpx
import pytest

from app.internal_api import APP_PREFIX, INTERNAL_KEY_HEADER
from tests.support.engine.model_application import ENGINE_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_sampled_answers_and_logprobs_need_no_compiler(engine: str) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": "Hello",
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 1,
        "n": 2,
    }
    for fields in ({}, {"seed": 3}, {"logprobs": 2}, {"logprobs": 2, "temperature": 0, "n": 1}):
        answer = httpx.post(
            f"{engine}{APP_PREFIX}tiny/v1/completions",
            json={**body, **fields},
            headers={INTERNAL_KEY_HEADER: ENGINE_KEY},
            timeout=300,
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4 * {**body, **fields}["n"]
