"""Answers carry the deployment's name, not its engine's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.bodies import dump
from app.engine.answers import EventCheck
from app.exchange import forward
from app.exchange.forward import DeploymentNames, EventNames
from app.sse import Decoder, encode

NAMES = DeploymentNames("blue", "org/M-1")
TEXTS = st.text() | st.just('"model":"org/M-1"') | st.just('"system_fingerprint":"')
CHUNKS = st.fixed_dictionaries({"delta": TEXTS}, optional={"model": st.just("org/M-1")})


@given(st.lists(CHUNKS))
def test_events_name_the_deployment_and_keep_texts_unchanged(chunks: list[dict[str, Any]]) -> None:
    renamed = [{**chunk, "model": "blue"} if "model" in chunk else chunk for chunk in chunks]
    frames = b"".join(encode(dump(chunk)) for chunk in chunks)
    assert NAMES.in_events(frames) == b"".join(encode(dump(chunk)) for chunk in renamed)


@given(st.lists(CHUNKS))
def test_so_do_events_and_answers_of_servers_that_put_spaces_into_their_json(chunks: list[dict[str, Any]]) -> None:
    sent = [{"id": "c", **chunk, "system_fingerprint": "f"} for chunk in chunks]
    named = [{**chunk, "system_fingerprint": "blue-f"} for chunk in sent]
    named = [{**chunk, "model": "blue"} if "model" in chunk else chunk for chunk in named]
    frames = NAMES.in_events(b"".join(encode(json.dumps(chunk).encode()) for chunk in sent))
    assert [json.loads(event.data) for event in Decoder().feed(frames)] == named
    for chunk, expected in zip(sent, named, strict=True):
        body = json.dumps(chunk).encode()
        assert json.loads(NAMES.in_answer(body)) == expected
        assert json.loads(b"".join(NAMES.in_long_answer(body))) == expected


MEMBERS = st.dictionaries(
    st.sampled_from(["model", "system_fingerprint", "content", "sequence_number", "x", "delta"]),
    TEXTS | st.just("org/M-1") | st.integers(0, 9) | st.fixed_dictionaries({"text": TEXTS}),
)
"""An event's members: names before, in and behind its text."""


@given(MEMBERS, st.lists(TEXTS | MEMBERS), st.booleans(), st.integers(1, 3))
def test_events_that_repeat_each_other_get_the_same_names(
    first: dict[str, Any], others: list[str | dict[str, Any]], with_spaces: bool, count: int
) -> None:
    check = EventCheck("/v1/chat/completions")
    names = EventNames(NAMES, check)

    def frame(event: dict[str, Any]) -> bytes:
        return encode(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace") if with_spaces else dump(event))

    events = [first, *({**first, "delta": other} if isinstance(other, str) else other for other in others)]
    for frames in (b"".join(map(frame, events[place : place + count])) for place in range(len(events))):
        is_repeated = check.repeats(frames) or check.valid(frames)
        assert names.renamed(frames, are_checked=True) == NAMES.in_events(frames)
        assert names.renamed(frames, are_checked=False) == NAMES.in_events(frames)
        if not is_repeated:
            check.learn(frames)


@given(TEXTS)
def test_an_answer_names_the_deployment_and_keeps_texts_unchanged(text: str) -> None:
    answer = {"model": "org/M-1", "content": text, "system_fingerprint": "f"}
    expected = {"model": "blue", "content": text, "system_fingerprint": "blue-f"}
    assert NAMES.in_answer(dump(answer)) == dump(expected)


@given(TEXTS, st.integers(1, 40), st.booleans())
def test_a_long_answer_in_pieces_is_the_same(text: str, piece: int, is_first: bool) -> None:
    content = {"content": text, "system_fingerprint": "f"}
    body = dump({"model": "org/M-1", **content} if is_first else {**content, "model": "org/M-1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "_PIECE", piece)
        assert b"".join(NAMES.in_long_answer(body)) == NAMES.in_answer(body)


def test_inner_objects_of_an_answer_stay() -> None:
    answer = {"content": [{"input": {"model": "org/M-1"}}], "model": "org/M-1"}
    expected = {**answer, "model": "blue"}
    assert json.loads(NAMES.in_answer(dump(answer))) == expected
    assert json.loads(b"".join(NAMES.in_long_answer(dump(answer)))) == expected


def test_an_absent_fingerprint_stays_absent() -> None:
    body = dump({"system_fingerprint": None, "model": "another"})
    assert NAMES.in_answer(body) == body
