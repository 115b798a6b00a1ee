"""The official OpenAI SDK where the text of two answers is compared: blue computes in bfloat16, so its text may depend
on the other requests in its batch."""

from typing import Any

import pytest

from tests.real.conftest import Application
from tests.support.clients.conversations import MESSAGES

pytestmark = pytest.mark.real

GREEDY: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24}


@pytest.mark.parametrize("deployment", ["smollm2-blue", "smollm2-green"])
def test_the_streamed_answer_equals_the_whole_one(application: Application, deployment: str) -> None:
    request = {**GREEDY, "model": deployment}
    whole = application.sdk.chat.completions.create(**request)
    chunks = list(application.sdk.chat.completions.create(**request, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert {chunk.model for chunk in chunks} == {whole.model} == {deployment}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)
