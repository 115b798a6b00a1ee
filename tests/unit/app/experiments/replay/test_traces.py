"""Traces have the recording's arrival times and lengths, in the format that the benchmarks read.

A replayed request is as large as the recorded one, and a valid request of OpenAI's API.

The metrics that judge a replay: an experiment's, or times.
"""

import json
from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.experiments import Experiment
from app.config.schema import parse
from app.dialects.base import Call, ParseContext, Request
from app.dialects.openai.dialect import OpenAI
from app.experiments.replay.traces import (
    BLOCK,
    Estimates,
    NothingToCompare,
    TraceFormat,
    config_of,
    parts,
    replayed,
    section_of,
    text_of,
    trace,
    words,
    words_of_bytes,
)
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


def request_requests(task: str = "chat", **fields: Any) -> RecordedRequest:
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


recordings_requests = st.builds(
    request_requests,
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


@given(recordings_requests)
def test_every_recording_without_text_becomes_a_valid_request(recorded: RecordedRequest) -> None:
    request = replayed(recorded)
    assert request.is_synthetic
    body = json.dumps(request.body).encode()
    call = parsed(request.path, body)
    assert (call.task, call.model) == (recorded.task, "chat")
    assert call.translation.stream == (recorded.stream and recorded.task not in ("embeddings", "rerank"))
    assert replayed(recorded) == request, "it is the same every time"


@given(st.integers(1, 5000))
def test_a_made_up_prompt_has_a_word_for_each_token(tokens: int) -> None:
    assert len(text_of(request_requests(prompt_tokens=tokens))) == tokens


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
    split = parts(text, count)
    assert " ".join(split).split(" ") == text
    assert all(split)
    assert len(split) == min(length, count)


def test_a_conversations_turns_are_made_up_too() -> None:
    body = replayed(request_requests(turn=2, prompt_tokens=50)).body
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert len(" ".join(message["content"] for message in body["messages"]).split()) == 50


def test_a_made_up_query_counts_once_for_each_document() -> None:
    body = replayed(request_requests("rerank", prompt_tokens=60, parameters={"inputs": 3})).body
    assert len(body["documents"]) == 3
    assert sum(len(f"{body['query']} {document}".split()) for document in body["documents"]) == 60


def test_the_answer_gets_as_many_tokens_as_it_had() -> None:
    body = replayed(
        request_requests(completion_tokens=40, parameters={"n": 2, "max_tokens": 512, "temperature": 0})
    ).body
    assert (body["max_tokens"], body["ignore_eos"], body["n"], body["temperature"]) == (20, True, 2, 0)
    body = replayed(request_requests(parameters={"max_tokens": 512})).body
    assert (body["max_tokens"], "ignore_eos" in body) == (512, False)


def test_a_recorded_body_is_sent_as_it_is() -> None:
    body = {"model": "blue", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.3}
    request = replayed(request_requests(body=body))
    assert not request.is_synthetic
    assert request.path == "/v1/chat/completions"
    assert request.body == {**body, "model": "chat", "stream": True, "stream_options": {"include_usage": True}}


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
    recorded = request_requests(call.task, body=anonymous(call.body), stream=stream)
    request = replayed(recorded)
    again = parsed(request.path, json.dumps(request.body).encode())
    assert (request.path, again.task, again.translation.stream) == (path, call.task, stream)
    assert {**anonymous(again.body), "stream": stream} == {**anonymous(call.body), "stream": stream}


def test_fields_that_only_vllm_takes_are_removed_from_a_recorded_body() -> None:
    request = replayed(
        request_requests("completions", body={"prompt": "hi", "seeds": [1], "suffix": None}, stream=False)
    )
    assert request.body == {"prompt": "hi", "model": "chat", "stream": False}


def test_anthropics_bodies_go_to_anthropics_api() -> None:
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "system": "Be brief."}
    request = replayed(request_requests(dialect="anthropic", body=body))
    assert (request.path, request.body) == ("/v1/messages", {**body, "model": "chat", "stream": True})
    assert replayed(request_requests(dialect="anthropic", prompt_tokens=5)).path == "/v1/chat/completions"


def test_a_task_of_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown task 'sing'"):
        replayed(request_requests("sing"))


FORMATS: tuple[TraceFormat, ...] = ("guidellm", "vllm-bench")


def lines(
    requests: Sequence[RecordedRequest], form: TraceFormat = "guidellm"
) -> tuple[list[dict[str, Any]], Estimates]:
    estimates = Estimates()
    return [json.loads(json.dumps(line)) for line in trace(requests, form, estimates)], estimates


def test_a_line_has_the_time_since_the_first_and_the_lengths() -> None:
    traced, estimates = lines(
        [
            request_requests(at=1000.5, prompt_tokens=40, completion_tokens=7),
            request_requests(at=1002.0, prompt_tokens=10, completion_tokens=8, parameters={"n": 2}),
        ]
    )
    assert [(line["timestamp"], line["input_length"], line["output_length"]) for line in traced] == [
        (0, 40, 7),
        (1.5, 10, 4),
    ]
    assert estimates.notes() == []
    assert "prompt" not in traced[0]


def test_missing_token_counts_are_estimated_and_reported() -> None:
    known = [request_requests(prompt_tokens=5, completion_tokens=tokens) for tokens in (10, 20, 90)]
    traced, estimates = lines(
        [*known, request_requests(prompt_bytes=400), request_requests(parameters={"max_tokens": 12})]
    )
    assert [(line["input_length"], line["output_length"]) for line in traced[3:]] == [(100, 20), (125, 12)]
    assert (estimates.prompts, estimates.answers) == (2, 2)
    assert len(estimates.notes()) == 2


def test_requests_that_failed_or_generate_nothing_are_left_out() -> None:
    traced, estimates = lines([request_requests(), request_requests(status=500), request_requests("embeddings")])
    assert (len(traced), estimates.left_out) == (1, 2)


@given(st.lists(recordings_requests, max_size=8))
def test_every_line_is_what_guidellm_and_vllm_require(requests: list[RecordedRequest]) -> None:
    """guidellm's `_validate_row` and `MooncakeTraceFormat.validate_row`: counts that are not negative, 32-bit ids, one
    for each block. vLLM's prompt is made of the ids: without enough of them it is shorter."""
    for form in FORMATS:
        traced, _ = lines(requests, form)
        sizes: dict[int, int] = {}
        for line in traced:
            assert isinstance(line["timestamp"], int | float)
            assert type(line["input_length"]) is type(line["output_length"]) is int
            assert line["input_length"] > 0
            assert line["output_length"] > 0
            ids = line["hash_ids"]
            assert len(ids) == ceil(line["input_length"] / BLOCK)
            assert all(0 <= id_ < 2**31 for id_ in ids)
            for place, id in enumerate(ids):
                size = min(BLOCK, line["input_length"] - place * BLOCK)
                assert sizes.setdefault(id, size) == size, "guidellm makes a block once"
        if form == "vllm-bench":
            assert all(line["prompt"] and line["output_tokens"] == line["output_length"] for line in traced)


def test_prompts_share_blocks_within_a_unit_only() -> None:
    traced, _ = lines(
        [
            request_requests(unit="a", prompt_tokens=40),
            request_requests(unit="a", prompt_tokens=70),
            request_requests(unit="b", prompt_tokens=40),
        ]
    )
    first, longer, other = (line["hash_ids"] for line in traced)
    assert first[:2] == longer[:2]
    assert first[2] != longer[2], "that block is not full"
    assert not set(other) & {*first, *longer}


def test_recorded_texts_are_in_the_trace() -> None:
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {}}]},
        ]
    }
    requests = [
        request_requests(at=1, body=chat, prompt_tokens=9),
        request_requests("completions", at=3, body={"prompt": "once"}),
    ]
    traced, _ = lines(requests)
    assert [line["prompt"] for line in traced] == ["Be brief.\n\nhi", "once"]
    assert [(line["relative_timestamp"], line["prompt_tokens_count"]) for line in traced] == [(0, 9), (2, 125)]
    assert all(line["output_tokens_count"] == line["output_length"] for line in traced)
    traced, _ = lines(requests, "vllm-bench")
    assert [line["prompt"] for line in traced] == ["Be brief.\n\nhi", "once"]


def test_without_texts_vllms_custom_data_set_gets_made_up_ones() -> None:
    traced, _ = lines([request_requests(prompt_tokens=9, completion_tokens=4)], "vllm-bench")
    assert (len(traced[0]["prompt"].split()), traced[0]["output_tokens"]) == (9, 4)


ARMS = ["blue", "green", "red"]


def declared(**fields: Any) -> Experiment:
    given = {
        "endpoint": "elsewhere",
        "control": "a",
        "treatments": ["b"],
        "primary": [{"metric": "goodput", "minimal_effect": 0.1, "within": {"ttft_s": 1, "itl_s": 1}}],
        "alpha": 0.01,
        "ramp": {"steps": [1, 5]},
        "mode": "aa",
        "feedback": {"thumbs": {}},
        "strata": ["stream"],
    }
    return Experiment.model_validate(given | fields)


def test_without_an_experiment_streams_are_judged_by_the_first_token_and_others_by_the_duration() -> None:
    streams = section_of(ARMS, [request_requests(), request_requests(stream=False)], None)
    assert [metric.key for metric in streams.primary] == ["ttft"]
    whole = section_of(ARMS, [request_requests("embeddings", stream=False)], None)
    assert [metric.key for metric in whole.primary] == ["duration"]
    assert (whole.endpoint, whole.control, whole.treatments) == ("chat", "blue", ("green", "red"))


def test_an_experiments_metrics_are_taken_and_its_actions_are_not() -> None:
    section = section_of(ARMS, [request_requests()], declared(secondary=[{"metric": "thumbs", "minimal_effect": 0.1}]))
    assert [metric.key for metric in section.primary] == ["goodput"]
    assert (section.secondary, section.feedback) == ((), {})
    assert (section.alpha, section.strata, section.mode, section.ramp) == (0.01, ("stream",), "ab", None)
    assert (section.endpoint, section.arms) == ("chat", ("blue", "green", "red"))
    for made in (section, section_of(ARMS, [request_requests()], None)):
        assert {guardrail.action for guardrail in made.guardrails} == {"alert"}


def test_an_experiment_that_only_users_judge_cannot_be_replayed() -> None:
    with pytest.raises(NothingToCompare, match="feedback"):
        section_of(ARMS, [request_requests()], declared(primary=[{"metric": "thumbs", "minimal_effect": 0.1}]))


def test_the_configuration_of_a_replay_splits_evenly_and_knows_prices() -> None:
    section = section_of(ARMS, [request_requests()], declared(primary=[{"metric": "cost", "minimal_effect": 0.1}]))
    prices = {arm: {"input_per_million": 1.0, "output_per_million": 2.0} for arm in ARMS}
    config = config_of("first", section, "somewhere", prices=prices, total_s=60)
    assert config.endpoints["chat"].traffic == {"blue": 34, "green": 33, "red": 33}
    assert config.ledger.url == "somewhere"
    assert config.deployments["red"].price is not None
