"""No n-gram twice."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

from deployments.engine.logits.processor import SamplingRequest
from deployments.engine.logits.processors import NoRepeatNgram
from tests.support.engine.token_sampling import generate, made_up_scores, ruled_out

IDS = st.lists(st.integers(0, 5), max_size=30)


@given(n=st.integers(2, 6), prompt=IDS, output=IDS, split=st.integers(0, 30))
def test_the_tokens_ruled_out_are_those_of_transformers(
    n: int, prompt: list[int], output: list[int], split: int
) -> None:
    processor = NoRepeatNgram(n)
    scores = torch.zeros(8)  # more ids than tokens, so some are always allowed
    processor(scores.clone(), prompt, output[:split])  # an earlier step, up to the allowed number of tokens ago
    processor(scores, prompt, output)
    text = prompt + output
    expected = NoRepeatNGramLogitsProcessor(n)(torch.tensor([text], dtype=torch.long), torch.zeros(1, 8))[0]
    assert ruled_out(scores) == ruled_out(expected)


@pytest.mark.parametrize("n", [2, 3])
def test_no_ngram_comes_twice_in_thousands_of_tokens(n: int) -> None:
    prompt = list(range(100))
    output = generate(made_up_scores(150, n), prompt, 3000, NoRepeatNgram(n))
    text = prompt + output
    ngrams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    assert len(set(ngrams)) == len(ngrams)
    free = generate(made_up_scores(150, n), prompt, 3000)
    assert len(set(pairwise(free))) < len(free) - 100


def test_the_prompts_own_repetitions_stay() -> None:
    scores = torch.zeros(4)
    NoRepeatNgram(2)(scores, [1, 2, 1, 2, 1], [])
    assert ruled_out(scores) == {2}


def test_where_nothing_else_is_left_the_ngram_may_come_again() -> None:
    scores = torch.full((4,), -torch.inf)
    scores[2] = 0.5
    NoRepeatNgram(2)(scores, [1, 2, 1], [])
    assert scores.tolist() == [-torch.inf, -torch.inf, 0.5, -torch.inf]


def test_tokens_taken_back_are_forgotten() -> None:
    processor, scores = NoRepeatNgram(2), torch.zeros(6)
    output = [1, 2, 1, 3, 1]
    processor(scores.clone(), [], output)
    del output[2:]
    output[1] = 1
    processor(scores, [], output)
    assert ruled_out(scores) == {1}


def test_ids_outside_the_vocabulary_harm_nothing() -> None:
    scores = torch.zeros(4)
    NoRepeatNgram(2)(scores, [1, 9, 1, -1, 1], [])
    assert ruled_out(scores) == set()


@pytest.mark.parametrize("value", [1, None])
def test_an_ngram_length_of_1_disables_the_processor(value: int | None) -> None:
    assert NoRepeatNgram.from_request(SamplingRequest({"no_repeat_ngram": value})) is None


@pytest.mark.parametrize("value", [0, -3, 2.5, "3", True, [3], 2**40])
def test_other_values_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"^no_repeat_ngram must be "):
        NoRepeatNgram.from_request(SamplingRequest({"no_repeat_ngram": value}))
