"""Traces have the recording's arrival times and lengths, in the format that the benchmarks read."""

import json
from collections.abc import Sequence
from math import ceil
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.experiments.replay.traces import BLOCK, Estimates, TraceFormat, trace
from app.request_recordings.recorder import RecordedRequest
from tests.unit.app.experiments.replay.test_requests import recordings, request

FORMATS: tuple[TraceFormat, ...] = ("guidellm", "vllm-bench")


def lines(
    requests: Sequence[RecordedRequest], form: TraceFormat = "guidellm"
) -> tuple[list[dict[str, Any]], Estimates]:
    estimates = Estimates()
    return [json.loads(json.dumps(line)) for line in trace(requests, form, estimates)], estimates


def test_a_line_has_the_time_since_the_first_and_the_lengths() -> None:
    found, estimates = lines(
        [
            request(at=1000.5, prompt_tokens=40, completion_tokens=7),
            request(at=1002.0, prompt_tokens=10, completion_tokens=8, parameters={"n": 2}),
        ]
    )
    assert [(it["timestamp"], it["input_length"], it["output_length"]) for it in found] == [(0, 40, 7), (1.5, 10, 4)]
    assert estimates.notes() == []
    assert "prompt" not in found[0]


def test_missing_token_counts_are_estimated_and_reported() -> None:
    known = [request(prompt_tokens=5, completion_tokens=tokens) for tokens in (10, 20, 90)]
    found, estimates = lines([*known, request(prompt_bytes=400), request(parameters={"max_tokens": 12})])
    assert [(it["input_length"], it["output_length"]) for it in found[3:]] == [(100, 20), (125, 12)]
    assert (estimates.prompts, estimates.answers) == (2, 2)
    assert len(estimates.notes()) == 2


def test_requests_that_failed_or_generate_nothing_are_left_out() -> None:
    found, estimates = lines([request(), request(status=500), request("embeddings")])
    assert (len(found), estimates.left_out) == (1, 2)


@given(st.lists(recordings, max_size=8))
def test_every_line_is_what_guidellm_and_vllm_require(requests: list[RecordedRequest]) -> None:
    """guidellm's `_validate_row` and `MooncakeTraceFormat.validate_row`: counts that are not negative, 32-bit ids, one
    for each block. vLLM's prompt is made of the ids: without enough of them it is shorter."""
    for form in FORMATS:
        found, _ = lines(requests, form)
        sizes: dict[int, int] = {}
        for line in found:
            assert isinstance(line["timestamp"], int | float)
            assert type(line["input_length"]) is type(line["output_length"]) is int
            assert line["input_length"] > 0
            assert line["output_length"] > 0
            ids = line["hash_ids"]
            assert len(ids) == ceil(line["input_length"] / BLOCK)
            assert all(0 <= it < 2**31 for it in ids)
            for place, id in enumerate(ids):
                size = min(BLOCK, line["input_length"] - place * BLOCK)
                assert sizes.setdefault(id, size) == size, "guidellm makes a block once"
        if form == "vllm-bench":
            assert all(line["prompt"] and line["output_tokens"] == line["output_length"] for line in found)


def test_prompts_share_blocks_within_a_unit_only() -> None:
    found, _ = lines(
        [
            request(unit="a", prompt_tokens=40),
            request(unit="a", prompt_tokens=70),
            request(unit="b", prompt_tokens=40),
        ]
    )
    first, longer, other = (it["hash_ids"] for it in found)
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
    requests = [request(at=1, body=chat, prompt_tokens=9), request("completions", at=3, body={"prompt": "once"})]
    found, _ = lines(requests)
    assert [it["prompt"] for it in found] == ["Be brief.\n\nhi", "once"]
    assert [(it["relative_timestamp"], it["prompt_tokens_count"]) for it in found] == [(0, 9), (2, 125)]
    assert all(it["output_tokens_count"] == it["output_length"] for it in found)
    found, _ = lines(requests, "vllm-bench")
    assert [it["prompt"] for it in found] == ["Be brief.\n\nhi", "once"]


def test_without_texts_vllms_custom_data_set_gets_made_up_ones() -> None:
    found, _ = lines([request(prompt_tokens=9, completion_tokens=4)], "vllm-bench")
    assert (len(found[0]["prompt"].split()), found[0]["output_tokens"]) == (9, 4)
