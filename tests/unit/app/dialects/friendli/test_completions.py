"""Friendli's answers and both stream formats: the documented bytes, any chunking, without the tokens that end them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE

from app.dialects.base import MALFORMED_ANSWER_ERRORS, Call, ServingContext, Stream
from app.engine.model import Model
from app.engine.output import Usage
from app.errors import Broken, Incomplete, Rejected, SwitchyardError, TimedOut
from tests.support.clients.friendli_calls import CLASSIC, DEPLOYED, SDK, parse, reply
from tests.support.clients.samples import EOS, MODEL, SERVED
from tests.support.engine import engine_answers as completions

PROMPT = MODEL.encode("say hello")
HELLO = MODEL.encode("hello😀")
FORMS = pytest.mark.parametrize("headers", [CLASSIC, SDK], ids=["classic", "modern"])


def answer(call: Call, *choices: dict[str, Any], serving: ServingContext = DEPLOYED) -> Any:
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
    return reply(call, json.dumps(body).encode(), serving)


def streamed(call: Call, *chunks: dict[str, Any], serving: ServingContext = DEPLOYED) -> bytes:
    stream = call.translation.open_stream(serving)
    return stream.feed(completions.stream(chunks)) + stream.close()


def one_by_one(choice: dict[str, Any], model: Model = MODEL) -> list[dict[str, Any]]:
    return completions.portions(model, choice, [1] * len(choice["token_ids"]))


def events(data: bytes) -> list[Any]:
    frames = data.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame[6:] if frame[6:] == "[DONE]" else json.loads(frame[6:]) for frame in frames]


# The ids of the reference's example.
NEWLINE, THIS = 3, 412


def documented() -> ServingContext:
    """A deployment whose model has the reference's tokens."""
    words = {NEWLINE: "\u010a", THIS: "This"}
    tokenizer = Tokenizer(BPE({words.get(id, f"<{id}>"): id for id in range(413)}, []))
    tokenizer.decoder = ByteLevelDecoder()
    return ServingContext("blue", SERVED.settings, Model.build(tokenizer.to_str(), eos_ids=[], max_len=100))


DOCUMENTED = documented()
EXAMPLE = completions.choice(DOCUMENTED.known_model, [5, 6, 7, 8, 9], [NEWLINE, THIS])


def test_the_documented_stream() -> None:
    call = parse("completions", stream=True, seed=42, tokens=[5, 6, 7, 8, 9], max_tokens=2)
    data = streamed(call, *one_by_one(EXAMPLE, DOCUMENTED.known_model), serving=DOCUMENTED)
    assert data == (
        b'data: {"event":"token_sampled","index":0,"text":"\\n","token":3}\n\n'
        b'data: {"event":"token_sampled","index":0,"text":"This","token":412}\n\n'
        b'data: {"event":"complete","choices":[{"index":0,"seed":42,"text":"\\nThis","tokens":[3,412]}],'
        b'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
    )


def test_the_current_sdks_stream() -> None:
    call = parse("completions", SDK, stream=True, seed=42, stream_options={"include_usage": True})
    data = streamed(call, *one_by_one(EXAMPLE, DOCUMENTED.known_model), serving=DOCUMENTED)
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m",'
    assert data == (
        head
        + b'"choices":[{"index":0,"text":"\\n","token":3,"finish_reason":null,"logprobs":null}]}\n\n'
        + head
        + b'"choices":[{"index":0,"text":"This","token":412,"finish_reason":null,"logprobs":null}]}\n\n'
        + head
        + b'"choices":[{"index":0,"text":"","finish_reason":"length","seed":42}]}\n\n'
        + head
        + b'"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
        + b"data: [DONE]\n\n"
    )


def test_the_documented_answer() -> None:
    assert answer(parse("completions", seed=42), EXAMPLE, serving=DOCUMENTED) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "seed": 42,
                "text": "\nThis",
                "tokens": [3, 412],
                "finish_reason": "length",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def test_a_stream_has_no_usage_unless_the_client_requests_it() -> None:
    call = parse("completions", SDK, stream=True)
    sent = events(streamed(call, *one_by_one(completions.choice(MODEL, PROMPT, HELLO))))
    assert all("usage" not in event for event in sent[:-1])


@FORMS
def test_eos_and_stop_tokens_are_excluded(headers: dict[str, str]) -> None:
    eos = completions.choice(MODEL, PROMPT, [*HELLO, 0], finish_reason="stop")
    assert_answers(headers, eos, "hello😀", HELLO)
    # The engine's text excludes the stop token's.
    tail = MODEL.encode(" there", special=False)
    stop = {**completions.choice(MODEL, PROMPT, [*HELLO, tail[0]], finish_reason="stop"), "stop_reason": tail[0]}
    assert_answers(headers, {**stop, "text": "hello😀"}, "hello😀", HELLO)
    assert_answers(headers, completions.choice(MODEL, PROMPT, [0], finish_reason="stop"), "", [])


@FORMS
def test_a_special_token_that_ends_nothing_is_included_without_text(headers: dict[str, str]) -> None:
    assert_answers(headers, completions.choice(MODEL, PROMPT, [0, *HELLO]), "hello😀", [0, *HELLO])


def assert_answers(headers: dict[str, str], choice: dict[str, Any], text: str, ids: list[int]) -> None:
    """Asserts that the whole answer and the streamed one have this text and these tokens."""
    (whole,) = answer(parse("completions", headers), choice)["choices"]
    assert (whole["text"], whole["tokens"]) == (text, ids)
    call = parse("completions", headers, stream=True, seed=7)
    for parts in (one_by_one(choice), [choice]):
        sent = events(streamed(call, *parts))
        if headers is CLASSIC:
            *tokens, last = sent
            assert last["choices"] == [{"index": 0, "seed": 7, "text": text, "tokens": ids}]
            assert last["usage"]["completion_tokens"] == len(ids)
        else:
            *chunks, end, done = sent
            assert done == "[DONE]"
            assert end["choices"][0]["finish_reason"] == whole["finish_reason"]
            tokens = [chunk["choices"][0] for chunk in chunks]
        assert "".join(token["text"] for token in tokens) == text
        assert [token["token"] for token in tokens] == ids


TEXTS = st.lists(st.sampled_from(["hello", " there", "日本", "é", "😀", "\n", EOS]), min_size=1, max_size=10).map(
    "".join
)
STOPS = ["h", "el", "there", "\n", "日", "😀", "o t"]
SIZES = st.lists(st.integers(0, 5), max_size=15)


def stopped_choice(text: str, stop: str) -> tuple[dict[str, Any], str]:
    """The engine's choice up to `stop`, and its text, which excludes `stop`."""
    ids = MODEL.encode("x" + text + stop)
    texts = completions.texts(MODEL, PROMPT, ids)
    needed = next(n for n in range(1, len(ids) + 1) if stop in "".join(texts[:n]))
    whole = completions.choice(MODEL, PROMPT, ids[:needed], stop=stop)
    text = whole["text"].removesuffix(stop)
    return {**whole, "text": text}, text


def held_back(parts: list[dict[str, Any]], characters: int) -> list[dict[str, Any]]:
    """The same tokens with delayed text: the engine withholds the last characters, where a stop string may begin."""
    whole, sent, late = "", "", []
    for part in parts:
        whole += part["text"]
        until = len(whole) if part["finish_reason"] else max(len(sent), len(whole) - characters)
        late.append({**part, "text": whole[len(sent) : until]})
        sent = whole[:until]
    return late


@FORMS
@given(text=TEXTS, stop=st.sampled_from(STOPS), sizes=SIZES)
def test_a_stop_string_is_in_neither_text_nor_tokens(
    headers: dict[str, str], text: str, stop: str, sizes: list[int]
) -> None:
    choice, expected = stopped_choice(text, stop)
    (whole,) = answer(parse("completions", headers, stop=[stop]), choice)["choices"]
    assert whole["text"] == expected
    ids = choice["token_ids"]
    assert whole["tokens"] == ids[: len(whole["tokens"])]
    # The fewest tokens that contain the text.
    before = MODEL.decode([*PROMPT, *ids[: len(whole["tokens"]) - 1]])
    assert not whole["tokens"] or len(before.removeprefix(MODEL.decode(PROMPT)).rstrip("\ufffd")) < len(expected)
    call = parse("completions", headers, stream=True, seed=7, stop=[stop])
    parts = held_back(completions.portions(MODEL, choice, sizes), len(stop) - 1)
    stream = events(streamed(call, *parts))
    tokens = [part for event in stream for part in parts_of(event) if "token" in part]
    assert "".join(token["text"] for token in tokens) == expected
    assert [token["token"] for token in tokens] == whole["tokens"]


def parts_of(event: Any) -> list[Any]:
    """The tokens and choices in an event of either format."""
    return [event] if "event" in event else event["choices"] if event != "[DONE]" else []


@FORMS
@given(text=TEXTS, sizes=SIZES, points=st.lists(st.floats(0, 1), max_size=8))
def test_any_chunking_gives_the_same_tokens_as_the_unary_answer(
    headers: dict[str, str], text: str, sizes: list[int], points: list[float]
) -> None:
    ids = MODEL.encode(text)
    choices = [completions.choice(MODEL, PROMPT, ids, index=index) for index in (0, 1)]
    parts = [
        part for pair in zip(*(completions.portions(MODEL, c, sizes) for c in choices), strict=True) for part in pair
    ]
    data = completions.stream(parts)
    call = parse("completions", headers, stream=True, seed=7, n=2)
    stream = call.translation.open_stream(DEPLOYED)
    edges = sorted({0, len(data), *(int(point * len(data)) for point in points)})
    sent = events(b"".join(stream.feed(data[a:b]) for a, b in pairwise(edges)) + stream.close())
    whole = answer(parse("completions", headers, seed=7, n=2), *choices)
    assert [choice["seed"] for choice in whole["choices"]] == [7, 8]
    tokens = [part for event in sent for part in parts_of(event) if "token" in part]
    for choice in whole["choices"]:
        own = [token for token in tokens if token["index"] == choice["index"]]
        assert [token["token"] for token in own] == choice["tokens"] == ids
        assert "".join(token["text"] for token in own) == choice["text"]
    last = sent[-1]
    if headers is CLASSIC:
        assert [event["event"] for event in sent].count("complete") == 1
        assert last["usage"] == whole["usage"]
        kept = ("index", "seed", "text", "tokens")
        assert last["choices"] == [{name: choice[name] for name in kept} for choice in whole["choices"]]
    else:
        assert last == "[DONE]"
        assert sent.count("[DONE]") == 1
    assert stream.usage == Usage(len(PROMPT), 2 * len(ids))


@FORMS
@given(point=st.floats(0, 1), fails=st.booleans())
def test_a_stream_that_breaks_off_sends_nothing_more(headers: dict[str, str], point: float, fails: bool) -> None:
    data = completions.stream(one_by_one(completions.choice(MODEL, PROMPT, HELLO)))
    data = data[: int(point * len(data))]
    stream = parse("completions", headers, stream=True).translation.open_stream(DEPLOYED)
    sent = events(stream.feed(data))
    complete = any(event == "[DONE]" or event.get("event") == "complete" for event in sent)
    assert stream.aborts
    if fails:
        assert stream.fail(TimedOut("slow")) == b""
    elif complete:
        assert stream.close() == b""
    else:
        with pytest.raises(Incomplete):
            stream.close()


def failure(stream: Stream, data: bytes) -> SwitchyardError:
    """The error that ends a stream of `data`, as the exchange sees it."""
    try:
        stream.feed(data)
        stream.close()
    except SwitchyardError as error:
        return error
    except MALFORMED_ANSWER_ERRORS as error:
        return Broken(str(error))
    raise AssertionError("it ended in order")


@FORMS
def test_the_engines_own_error_ends_the_stream(headers: dict[str, str]) -> None:
    first = completions.stream(one_by_one(completions.choice(MODEL, PROMPT, HELLO))[:1]).removesuffix(
        b"data: [DONE]\n\n"
    )
    error = completions.frame({"error": {"message": "too long", "type": "BadRequestError", "code": 400}})
    stream = parse("completions", headers, stream=True).translation.open_stream(DEPLOYED)
    assert isinstance(failure(stream, first + error + b"data: [DONE]\n\n"), Rejected)
    gone = {**one_by_one(completions.choice(MODEL, PROMPT, HELLO))[0], "finish_reason": "abort"}
    for malformed in ({"choices": [{"index": 5, **gone}]}, {"choices": [gone]}, {"choices": 3}):
        stream = parse("completions", headers, stream=True).translation.open_stream(DEPLOYED)
        assert isinstance(failure(stream, completions.frame(malformed)), Broken)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_choice_is_a_failure_of_the_deployment(reason: str) -> None:
    with pytest.raises(Broken):
        answer(parse("completions"), completions.choice(MODEL, PROMPT, HELLO, finish_reason=reason))


def test_an_answer_must_have_the_requested_choices() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO)
    for choices in ([], [choice, {**choice, "index": 1}], [{**choice, "index": 1}]):
        with pytest.raises(Broken):
            answer(parse("completions"), *choices)
    with pytest.raises(Incomplete):
        answer(parse("completions"), {**choice, "finish_reason": None})
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        reply(parse("completions"), b"{}")


def test_the_finish_reason_repetition_becomes_stop() -> None:
    choice = completions.choice(MODEL, PROMPT, HELLO, finish_reason="repetition")
    assert answer(parse("completions"), choice)["choices"][0]["finish_reason"] == "stop"


def test_scores_are_a_list_with_one_number_per_token() -> None:
    choice = completions.choice(MODEL, PROMPT, [*HELLO, 0], finish_reason="stop")
    numbers = [-0.5 - position for position, _ in enumerate(HELLO)]
    (got,) = answer(parse("completions", include_output_logprobs=True), choice)["choices"]
    assert got["logprobs"] == numbers
    (got,) = answer(parse("completions", include_output_logits=True), choice)["choices"]
    assert (got["logits"], got["logprobs"]) == (numbers, None)
    last = events(streamed(parse("completions", stream=True, include_output_logprobs=True), *one_by_one(choice)))[-1]
    assert last["choices"][0]["logprobs"] == numbers
    last = events(streamed(parse("completions", SDK, stream=True, include_output_logits=True), *one_by_one(choice)))[-2]
    assert last["choices"][0]["logits"] == numbers


@FORMS
def test_logprobs_have_openais_format(headers: dict[str, str]) -> None:
    choice = completions.choice(MODEL, PROMPT, [*HELLO, 0], finish_reason="stop", top=2)
    (got,) = answer(parse("completions", headers, logprobs=2), choice)["choices"]
    logprobs = got["logprobs"]
    assert "".join(logprobs["tokens"]) == got["text"]
    assert logprobs["token_logprobs"] == [-0.5 - position for position, _ in enumerate(HELLO)]
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:n]) for n in range(len(lengths))]
    for token, likeliest in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in likeliest
        assert len(likeliest) in (2, 3)
    sent = events(streamed(parse("completions", headers, stream=True, logprobs=2), *one_by_one(choice)))
    if headers is CLASSIC:
        assert sent[-1]["choices"][0]["logprobs"] == logprobs
        return
    parts = [event["choices"][0]["logprobs"] for event in sent[:-2]]
    for name, values in logprobs.items():
        assert [value for part in parts for value in part[name]] == values


def test_one_choice_may_end_before_another() -> None:
    short = completions.choice(MODEL, PROMPT, HELLO[:1], finish_reason="stop")
    long = completions.choice(MODEL, PROMPT, HELLO, index=1)
    call = parse("completions", stream=True, n=2, seed=[9, 4])
    sent = events(streamed(call, *one_by_one(short), *one_by_one(long)))
    assert [choice["seed"] for choice in sent[-1]["choices"]] == [9, 4]
    assert [event.get("event") for event in sent].count("complete") == 1
    assert sent[-1]["choices"][0]["tokens"] == []
