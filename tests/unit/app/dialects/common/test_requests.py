"""`best_of`: the likeliest candidates of each prompt, in order. The list of models. What is tokenized here."""

from typing import Any

import pytest

from app.access.caller import Caller, ConfigViews
from app.config.schema import parse
from app.dialects.base import MALFORMED_ANSWER_ERRORS
from app.dialects.common.requests import BestOf, in_steps, model_card
from app.engine.model import Model
from app.engine.pieces import MOST_TOKENS, Piece
from app.errors import BadRequest
from tests.support.clients.samples import MODEL


def choice(index: int, logprobs: list[float | None]) -> dict[str, Any]:
    return {"index": index, "text": f"t{index}", "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}


def answer(*logprobs: list[float | None]) -> dict[str, Any]:
    choices = [choice(index, values) for index, values in enumerate(logprobs)]
    return {"id": "c", "choices": choices, "usage": {"completion_tokens": 9}}


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
    completion = answer([-1.0], [-0.6, -0.6, -0.6], [-2.0], [None, -0.1], [-0.5], [-3.0])
    choices = BestOf(3, 1, show_logprobs=False).select(completion)["choices"]
    assert [(c["index"], c["text"], c["logprobs"]) for c in choices] == [(0, "t1", None), (1, "t3", None)]


def test_the_kept_candidates_are_in_order_of_likelihood() -> None:
    choices = BestOf(3, 2, show_logprobs=True).select(answer([-2.0], [-1.0], [-3.0]))["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "t1"), (1, "t0")]
    assert choices[0]["logprobs"] == {"token_logprobs": [-1.0]}


def test_a_candidate_without_tokens_comes_last() -> None:
    choices = BestOf(2, 2, show_logprobs=True).select(answer([], [-9.0]))["choices"]
    assert [c["text"] for c in choices] == ["t1", "t0"]


@pytest.mark.parametrize("completion", [{}, {"choices": [{}]}, {"choices": 5}])
def test_an_answer_without_candidates_raises_what_the_exchange_reports_as_malformed(completion: dict[str, Any]) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        BestOf(2, 1, show_logprobs=False).select(completion)


CONFIG = parse(
    {
        "endpoints": {
            "chat": {"tasks": ["chat"], "traffic": {"fr": 100}},
            "plain": {"tasks": ["chat"], "traffic": {"base": 100}},
        },
        "deployments": {
            "base": {"app": "m", "model": "llama"},
            "fr": {"app": "m", "model": "fr-lora", "parent": "base"},
        },
    }
)


def card(name: str, *endpoints: str) -> dict[str, Any]:
    """The model's card for a caller with access to these endpoints; by default to all of them."""
    seen = ConfigViews(CONFIG).of(Caller("ann", "1", endpoints=frozenset(endpoints) or None))
    return model_card(seen, name, created=7)


def test_an_adapter_has_vllms_root_and_parent() -> None:
    assert card("fr") == {
        "id": "fr",
        "object": "model",
        "created": 7,
        "owned_by": "switchyard",
        "kind": "deployment",
        "tasks": ("chat", "completions", "responses"),
        "root": "fr-lora",
        "parent": "base",
    }


@pytest.mark.parametrize("name", ["base", "chat"])
def test_nothing_else_has_a_parent(name: str) -> None:
    assert "parent" not in card(name)


def test_a_parent_that_the_caller_may_not_use_is_not_named() -> None:
    assert "parent" not in card("fr", "chat")
    assert card("fr", "chat", "plain")["parent"] == "base"


def tokens_of(model: Model, text: str) -> int:
    """The tokens that `in_steps` hands on."""
    pieces: list[Piece] = []
    for _ in in_steps(model, text, "prompt", pieces.append):
        pass
    return sum(len(piece.ids) for piece in pieces)


def test_a_text_has_a_bounded_number_of_tokens_unless_the_context_holds_more() -> None:
    fits, too_long = "a " * (MOST_TOKENS // 2), "a " * (MOST_TOKENS // 2 + 8000)
    assert tokens_of(MODEL, fits) == MOST_TOKENS
    with pytest.raises(BadRequest, match=f"prompt: has more than {MOST_TOKENS} tokens"):
        tokens_of(MODEL, too_long)
    long = Model.build(MODEL.tokenizer.to_str(), eos_ids=[0], max_len=len(too_long))
    assert tokens_of(long, too_long) == len(too_long)
