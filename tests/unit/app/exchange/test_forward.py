"""Answers carry the deployment's name, not its engine's.

Running an awaitable without a task, as is done to send chunks to a client.
"""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.aio import run_until_blocked
from app.dialects.bodies import dump
from app.engine.answers import EventCheck
from app.exchange.response import DeploymentNames, EventNames
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
    assert b"".join(NAMES.in_long_answer(body, piece)) == NAMES.in_answer(body)


def test_inner_objects_of_an_answer_stay() -> None:
    answer = {"content": [{"input": {"model": "org/M-1"}}], "model": "org/M-1"}
    expected = {**answer, "model": "blue"}
    assert json.loads(NAMES.in_answer(dump(answer))) == expected
    assert json.loads(b"".join(NAMES.in_long_answer(dump(answer)))) == expected


def test_an_absent_fingerprint_stays_absent() -> None:
    body = dump({"system_fingerprint": None, "model": "another"})
    assert NAMES.in_answer(body) == body


async def test_an_awaitable_that_does_not_wait_runs_at_once() -> None:
    done = []

    async def at_once() -> None:
        done.append(1)

    assert run_until_blocked(at_once()) is None
    assert done == [1]


async def test_the_rest_resumes_where_it_waited() -> None:
    go, seen = asyncio.Event(), []

    async def in_steps() -> None:
        seen.append("started")
        await go.wait()
        seen.append("woken")
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        seen.append("done")

    rest = run_until_blocked(in_steps())
    assert rest is not None
    assert seen == ["started"]
    asyncio.get_running_loop().call_soon(go.set)
    await rest
    assert seen == ["started", "woken", "done"]


async def test_the_awaited_event_may_happen_before_the_rest_is_awaited() -> None:
    go = asyncio.Event()
    rest = run_until_blocked(_waiting(go))
    go.set()
    assert rest is not None
    await asyncio.wait_for(_all_of(rest), 1)


async def test_errors_come_out_of_both_parts() -> None:
    async def fails(first: bool) -> None:
        if not first:
            await asyncio.sleep(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        run_until_blocked(fails(True))
    rest = run_until_blocked(fails(False))
    assert rest is not None
    with pytest.raises(ConnectionError):
        await rest


async def test_a_cancellation_reaches_the_waiting_awaitable() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    rest = run_until_blocked(waits())
    assert rest is not None
    task = asyncio.create_task(_all_of(rest))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]


async def _waiting(go: asyncio.Event) -> None:
    await go.wait()


async def _all_of(rest: Awaitable[None]) -> None:
    await rest
