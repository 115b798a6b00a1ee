"""Which requests are recorded, and the contents of their lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import Config, parse
from app.engine.output import Usage
from app.exposures.identity import Hashes
from app.request_recordings.recorder import (
    MOST_PENDING,
    MOST_PENDING_BYTES,
    MOST_TEXT_BYTES,
    PendingRequest,
    RecordedRequest,
    Recorder,
    decode_line,
    line_of,
    parameters,
)
from app.request_recordings.redaction import NotRedactable, redacted

MARKER = "marker"


def configuration(record: Mapping[str, Any] | None) -> Config:
    """Two endpoints, one of which has this section."""
    return parse(
        {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {"blue": 100}, "record": record},
                "other": {"tasks": ["chat"], "traffic": {"blue": 100}},
            },
            "deployments": {"blue": {"app": "blue", "model": "m"}},
        }
    )


def recorder(*, enabled: bool = True, **record: Any) -> Recorder:
    made = Recorder(Hashes(b"secret").unit, iter(range(10**6)).__next__, enabled=enabled, clock=lambda: 1000.0)
    made.configure(configuration(record))
    return made


def pending(of: Recorder, body: Mapping[str, Any], *, task: str = "chat", size: int = 100) -> PendingRequest:
    scope = of.scopes.get("chat")
    assert scope is not None
    unit = of.unit(scope, "ada")
    assert unit is not None
    return PendingRequest(scope, 1.5, "0-abc", "openai", task, True, unit, size, body, 200, Usage(7, 3))


def ended(of: Recorder, body: Mapping[str, Any], *, task: str = "chat", size: int = 100) -> PendingRequest:
    """The same request, once it has ended."""
    of.end(pending(of, body, task=task, size=size))
    (request,) = of.take()
    return request


def recorded(body: Mapping[str, Any], *, size: int = 100, **record: Any) -> tuple[str, RecordedRequest]:
    line = line_of(ended(recorder(**record), body, size=size), redacted)
    assert MARKER.encode() not in line.line or record["text"] == "full"
    return line.outcome, decode_line(line.line)


@pytest.mark.parametrize(
    ("record", "size", "text"),
    [
        ({"text": "full"}, 100, "whole"),
        ({"text": "full", "redact": ["a"]}, 100, "redacted"),
        ({"text": "full"}, MOST_TEXT_BYTES + 1, ""),
        ({}, 100, ""),
    ],
)
def test_an_endpoint_says_what_is_recorded_of_a_text(record: Mapping[str, Any], size: int, text: str) -> None:
    assert recorder(**record).scopes["chat"].text_of(size) == text


def test_only_endpoints_with_record_are_recorded() -> None:
    assert recorder().scopes.keys() == {"chat"}
    assert recorder(enabled=False).scopes == {}


def test_the_secret_is_read_before_the_first_request() -> None:
    keys: list[str] = []

    def unit_of(key: str) -> int:
        keys.append(key)
        return 1

    made = Recorder(unit_of, lambda: 0, enabled=True)
    made.configure(configuration(None))
    assert keys == []
    made.configure(configuration({}))
    assert keys == [""]


def test_a_percentage_takes_whole_units_and_about_as_many_as_it_says() -> None:
    recording = recorder(percent=20)
    scope = recording.scopes.get("chat")
    assert scope is not None
    units = [recording.unit(scope, f"user-{number}") for number in range(5000)]
    assert units == [recording.unit(scope, f"user-{number}") for number in range(5000)]
    assert 850 < sum(unit is not None for unit in units) < 1150
    assert 850 < sum(recording.unit(scope, None) is not None for _ in range(5000)) < 1150
    everybody = recorder(percent=100)
    scope = everybody.scopes.get("chat")
    assert scope is not None
    assert all(everybody.unit(scope, f"user-{number}") is not None for number in range(5000))


def test_a_line_holds_sizes_and_numbers() -> None:
    body = {
        "model": "chat",
        "messages": [
            {"role": "user", "content": MARKER},
            {"role": "assistant", "content": MARKER},
            {"role": "user", "content": MARKER},
        ],
        "user": MARKER,
        "max_completion_tokens": 64,
        "temperature": 0.5,
        "stop": [MARKER, MARKER],
        "tools": [{"function": {"name": MARKER}}],
        "n": 2,
        "logprobs": True,
        "top_p": 10**400,
    }
    outcome, line = recorded(body)
    assert outcome == "recorded"
    assert line.body is None
    assert (line.at, line.endpoint, line.plan, line.dialect, line.task) == (1.5, "chat", "0-abc", "openai", "chat")
    assert (line.stream, line.turn, line.status) == (True, 1, 200)
    assert (line.prompt_bytes, line.prompt_tokens, line.completion_tokens) == (100, 7, 3)
    assert line.parameters == {"max_tokens": 64, "temperature": 0.5, "n": 2, "stop": 2, "tools": 1}
    assert line.unit == f"{Hashes(b'secret').unit('ada'):016x}"


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.just(MARKER),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.just(MARKER) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
fields = st.sampled_from(
    [
        "messages",
        "prompt",
        "input",
        "stop",
        "tools",
        "n",
        "max_tokens",
        "temperature",
        "system",
        "user",
        "top_k",
        MARKER,
    ]
)


@given(
    st.dictionaries(fields, json, max_size=8),
    st.sampled_from(["chat", "completions", "embeddings", "rerank", "responses"]),
)
def test_without_text_no_line_holds_text_of_any_body(body: dict[str, Any], task: str) -> None:
    line = line_of(ended(recorder(), body, task=task), redacted)
    assert line.outcome == "recorded"
    assert MARKER.encode() not in line.line
    assert all(type(value) in (int, float) for value in parameters(task, body).values())


def redacted_or_none(body: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any] | None:
    try:
        return redacted(body, patterns)
    except NotRedactable:
        return None


@given(st.dictionaries(fields, json, max_size=8))
def test_with_text_matches_of_a_pattern_are_removed_from_every_line(body: dict[str, Any]) -> None:
    line = line_of(ended(recorder(text="full", redact=[MARKER]), body), redacted_or_none)
    assert MARKER.encode() not in line.line


def test_with_text_the_body_is_kept_without_its_caller() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "user": MARKER}
    outcome, line = recorded(body, text="full")
    assert (outcome, line.body) == ("recorded", {"messages": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize(
    ("body", "size"),
    [
        pytest.param({"prompt": "hi"}, MOST_TEXT_BYTES + 1, id="too long"),
        pytest.param({"prompt": "\ud800"}, 10, id="half of a surrogate pair"),
    ],
)
def test_text_that_cannot_be_kept_is_left_out_and_counted(body: Mapping[str, Any], size: int) -> None:
    outcome, line = recorded(body, size=size, text="full")
    assert (outcome, line.body, line.prompt_bytes) == ("without_text", None, size)


def test_requests_that_have_no_room_are_counted() -> None:
    recording = recorder()
    for _ in range(MOST_PENDING + 3):
        recording.end(pending(recording, {}))
    assert recording.lost == {"chat": 3}
    assert len(recording.take()) == MOST_PENDING
    recording.end(pending(recording, {}))
    assert len(recording.take()) == 1


def test_the_bodies_that_wait_are_bounded() -> None:
    recording, each = recorder(text="full"), MOST_TEXT_BYTES
    room = MOST_PENDING_BYTES // each
    for _ in range(room + 2):
        recording.end(pending(recording, {}, size=each))
    assert recording.lost == {"chat": 2}
    assert len(recording.take()) == room


def test_a_body_that_nothing_needs_does_not_wait() -> None:
    assert ended(recorder(), {"prompt": "hi"}).body is None
    assert ended(recorder(text="full"), {"prompt": "hi"}, size=MOST_TEXT_BYTES + 1).body is None
    assert ended(recorder(text="full"), {"prompt": "hi"}).body is not None


def test_a_batch_is_recorded_as_the_number_of_its_prompts() -> None:
    assert parameters("completions", {"prompt": ["a", "b"]}) == {"inputs": 2}
    assert parameters("completions", {"prompt": [1, 2]}) == {}
    assert parameters("embeddings", {"input": [[1, 2], [3]]}) == {"inputs": 2}
    assert parameters("rerank", {"query": "a", "documents": ["b", "c"]}) == {"inputs": 2}
