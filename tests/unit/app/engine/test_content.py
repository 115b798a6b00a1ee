"""The content of answers, from each of the engine's routes."""

import base64
import json
from array import array
from typing import Any

import pytest

from app.engine.collectors import MALFORMED, ToolCall, content_of, vectors_of

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
WHOLE = [
    {"choices": [{"index": 0, "message": {"content": "It rains.", "reasoning": "Hm.", "tool_calls": [CALL]}}]},
    {
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "It rains."},
            {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
        ]
    },
    {
        "output": [
            {"type": "reasoning", "content": []},
            {"type": "message", "content": [{"type": "output_text", "text": "It rains."}]},
            {"type": "function_call", "name": "weather", "arguments": '{"city":"Rome"}'},
        ]
    },
]


def events(*items: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in items) + b"data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


STREAMS = [
    events(
        delta(role="assistant", content=""),
        delta(reasoning="Hm."),
        delta(content="It "),
        delta(content="rains."),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}]),
    ),
    events(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "weather"}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"city":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '"Rome"}'}},
    ),
    events({"type": "response.created", "response": {}}, {"type": "response.completed", "response": WHOLE[2]}),
]


@pytest.mark.parametrize(
    ("answer", "stream"),
    [(json.dumps(it).encode(), False) for it in WHOLE] + [(it, True) for it in STREAMS],
)
def test_texts_and_calls_are_those_of_the_answer_and_thoughts_are_not(answer: bytes, stream: bool) -> None:
    content = content_of(answer, stream=stream)
    assert [text for text in content.texts.values() if text] == ["It rains."]
    assert content.calls == [ToolCall("weather", '{"city":"Rome"}')]


def test_several_choices_stay_apart_in_a_stream() -> None:
    parts = [{"choices": [{"index": index, "text": text}]} for index, text in [(0, "a"), (1, "x"), (0, "b")]]
    assert list(content_of(events(*parts), stream=True).texts.values()) == ["ab", "x"]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"choices": 3}', b'{"choices": [{}]}', b"\xff"])
def test_other_bytes_are_malformed(answer: bytes) -> None:
    with pytest.raises(MALFORMED):
        content_of(answer, stream=False)


def embeddings(*vectors: Any) -> bytes:
    return json.dumps({"data": [{"index": n, "embedding": v} for n, v in enumerate(vectors)]}).encode()


def test_vectors_are_read_from_numbers_and_from_base64() -> None:
    packed = base64.b64encode(array("f", [1.0, -2.5]).tobytes()).decode()
    assert [list(it) for it in vectors_of(embeddings([1.0, -2.5], [0.5, 0.25]))] == [[1.0, -2.5], [0.5, 0.25]]
    assert [list(it) for it in vectors_of(embeddings(packed, packed))] == [[1.0, -2.5]] * 2
    assert vectors_of(b'{"data": []}') == []


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_answer_has_its_complete_vectors(packed: bool) -> None:
    numbers = [[float(10 * row + column) for column in range(6)] for row in range(4)]
    values = [base64.b64encode(array("f", it).tobytes()).decode() for it in numbers] if packed else numbers
    answer = embeddings(*values)
    for cut in range(answer.index(b'"index": 2') + 5, answer.index(b'"index": 3')):
        assert [list(it) for it in vectors_of(answer[:cut])][:2] == numbers[:2]
        assert len(vectors_of(answer[:cut])) in (2, 3)
    with pytest.raises(MALFORMED):
        vectors_of(embeddings("not base64!"))
