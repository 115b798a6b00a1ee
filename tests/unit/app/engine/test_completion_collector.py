"""Streams of completion chunks, collected into whole answers: complete, truncated, and broken."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.collectors import CompletionCollector
from app.engine.expected import choices_of
from app.errors import Broken, Rejected

BODY = {"prompt": ["a", "b"], "n": 2, "max_tokens": 5}
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}


def frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def logprobs(*tokens: str) -> dict[str, Any]:
    return {
        "text_offset": list(range(len(tokens))),
        "token_logprobs": [-1.0] * len(tokens),
        "tokens": list(tokens),
        "top_logprobs": [{token: -1.0} for token in tokens],
    }


def part(index: int, text: str, completion: int, finish_reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason, **fields}
    usage = {"prompt_tokens": 3 + index // 2, "completion_tokens": completion, "total_tokens": 0}
    return frame({**HEAD, "choices": [choice], "usage": usage})


PARTS = [
    part(0, "é", 1, logprobs=logprobs("é")),
    part(3, "x", 1),
    part(0, "1", 2, "stop", stop_reason="!", logprobs=logprobs("1")),
    part(1, "2", 1, "length"),
    part(2, "y", 1, "length"),
    part(3, "z", 2, "stop"),
]
SUMS = {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
STREAM = (
    b"".join(PARTS) + frame({**HEAD, "choices": [], "usage": SUMS, "system_fingerprint": "f"}) + b"data: [DONE]\n\n"
)


def fed(*chunks: bytes, **body: Any) -> CompletionCollector:
    collector = CompletionCollector({**BODY, **body})
    for chunk in chunks:
        collector.feed(chunk)
    return collector


def test_the_request_is_streamed_with_token_counts() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert CompletionCollector(BODY).request == {**BODY, "stream": True, "stream_options": options}


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_becomes_the_whole_body_in_any_chunking(points: list[int]) -> None:
    edges = [0, *sorted(points), len(STREAM)]
    body = json.loads(fed(*(STREAM[a:b] for a, b in pairwise(edges))).complete())
    assert {name: body[name] for name in HEAD} == HEAD
    assert (body["usage"], body["system_fingerprint"]) == (SUMS, "f")
    answer = [(c["index"], c["text"], c["finish_reason"], c["stop_reason"]) for c in body["choices"]]
    assert answer == [
        (0, "é1", "stop", "!"),
        (1, "2", "length", None),
        (2, "y", "length", None),
        (3, "xz", "stop", None),
    ]
    assert body["choices"][0]["logprobs"] == {**logprobs("é", "1"), "text_offset": [0, 0]}
    assert body["choices"][1]["logprobs"] is None


def test_the_partial_body_has_finish_reason_length_and_is_counted() -> None:
    collector = fed(*PARTS[:3])
    body = json.loads(collector.at_deadline() or b"")
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [
        ("é1", "stop"),
        ("", "length"),
        ("", "length"),
        ("x", "length"),
    ]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    with pytest.raises(Broken, match="before it was complete"):
        collector.complete()


def test_there_is_no_partial_body_before_the_first_choice() -> None:
    assert fed(b": ping\n\n").at_deadline() is None
    assert fed(PARTS[0]).at_deadline() is not None


@pytest.mark.parametrize(
    ("prompt", "count"), [("a", 2), (["a"], 2), (["a", "b", "c"], 6), ([1, 2, 3], 2), ([[1], [2]], 4)]
)
def test_each_prompt_has_its_choices(prompt: Any, count: int) -> None:
    assert choices_of({"prompt": prompt, "n": 2}) == count
    assert choices_of({"prompt": prompt}) == count // 2


def test_the_engines_error_event_is_raised() -> None:
    with pytest.raises(Rejected, match="too long"):
        fed(PARTS[0] + frame({"error": {"message": "too long", "code": 400}}))
    with pytest.raises(Broken):
        fed(frame({"error": {"message": "CUDA", "code": 500}}))


@pytest.mark.parametrize("bad", [b"{", b"[]", b"5", b"{}", b'{"choices":[{"index":9}]}', b"\xff"])
def test_a_malformed_stream_is_broken(bad: bytes) -> None:
    with pytest.raises(Broken):
        fed(b"data: " + bad + b"\n\n")
