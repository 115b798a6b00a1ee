"""`best_of`: the likeliest candidates of each prompt, in order."""

import json
from typing import Any

import pytest

from app.dialects.common.best_of import BestOf
from app.errors import Broken


def choice(index: int, logprobs: list[float | None]) -> dict[str, Any]:
    return {"index": index, "text": f"t{index}", "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}


def answer(*merits: list[float | None]) -> bytes:
    choices = [choice(index, values) for index, values in enumerate(merits)]
    return json.dumps({"id": "c", "choices": choices, "usage": {"completion_tokens": 9}}).encode()


def taken(**body: Any) -> tuple[BestOf | None, dict[str, Any]]:
    return BestOf.take(body), body


def test_nothing_to_choose_changes_nothing() -> None:
    assert taken(n=2) == (None, {"n": 2})
    assert taken(n=2, best_of=2) == (None, {"n": 2})


def test_the_candidates_are_generated_with_their_logprobs() -> None:
    assert taken(best_of=3) == (BestOf(3, 1, show_logprobs=False), {"n": 3, "logprobs": 0})
    assert taken(best_of=3, n=2, logprobs=2) == (BestOf(3, 2, show_logprobs=True), {"n": 3, "logprobs": 2})


def test_each_prompt_keeps_its_likeliest_by_mean_logprob() -> None:
    # The longer candidate has the lower sum and the higher mean.
    body = answer([-1.0], [-0.6, -0.6, -0.6], [-2.0], [None, -0.1], [-0.5], [-3.0])
    choices = json.loads(BestOf(3, 1, show_logprobs=False).choose(body))["choices"]
    assert [(c["index"], c["text"], c["logprobs"]) for c in choices] == [(0, "t1", None), (1, "t3", None)]


def test_several_are_kept_in_order_of_merit() -> None:
    choices = json.loads(BestOf(3, 2, show_logprobs=True).choose(answer([-2.0], [-1.0], [-3.0])))["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "t1"), (1, "t0")]
    assert choices[0]["logprobs"] == {"token_logprobs": [-1.0]}


def test_a_candidate_without_tokens_comes_last() -> None:
    choices = json.loads(BestOf(2, 2, show_logprobs=True).choose(answer([], [-9.0])))["choices"]
    assert [c["text"] for c in choices] == ["t1", "t0"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": [{}]}', b'{"choices": 5}'])
def test_an_answer_without_candidates_is_broken(body: bytes) -> None:
    with pytest.raises(Broken):
        BestOf(2, 1, show_logprobs=False).choose(body)
