"""A replayed request is as large as the recorded one, and a valid request of OpenAI's API."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import parse
from app.dialects.base import Call, ParseContext, Request
from app.dialects.openai.dialect import OpenAI
from app.experiments.replay.traces import parts, replayed, text_of, words, words_of_bytes
from app.request_recordings.recorder import RecordedRequest
from app.request_recordings.redaction import anonymous

CONFIG = parse(
    {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}}},
        "deployments": {"blue": {"app": "blue", "model": "m"}},
    }
)
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/score": "score",
}


def request(task: str = "chat", **fields: Any) -> RecordedRequest:
    given: dict[str, Any] = {
        "at": 1.0,
        "endpoint": "chat",
        "plan": "0-abc",
        "dialect": "openai",
        "task": task,
        "stream": True,
        "unit": "0123",
        "status": 200,
        "prompt_bytes": 500,
    }
    return RecordedRequest(**(given | fields))


def parsed(path: str, body: bytes) -> Call:
    """The request as OpenAI's dialect reads it. Raises ClientError."""
    return OpenAI().parse(OPERATIONS[path], Request("POST", path, body), ParseContext(CONFIG, Random(1)))


recordings = st.builds(
    request,
    st.sampled_from(["chat", "completions", "responses", "embeddings", "rerank"]),
    stream=st.booleans(),
    turn=st.integers(0, 40),
    prompt_bytes=st.integers(0, 10_000),
    prompt_tokens=st.none() | st.integers(0, 2000),
    completion_tokens=st.none() | st.integers(0, 2000),
    parameters=st.dictionaries(
        st.sampled_from(["max_tokens", "temperature", "n", "stop", "tools", "inputs", "top_p"]),
        st.integers(-3, 300) | st.floats(-3, 300),
        max_size=4,
    ),
)


@given(recordings)
def test_every_recording_without_text_becomes_a_valid_request(recorded: RecordedRequest) -> None:
    it = replayed(recorded)
    assert it.is_synthetic
    body = json.dumps(it.body).encode()
    call = parsed(it.path, body)
    assert (call.task, call.model) == (recorded.task, "chat")
    assert call.translation.stream == (recorded.stream and recorded.task not in ("embeddings", "rerank"))
    assert replayed(recorded) == it, "it is the same every time"


@given(st.integers(1, 5000))
def test_a_made_up_prompt_has_a_word_for_each_token(tokens: int) -> None:
    assert len(text_of(request(prompt_tokens=tokens))) == tokens


@given(st.integers(1, 5000))
def test_without_a_count_of_tokens_it_has_as_many_bytes(size: int) -> None:
    text = " ".join(words_of_bytes("seed", size))
    assert abs(len(text) - size) <= 7


@given(st.integers(1, 300), st.integers(1, 300))
def test_longer_texts_of_a_unit_begin_with_the_shorter_ones(one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert words("unit", long)[:short] == words("unit", short)


@given(st.integers(1, 200), st.integers(1, 50))
def test_parts_are_the_whole_text_and_none_is_empty(length: int, count: int) -> None:
    text = words("seed", length)
    found = parts(text, count)
    assert " ".join(found).split(" ") == text
    assert all(found)
    assert len(found) == min(length, count)


def test_a_conversations_turns_are_made_up_too() -> None:
    body = replayed(request(turn=2, prompt_tokens=50)).body
    assert [it["role"] for it in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert len(" ".join(it["content"] for it in body["messages"]).split()) == 50


def test_a_made_up_query_counts_once_for_each_document() -> None:
    body = replayed(request("rerank", prompt_tokens=60, parameters={"inputs": 3})).body
    assert len(body["documents"]) == 3
    assert sum(len(f"{body['query']} {it}".split()) for it in body["documents"]) == 60


def test_the_answer_gets_as_many_tokens_as_it_had() -> None:
    body = replayed(request(completion_tokens=40, parameters={"n": 2, "max_tokens": 512, "temperature": 0})).body
    assert (body["max_tokens"], body["ignore_eos"], body["n"], body["temperature"]) == (20, True, 2, 0)
    body = replayed(request(parameters={"max_tokens": 512})).body
    assert (body["max_tokens"], "ignore_eos" in body) == (512, False)


def test_a_recorded_body_is_sent_as_it_is() -> None:
    body = {"model": "blue", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.3}
    it = replayed(request(body=body))
    assert not it.is_synthetic
    assert it.path == "/v1/chat/completions"
    assert it.body == {**body, "model": "chat", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "stream": True, "user": "ada", "top_k": 3, "top_p": 0},
            id="chat",
        ),
        pytest.param("/v1/completions", {"prompt": ["a", "b"], "best_of": 2, "n": 1, "suffix": ""}, id="completions"),
        pytest.param("/v1/completions", {"prompt": [1, 2, 3], "stream": True}, id="token ids"),
        pytest.param("/v1/responses", {"input": "hi", "stream": True, "metadata": {"a": "b"}}, id="responses"),
        pytest.param("/v1/embeddings", {"input": ["a", "b"], "dimensions": 3}, id="embeddings"),
        pytest.param("/v1/rerank", {"query": "a", "documents": [{"text": "b"}], "top_n": 1}, id="rerank"),
        pytest.param("/score", {"text_1": "a", "text_2": ["b", "c"]}, id="score"),
    ],
)
def test_a_replayed_request_equals_the_recorded_one(path: str, body: dict[str, Any]) -> None:
    call = parsed(path, json.dumps({"model": "chat", **body}).encode())
    stream = call.translation.stream
    recorded = request(call.task, body=anonymous(call.body), stream=stream)
    it = replayed(recorded)
    again = parsed(it.path, json.dumps(it.body).encode())
    assert (it.path, again.task, again.translation.stream) == (path, call.task, stream)
    assert {**anonymous(again.body), "stream": stream} == {**anonymous(call.body), "stream": stream}


def test_fields_that_only_vllm_takes_are_removed_from_a_recorded_body() -> None:
    it = replayed(request("completions", body={"prompt": "hi", "seeds": [1], "suffix": None}, stream=False))
    assert it.body == {"prompt": "hi", "model": "chat", "stream": False}


def test_anthropics_bodies_go_to_anthropics_api() -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "system": "Be brief."}
    it = replayed(request(dialect="anthropic", body=body))
    assert (it.path, it.body) == ("/v1/messages", {**body, "model": "chat", "stream": True})
    assert replayed(request(dialect="anthropic", prompt_tokens=5)).path == "/v1/chat/completions"


def test_a_task_of_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown task 'sing'"):
        replayed(request("sing"))
