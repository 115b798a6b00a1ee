"""TGI's chat events: the same whether a chunk is completed as bytes or parsed."""

import json
from typing import Any

import pytest

from app.dialects.tgi.chat import ChatEvents

TEXTS = (" river", 'a "delta":{"content":"', "}", "", "\n\u00e9\U0001f30a")


def _event(chunk: dict[str, Any], separators: tuple[str, str]) -> dict[str, Any]:
    data = json.dumps(chunk, ensure_ascii=False, separators=separators).encode()
    sent = ChatEvents(hide_usage=True).feed(b"data: " + data + b"\n\n")
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    event: dict[str, Any] = json.loads(sent[6:])
    return event


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fingerprint", [{}, {"system_fingerprint": "f"}, {"system_fingerprint": None}])
def test_a_chunk_with_text_only(text: str, fingerprint: dict[str, Any]) -> None:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fingerprint}
    # With spaces no search finds anything, so that the chunk is parsed.
    as_bytes, parsed = _event(chunk, (",", ":")), _event(chunk, (", ", " : "))
    assert as_bytes == parsed
    assert parsed["choices"][0]["delta"] == {"role": "assistant", "content": text, "tool_calls": None}
    assert parsed["system_fingerprint"] == (fingerprint.get("system_fingerprint") or "3.3.6-native")


def test_two_choices_in_a_chunk() -> None:
    choices = [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"reasoning": "b"}}]
    event = _event({"id": "c", "choices": choices}, (",", ":"))
    assert [choice["delta"]["role"] for choice in event["choices"]] == ["assistant", "assistant"]
