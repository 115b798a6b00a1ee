"""The names in answers: the deployment's, not its engine's."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.dialects.json_body import dump
from app.exchange.deployment_names import DeploymentNames
from app.sse import encode
from app.upstream.target import Target

NAMES = DeploymentNames(Target("blue", "http://engine", "org/M-1", {}))
TEXTS = st.text() | st.just('"model":"org/M-1"') | st.just('"system_fingerprint":"')
CHUNKS = st.fixed_dictionaries({"delta": TEXTS}, optional={"model": st.just("org/M-1")})


@given(st.lists(CHUNKS))
def test_events_name_the_deployment_and_texts_stay(chunks: list[dict[str, Any]]) -> None:
    renamed = [{**chunk, "model": "blue"} if "model" in chunk else chunk for chunk in chunks]
    frames = b"".join(encode(dump(chunk)) for chunk in chunks)
    assert NAMES.in_events(frames) == b"".join(encode(dump(chunk)) for chunk in renamed)


@given(TEXTS)
def test_an_answer_names_the_deployment_and_texts_stay(text: str) -> None:
    answer = {"model": "org/M-1", "content": text, "system_fingerprint": "f"}
    expected = {"model": "blue", "content": text, "system_fingerprint": "blue-f"}
    assert NAMES.in_answer(dump(answer)) == dump(expected)


def test_inner_objects_of_an_answer_stay() -> None:
    answer = {"content": [{"input": {"model": "org/M-1"}}], "model": "org/M-1"}
    assert json.loads(NAMES.in_answer(dump(answer))) == {**answer, "model": "blue"}


def test_an_absent_fingerprint_stays_absent() -> None:
    body = dump({"system_fingerprint": None, "model": "another"})
    assert NAMES.in_answer(body) == body
