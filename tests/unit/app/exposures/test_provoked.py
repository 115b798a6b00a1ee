"""What a request itself may do to its outcome, as the router sees it."""

from typing import Any

import pytest

from app.exposures.provoked import LARGE_PROMPT, in_a_hurry, provoked
from app.exposures.wire import Flag

ANSWER = Flag.OWN_EMPTY | Flag.OWN_LENGTH | Flag.OWN_FORM
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, 0),
        ({"temperature": 0, "max_tokens": 500, "stop": ["</answer>", "\n\nHuman:"], "logit_bias": None}, 0),
        ({"allowed_token_ids": [2]}, ANSWER | Flag.OWN_TIME),
        ({"logit_bias": {"2": 100}}, ANSWER | Flag.OWN_TIME),
        ({"max_tokens": 1}, ANSWER),
        ({"max_completion_tokens": 8}, ANSWER),
        ({"stop": " "}, Flag.OWN_EMPTY | Flag.OWN_FORM),
        ({"stop": ["e"]}, Flag.OWN_EMPTY | Flag.OWN_FORM),
        ({"stop_token_ids": [1]}, Flag.OWN_EMPTY | Flag.OWN_FORM),
        ({"bad_words": ["a"]}, ANSWER),
        ({"vllm_xargs": {"a": 1}}, ANSWER | Flag.OWN_TIME),
        ({"chat_template": "{{ 1 }}"}, ANSWER),
        ({"add_generation_prompt": False}, ANSWER),
        ({"ignore_eos": True}, Flag.OWN_LENGTH | Flag.OWN_FORM | Flag.OWN_TIME),
        ({"min_tokens": 4000}, Flag.OWN_LENGTH | Flag.OWN_TIME),
        ({"min_tokens": 1}, 0),
        ({"stream_interval": 1000}, Flag.OWN_TIME | Flag.OWN_GAPS),
        ({"priority": 9}, Flag.OWN_TIME | Flag.OWN_GAPS),
        ({"structured_outputs": {"regex": " *"}}, ANSWER | Flag.OWN_TIME | Flag.LONG),
        ({"structured_outputs": {"json": {"type": "object"}}}, Flag.LONG),
        ({"response_format": {"type": "json_object"}}, Flag.LONG),
        ({"n": 5}, Flag.LONG),
    ],
)
def test_parameters_that_may_decide_an_outcome_are_known(fields: dict[str, Any], flags: int) -> None:
    assert provoked({**CHAT, **fields}, 100, stream=True) == flags


@pytest.mark.parametrize(
    ("body", "size", "stream", "long"),
    [
        (CHAT, 100, True, False),
        (CHAT, LARGE_PROMPT + 1, True, True),
        (CHAT, 100, False, True),
        ({**CHAT, "max_tokens": 200}, 100, False, False),
        ({**CHAT, "max_tokens": 2000}, 100, False, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, 100, True, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 100, True, True),
    ],
)
def test_requests_that_may_be_slow_by_themselves_are_known(
    body: dict[str, Any], size: int, stream: bool, long: bool
) -> None:
    assert provoked(body, size, stream=stream) == (Flag.LONG if long else 0)


def test_a_client_that_allows_less_than_a_second_may_decide_that_it_fails() -> None:
    assert in_a_hurry(0.01) == Flag.OWN_FAILURE
    assert in_a_hurry(30.0) == in_a_hurry(None) == 0
