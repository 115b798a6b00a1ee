"""Databricks' completions: templates, truncation, echo and suffix, and streams that end when time is up."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import MALFORMED_ANSWER_ERRORS, EngineRequest
from app.engine.output import Usage
from app.errors import BadRequest, TimedOut, Unavailable
from tests.support.clients.dialect_calls import engine_request, lookups
from tests.support.clients.samples import SERVED
from tests.unit.app.dialects.databricks.test_dialect import BLUE, invoke, parse, reply_to


def tokenize_request(prompt: str) -> EngineRequest:
    return EngineRequest("/tokenize", {"messages": [{"role": "user", "content": prompt}]})


def tokens(*lengths: int, context: int = 100) -> list[dict[str, Any]]:
    return [{"count": length, "max_model_len": context, "tokens": list(range(length))} for length in lengths]


def test_a_prompt_is_put_into_the_models_chat_template() -> None:
    call = parse("completions", prompt=["a", "b"], max_tokens=5)
    assert lookups(call, SERVED) == [tokenize_request("a"), tokenize_request("b")]
    sent = engine_request(call, SERVED, tokens(2, 3))
    assert sent == EngineRequest("/v1/completions", {"prompt": [[0, 1], [0, 1, 2]], "max_tokens": 5})


def test_a_raw_prompt_is_sent_unchanged() -> None:
    call = parse("completions", prompt="a", max_tokens=5, use_raw_prompt=True)
    sent = EngineRequest("/v1/completions", {"prompt": "a", "max_tokens": 5})
    assert engine_request(call, SERVED) == sent
    unlimited = parse("completions", prompt="a", use_raw_prompt=True)
    assert lookups(unlimited, SERVED) == [EngineRequest("/tokenize", {"prompt": "a"})]


@pytest.mark.parametrize(
    ("fields", "lengths", "max_tokens", "kept"),
    [
        pytest.param({}, (10,), 90, (10,), id="no limit"),
        pytest.param({}, (10, 30), 70, (10, 30), id="no limit, a batch"),
        pytest.param({"max_tokens": 90}, (10,), 90, (10,), id="just fits"),
        pytest.param({"max_tokens": 95, "error_behavior": "truncate"}, (10,), 90, (10,), id="lowered"),
        pytest.param({"max_tokens": 9, "error_behavior": "truncate"}, (10,), 9, (10,), id="nothing to cut"),
        pytest.param({"error_behavior": "truncate"}, (100,), 1, (99,), id="the prompt fills the context"),
        pytest.param({"max_tokens": 9, "error_behavior": "truncate"}, (300,), 1, (99,), id="the prompt is too long"),
        pytest.param({"max_tokens": 9, "error_behavior": "truncate"}, (300, 20), 9, (91, 20), id="one of a batch"),
        pytest.param({"max_tokens": 9, "error_behavior": "truncate"}, (300, 95), 5, (95, 95), id="hardly room"),
    ],
)
def test_the_limit_and_the_prompts_fit_the_context(
    fields: dict[str, Any], lengths: tuple[int, ...], max_tokens: int, kept: tuple[int, ...]
) -> None:
    call = parse("completions", prompt=["x"] * len(lengths), **fields)
    sent = engine_request(call, SERVED, tokens(*lengths)).body
    assert sent["max_tokens"] == max_tokens
    assert sent["prompt"] == [list(range(length))[length - n :] for length, n in zip(lengths, kept, strict=True)]


@pytest.mark.parametrize(
    ("fields", "length", "param"),
    [({}, 100, "prompt"), ({"max_tokens": 5}, 300, "prompt"), ({"max_tokens": 91}, 10, "max_tokens")],
)
def test_a_request_that_does_not_fit_is_an_error_by_default(fields: dict[str, Any], length: int, param: str) -> None:
    call = parse("completions", **fields)
    with pytest.raises(
        BadRequest, match=rf"{param}: .*of this model's 100 tokens.*error_behavior 'truncate'"
    ) as raised:
        engine_request(call, SERVED, tokens(length))
    assert raised.value.param == param


@pytest.mark.parametrize("answers", [[{}], [{"max_model_len": 5}], [{"max_model_len": "a", "tokens": 5}]])
def test_a_malformed_tokenization_is_an_error_that_the_exchange_expects(answers: list[dict[str, Any]]) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        engine_request(parse("completions"), SERVED, answers)


def answer(*texts: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)]
    return {"id": "c", "object": "text_completion", "choices": choices, "usage": usage}


AFFIXED = {"prompt": ["A", "B"], "n": 2, "echo": True, "suffix": "!", "max_tokens": 3}


def test_a_choice_has_its_prompts_index_echo_and_suffix() -> None:
    native = reply_to(invoke("chat", AFFIXED), answer("1", "2", "3", "4"))["choices"]
    assert [(choice["index"], choice["text"]) for choice in native] == [(0, "A1!"), (0, "A2!"), (1, "B3!"), (1, "B4!")]
    assert all(choice["finishReason"] == "stop" for choice in native)
    shared = reply_to(parse("completions", **AFFIXED), answer("1", "2", "3", "4"))["choices"]
    assert [(choice["index"], choice["text"]) for choice in shared] == [(0, "A1!"), (1, "A2!"), (2, "B3!"), (3, "B4!")]
    assert all("finishReason" not in choice for choice in shared)


def test_fields_that_are_handled_here_are_not_sent() -> None:
    call = parse("completions", **AFFIXED, use_raw_prompt=True, error_behavior="error")
    assert call.body == {"prompt": ["A", "B"], "n": 2, "max_tokens": 3}
    assert call.translation.collector(EngineRequest("/v1/completions", call.body)) is None
    call = parse("completions", error_behavior="truncate")
    assert call.translation.collector(EngineRequest("/v1/completions", call.body)) is not None


def test_best_of_chooses_for_each_prompt() -> None:
    call = parse("completions", prompt=["A", "B"], best_of=2, max_tokens=3, use_raw_prompt=True)
    assert call.body == {"prompt": ["A", "B"], "n": 2, "logprobs": 0, "max_tokens": 3}
    value = answer("1", "2", "3", "4")
    for choice, logprob in zip(value["choices"], (-1, -2, -4, -3), strict=True):
        choice["logprobs"] = {"token_logprobs": [logprob]}
    assert [choice["text"] for choice in reply_to(call, value)["choices"]] == ["1", "4"]


def frame(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def part(index: int, text: str, completion: int, finish_reason: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 2, "completion_tokens": completion, "total_tokens": 2 + completion}
    return frame({"id": "c", "choices": [choice], "usage": usage})


SUMS = {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
DONE = b"data: [DONE]\n\n"
PARTS = [part(0, "1", 1), part(1, "3", 1), part(0, "2", 2, "stop"), part(1, "4", 4, "length")]
STREAM = b"".join(PARTS) + frame({"id": "c", "choices": [], "usage": SUMS}) + DONE
TRUNCATED = parse(
    "completions", prompt=["A", "B"], echo=True, suffix="!", stream=True, error_behavior="truncate", max_tokens=4
)


def values(sent: bytes) -> list[dict[str, Any]]:
    *frames, end = sent.split(b"\n\n")
    assert end == b""
    return [json.loads(line.removeprefix(b"data: ")) for line in frames if line != b"data: [DONE]"]


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_has_echo_and_suffix_in_any_chunking(points: list[int]) -> None:
    stream = TRUNCATED.translation.open_stream(SERVED)
    assert stream.headers == {"served-model-name": "blue"}
    edges = [0, *sorted(points), len(STREAM)]
    sent = b"".join(stream.feed(STREAM[a:b]) for a, b in pairwise(edges)) + stream.close()
    assert sent.endswith(DONE)
    chunks = values(sent)
    assert texts(chunks) == {0: "A12!", 1: "B34!"}
    assert [chunk.get("usage") for chunk in chunks] == [None, None, None, SUMS]
    assert stream.usage == Usage(4, 6)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_truncated_stream_ends_complete_when_time_is_up(count: int) -> None:
    stream = TRUNCATED.translation.open_stream(SERVED)
    sent = b"".join(stream.feed(part) for part in PARTS[:count]) + stream.fail(TimedOut("late"))
    assert sent.endswith(DONE)
    assert b"late" not in sent
    chunks = values(sent)
    written = {1: {0: "A1!", 1: "B!"}, 2: {0: "A1!", 1: "B3!"}, 3: {0: "A12!", 1: "B3!"}, 4: {0: "A12!", 1: "B34!"}}
    assert texts(chunks) == written[count]
    ends = {c["index"]: c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert ends == {0: "length" if count < 3 else "stop", 1: "length"}
    completion = {1: 1, 2: 2, 3: 3, 4: 6}[count]
    prompt = 2 if count == 1 else 4
    assert chunks[-1]["usage"]["total_tokens"] == prompt + completion
    assert stream.usage == Usage(prompt, completion)
    assert stream.feed(DONE) + stream.close() + stream.fail(TimedOut("late")) == b""


def test_only_a_timeout_truncates_a_stream_and_only_if_requested() -> None:
    failed = TRUNCATED.translation.open_stream(SERVED)
    assert b"TEMPORARILY_UNAVAILABLE" in failed.feed(PARTS[0]) + failed.fail(Unavailable("gone"))
    untouched = parse("completions", prompt="A", stream=True, max_tokens=4)
    late = untouched.translation.open_stream(SERVED)
    assert b"DEADLINE_EXCEEDED" in late.feed(PARTS[0]) + late.fail(TimedOut("late"))
    silent = TRUNCATED.translation.open_stream(BLUE)
    assert b"DEADLINE_EXCEEDED" in silent.fail(TimedOut("late"))


def test_the_usage_is_in_its_own_chunk_if_the_client_requested_it() -> None:
    call = parse("completions", prompt="A", suffix="!", stream=True, stream_options={"include_usage": True})
    stream = call.translation.open_stream(SERVED)
    ending = frame({"id": "c", "choices": [], "usage": SUMS}) + DONE
    chunks = values(stream.feed(part(0, "1", 1) + part(0, "2", 2, "stop") + ending))
    assert [(len(chunk["choices"]), chunk.get("usage")) for chunk in chunks] == [(1, None), (1, None), (0, SUMS)]


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"choices":[5]}', b'{"choices":[{"index":0}]}', b'{"choices":5}'])
def test_a_malformed_chunk_ends_the_stream_with_an_error(bad: bytes) -> None:
    stream = TRUNCATED.translation.open_stream(SERVED)
    sent = stream.feed(PARTS[0] + b"data: " + bad + b"\n\n") + stream.close()
    assert texts(values(sent)[:1]) == {0: "A1"}
    assert values(sent)[-1]["error_code"] == "INTERNAL_ERROR"
    assert DONE not in sent


MOST_COPIED = 8 * 1024 * 1024


@given(
    prompts=st.integers(1, 50),
    length=st.integers(0, 30_000),
    n=st.integers(1, 1024),
    suffix=st.integers(0, 30_000),
    echo=st.booleans(),
)
def test_what_the_answer_repeats_of_the_request_is_bounded(
    prompts: int, length: int, n: int, suffix: int, echo: bool
) -> None:
    """All that the client itself has sent may be in the answer once."""
    quotes = 4 * prompts * n
    copied = {"echo": prompts * length * (n - 1) if echo else 0, "suffix": suffix * (prompts * n - 1)}
    refused = None
    try:
        parse("completions", prompt=["a" * length] * prompts, n=n, suffix="a" * suffix, echo=echo)
    except BadRequest as error:
        refused = error
    if refused is None:
        assert max(copied.values()) <= MOST_COPIED
    else:
        assert refused.message.startswith(f"{refused.param}:")
        assert copied[str(refused.param)] + quotes > MOST_COPIED


def test_a_batch_of_any_size_is_echoed_once() -> None:
    parse("completions", prompt=["a" * 1024 * 1024] * 20, echo=True)
    with pytest.raises(BadRequest, match="echo"):
        parse("completions", prompt=["a" * 1024 * 1024] * 20, echo=True, n=2)
