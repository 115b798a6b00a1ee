"""A token id that the model does not have is refused in every form of a prompt: an engine would die of it."""

import json

import httpx
import pytest

from deployments.weights.cache import prepare_tiny
from tests.support.processes.project import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_no_id_beyond_the_vocabulary_reaches_the_engine(text: httpx.Client) -> None:
    size = json.loads((prepare_tiny(ROOT / ".models") / "config.json").read_text())["vocab_size"]
    for id in (size, size + 1, 2**31 - 1):
        for prompt in ([id], [1, id, 2], [[1, 2], [id]]):
            for stream in (False, True):
                body = {"model": "text", "prompt": prompt, "max_tokens": 1, "stream": stream}
                answer = text.post("/v1/completions", json=body)
                assert answer.status_code == 400, (body, answer.text)
                assert "vocabulary" in answer.text
    answer = text.post("/v1/completions", json={"model": "text", "prompt": [size - 1], "max_tokens": 1})
    assert answer.status_code == 200, answer.text
