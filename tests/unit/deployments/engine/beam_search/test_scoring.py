"""The tokens that may follow a beam, and their scores: transformers' processors on log-probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from deployments.engine.beam_search.search import Kind, Scoring, Settings
from tests.support.engine.beam_answers import normalised, said

VOCABULARY = 8
BASE = Settings(width=2, max_tokens=99, eos=frozenset({7}))
DRAWN = replace(BASE, kind=Kind.NAIVE_SAMPLING)
IDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
# Sixteenths, because nearly equal values would tie once they are normalised.
LOGITS = st.lists(st.integers(-96, 96).map(lambda n: n / 16), min_size=VOCABULARY, max_size=VOCABULARY, unique=True)


def ours(settings: Settings, prompt: list[int], answer: list[int], logits: list[float]) -> list[float]:
    """Scores by id, minus infinity where a token is ruled out."""
    found = Scoring(settings, prompt).continuations(tuple(answer), said(normalised(logits)))
    assert list(found.scores) == sorted(found.scores, reverse=True)
    scores = np.full(VOCABULARY, -np.inf)
    scores[found.ids] = found.scores
    np.testing.assert_array_equal(found.logprobs, normalised(logits)[found.ids])
    return list(scores)


@pytest.mark.parametrize(
    ("settings", "processors"),
    [
        pytest.param(replace(BASE, repetition_penalty=1.5), [RepetitionPenaltyLogitsProcessor(1.5)], id="repetition"),
        pytest.param(replace(BASE, no_repeat_ngram=2), [NoRepeatNGramLogitsProcessor(2)], id="2-grams"),
        pytest.param(replace(BASE, no_repeat_ngram=3), [NoRepeatNGramLogitsProcessor(3)], id="3-grams"),
        pytest.param(replace(DRAWN, temperature=0.4), [TemperatureLogitsWarper(0.4)], id="temperature"),
        pytest.param(replace(DRAWN, top_k=3), [TopKLogitsWarper(3, min_tokens_to_keep=2)], id="top k"),
        pytest.param(replace(DRAWN, top_k=1), [TopKLogitsWarper(1, min_tokens_to_keep=2)], id="top k, eos and one"),
        pytest.param(replace(DRAWN, top_p=0.6), [TopPLogitsWarper(0.6, min_tokens_to_keep=2)], id="top p"),
        pytest.param(
            replace(DRAWN, repetition_penalty=2, no_repeat_ngram=2, temperature=1.5, top_k=5, top_p=0.8),
            [
                RepetitionPenaltyLogitsProcessor(2.0),
                NoRepeatNGramLogitsProcessor(2),
                TemperatureLogitsWarper(1.5),
                TopKLogitsWarper(5, min_tokens_to_keep=2),
                TopPLogitsWarper(0.8, min_tokens_to_keep=2),
            ],
            id="all in their order",
        ),
    ],
)
@examples(deadline=None)
@given(prompt=IDS, answer=IDS, logits=LOGITS)
def test_scores_are_those_of_transformers(
    settings: Settings, processors: list[LogitsProcessor], prompt: list[int], answer: list[int], logits: list[float]
) -> None:
    scores = torch.tensor(normalised(logits))[None]
    for processor in processors:
        scores = processor(torch.tensor([prompt + answer], dtype=torch.long), scores)
    np.testing.assert_allclose(ours(settings, prompt, answer, logits), scores[0].numpy())


@examples(deadline=None)
@given(prompt=IDS, answer=IDS, logits=LOGITS)
def test_forbidden_and_early_tokens_are_those_of_transformers(
    prompt: list[int], answer: list[int], logits: list[float]
) -> None:
    forbidden = [[1], [2, 3], [4, 4, 5]]
    settings = replace(BASE, forbidden=tuple(map(tuple, forbidden)), min_tokens=4)
    ids = torch.tensor(
        [answer], dtype=torch.long
    )  # the answer only: a sequence that starts in the prompt is not forbidden
    scores = torch.tensor(normalised(logits))[None]
    if answer:
        scores = NoBadWordsLogitsProcessor(forbidden, eos_token_id=7)(ids, scores)
    else:
        scores[0, 1] = -torch.inf
    scores = MinNewTokensLengthLogitsProcessor(0, 4, 7)(ids, scores)
    np.testing.assert_allclose(ours(settings, prompt, answer, logits), scores[0].numpy())


@examples(deadline=None)
@given(answer=IDS, logits=LOGITS)
def test_penalties_per_occurrence_and_for_presence(answer: list[int], logits: list[float]) -> None:
    settings = replace(BASE, frequency_penalty=0.5, presence_penalty=-0.25)
    counts = np.bincount(np.asarray(answer, dtype=np.int64), minlength=VOCABULARY)
    expected = normalised(logits) - 0.5 * counts + 0.25 * (counts > 0)
    np.testing.assert_allclose(ours(settings, [1, 2], answer, logits), expected)


@examples(deadline=None)
@given(answer=IDS, logits=LOGITS, temperature=st.floats(0.1, 2), top_p=st.floats(0.05, 1))
def test_a_stochastic_search_gets_normalised_probabilities(
    answer: list[int], logits: list[float], temperature: float, top_p: float
) -> None:
    settings = replace(BASE, kind=Kind.STOCHASTIC, temperature=temperature, top_p=top_p, no_repeat_ngram=2)
    scores = ours(settings, [], answer, logits)
    assert np.exp(scores).sum() == pytest.approx(1)


def test_no_stop_comes_before_min_tokens() -> None:
    settings = replace(BASE, stops=((3,), (1, 2)), min_tokens=2)
    ruled_out = [
        {id for id, score in enumerate(ours(settings, [], answer, [0.1 * i for i in range(8)])) if score == -np.inf}
        for answer in ([], [1], [0, 1])
    ]
    assert ruled_out == [{3, 7}, {2, 3, 7}, set()]


def test_tokens_that_the_model_excludes_do_not_follow() -> None:
    logprobs = normalised([0.0, 1.0, 2.0])
    logprobs[1] = -np.inf
    found = Scoring(BASE, []).continuations((), said(logprobs))
    assert found.ids.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        pytest.param(BASE, 4, id="two per beam"),
        pytest.param(replace(BASE, eos=frozenset({1, 2})), 6, id="one more for each eos"),
        pytest.param(replace(BASE, top_logprobs=20), 20, id="as many as are shown"),
        pytest.param(replace(BASE, repetition_penalty=1.2), 4 + 3, id="what a penalty may push down"),
        pytest.param(replace(BASE, presence_penalty=1), 4 + 2, id="of the answer"),
        pytest.param(replace(BASE, no_repeat_ngram=2), 4 + 2, id="what is ruled out"),
        pytest.param(replace(BASE, repetition_penalty=0.9), None, id="a reward may lift any token"),
        pytest.param(replace(BASE, frequency_penalty=-1), None, id="a negative penalty too"),
        pytest.param(DRAWN, None, id="any may be drawn"),
        pytest.param(replace(DRAWN, top_k=5), 5, id="of the top k"),
        pytest.param(replace(DRAWN, kind=Kind.STOCHASTIC, top_p=0.5), None, id="or of the top p"),
    ],
)
def test_how_many_of_the_likeliest_tokens_are_needed(settings: Settings, needed: int | None) -> None:
    assert Scoring(settings, [5, 6, 5]).needed((3, 5)) == needed
