"""Invariants of every kind of search.

The tokens that may follow a beam, and their scores: transformers' processors on log-probabilities.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
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

from deployments.engine.beam_search import Beam, FinishReason, Kind, Scoring, Settings
from tests.support.engine.beam_answers import Model, answers, made_up_model, normalised, said, searched

VOCABULARY = 7
IDS = st.integers(0, VOCABULARY - 1)
SEQUENCES = st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)
SETTINGS = st.builds(
    Settings,
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 9),
    kind=st.sampled_from(Kind),
    min_tokens=st.integers(0, 3),
    eos=st.frozensets(IDS, max_size=2),
    stops=SEQUENCES,
    forbidden=SEQUENCES,
    no_repeat_ngram=st.integers(1, 3),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5, -0.5]),
    temperature=st.sampled_from([1.0, 0.3, 2.0]),
    top_k=st.integers(0, VOCABULARY),
    top_p=st.sampled_from([1.0, 0.7, 0.2]),
    length_penalty=st.sampled_from([1.0, 0.0, -1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    top_logprobs=st.sampled_from([None, 0, 3]),
)
PROMPTS = st.lists(IDS, max_size=5).map(tuple)
KINDS = pytest.mark.parametrize("kind", list(Kind))


def contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


@examples(max_examples=4 * examples().max_examples)  # fourteen fields that act on each other
@given(settings=SETTINGS, prompt=PROMPTS, seed=st.integers(0, 2**64 - 1))
def test_answers_obey_the_settings(settings: Settings, prompt: tuple[int, ...], seed: int) -> None:
    model = made_up_model(VOCABULARY, 0)
    search = searched(model, settings, prompt, seed=seed)
    results = search.results()
    assert 1 <= len(results) <= settings.width
    assert len(set(answers(search))) == len(results)
    worth = [search.value(beam) for beam in results]
    assert worth == sorted(worth, reverse=True)
    for beam in results:
        ends_as_it_says(beam, settings)
        contains_nothing_forbidden(beam, settings, prompt)
        assert [step.logprob for step in beam.steps] == [
            model(beam.tokens[:place])[token] for place, token in enumerate(beam.tokens)
        ]
        assert {len(step.favourites) for step in beam.steps} <= {settings.top_logprobs or 0}
    assert answers(searched(model, settings, prompt, seed=seed)) == answers(search)


def ends_as_it_says(beam: Beam, settings: Settings) -> None:
    tokens, before = beam.tokens, beam.tokens[:-1]
    assert len(tokens) <= settings.max_tokens
    assert not settings.eos & set(before)
    assert not any(contains(before, stop) for stop in settings.stops)
    closing = tokens[len(tokens) - beam.closing :]
    match beam.ending:
        case FinishReason.EOS:
            assert set(closing) <= settings.eos
            assert len(before) >= settings.min_tokens
        case FinishReason.STOP:
            assert closing in settings.stops
            assert len(before) >= settings.min_tokens
        case FinishReason.LENGTH:
            assert (len(tokens), beam.closing) == (settings.max_tokens, 0)
        case _:
            assert (beam.ending, beam.closing) == (FinishReason.EXHAUSTED, 0)


def contains_nothing_forbidden(beam: Beam, settings: Settings, prompt: tuple[int, ...]) -> None:
    assert not any(contains(beam.tokens, ids) for ids in settings.forbidden)
    n, text = settings.no_repeat_ngram, (*prompt, *beam.tokens)
    if n > 1:
        ngrams = [text[i : i + n] for i in range(len(text) - n + 1)]
        for place, ngram in enumerate(ngrams):
            assert place + n <= len(prompt) or ngram not in ngrams[:place]


@given(settings=SETTINGS, prompt=PROMPTS)
def test_the_tokens_that_a_search_asks_for_are_enough(settings: Settings, prompt: tuple[int, ...]) -> None:
    """A search that gets only the tokens it needs finds the same as one that gets all of them."""
    model = made_up_model(40, 1)
    calls, shown = (searched(model, settings, prompt, seed=5, tell_all=tell_all) for tell_all in (False, True))
    assert answers(calls) == answers(shown)


def chain(*favourites: int, vocabulary: int = 6) -> Model:
    """A model that prefers these tokens after any text."""

    def logprobs(answer: object) -> object:
        tokens = list(answer)  # type: ignore[call-overload]
        logits = [0.0] * vocabulary
        if len(tokens) < len(favourites):
            logits[favourites[len(tokens)]] = 10.0
        return normalised(logits)

    return logprobs  # type: ignore[return-value]


def test_a_deterministic_search_finds_the_best_answer() -> None:
    search = searched(chain(3, 4, 0), Settings(width=3, max_tokens=8, eos=frozenset({0})))
    assert search.results()[0].tokens == (3, 4, 0)
    assert search.results()[0].ending is FinishReason.EOS


@KINDS
def test_a_stop_ends_the_search_once_all_beams_contain_it(kind: Kind) -> None:
    settings = Settings(width=2, max_tokens=9, kind=kind, stops=((4,), (5, 2)))
    results = searched(made_up_model(6, 3, spread=1), settings, seed=1).results()
    assert [beam.ending for beam in results] == [FinishReason.STOP, FinishReason.STOP]


def test_a_stopped_beam_waits_for_the_others() -> None:
    """The beam keeps its place until better ones replace it, and does not end the search by itself."""
    table: dict[tuple[int, ...], list[float]] = {
        (): [0.6, 0.4, 0, 0],
        (1,): [0.1, 0.1, 0.1, 0.7],
        (1, 3): [0.9, 0.1, 0, 0],
    }

    def model(answer: Sequence[int]) -> NDArray[np.float64]:
        probabilities = table.get(tuple(answer), [0.25] * 4)
        return normalised([-99 if p == 0 else math.log(p) for p in probabilities])

    settings = Settings(width=2, max_tokens=5, stops=((0,),), length_penalty=0)
    assert answers(searched(model, settings)) == [(0,), (1, 3, 0)]


@pytest.mark.parametrize("early_stopping", [True, False])
def test_early_stopping_ends_with_as_many_beams_as_its_width(early_stopping: bool) -> None:
    """Ending at once is likely here, but a long answer scores higher for its length."""
    settings = Settings(width=2, max_tokens=30, eos=frozenset({0, 1}), early_stopping=early_stopping, length_penalty=4)
    model = made_up_model(3, 8, spread=0.3)
    lengths = {len(tokens) for tokens in answers(searched(model, settings))}
    assert (max(lengths) < 5) == early_stopping


@KINDS
def test_an_answer_ends_if_every_token_is_ruled_out(kind: Kind) -> None:
    settings = Settings(width=2, max_tokens=9, kind=kind, no_repeat_ngram=2)
    results = searched(made_up_model(2, 0), settings).results()
    assert {beam.ending for beam in results} == {FinishReason.EXHAUSTED}
    assert all(len(beam.tokens) <= 5 for beam in results)
    (nothing,) = searched(made_up_model(1, 0), replace(settings, forbidden=((0,),))).results()
    assert nothing.tokens == ()


@pytest.mark.parametrize("kind", [Kind.NAIVE_SAMPLING, Kind.STOCHASTIC])
def test_other_seeds_find_other_answers(kind: Kind) -> None:
    settings = Settings(width=2, max_tokens=6, kind=kind)
    model = made_up_model(20, 0, spread=1)
    assert len({tuple(answers(searched(model, settings, seed=seed))) for seed in range(5)}) == 5


def test_the_temperature_changes_no_deterministic_search() -> None:
    settings = Settings(width=3, max_tokens=6, eos=frozenset({1}))
    model = made_up_model(20, 0)
    assert answers(searched(model, settings)) == answers(searched(model, replace(settings, temperature=0.1)))


VOCABULARY_SCORING = 8
BASE = Settings(width=2, max_tokens=99, eos=frozenset({7}))
DRAWN = replace(BASE, kind=Kind.NAIVE_SAMPLING)
IDS_SCORING = st.lists(st.integers(0, VOCABULARY_SCORING - 1), max_size=8)
# Sixteenths, because nearly equal values would tie once they are normalised.
LOGITS = st.lists(
    st.integers(-96, 96).map(lambda n: n / 16), min_size=VOCABULARY_SCORING, max_size=VOCABULARY_SCORING, unique=True
)


def ours(settings: Settings, prompt: list[int], answer: list[int], logits: list[float]) -> list[float]:
    """Scores by id, minus infinity where a token is ruled out."""
    continuations = Scoring(settings, prompt).continuations(tuple(answer), said(normalised(logits)))
    assert list(continuations.scores) == sorted(continuations.scores, reverse=True)
    scores = np.full(VOCABULARY_SCORING, -np.inf)
    scores[continuations.ids] = continuations.scores
    np.testing.assert_array_equal(continuations.logprobs, normalised(logits)[continuations.ids])
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
@given(prompt=IDS_SCORING, answer=IDS_SCORING, logits=LOGITS)
def test_scores_are_those_of_transformers(
    settings: Settings, processors: list[LogitsProcessor], prompt: list[int], answer: list[int], logits: list[float]
) -> None:
    scores = torch.tensor(normalised(logits))[None]
    for processor in processors:
        scores = processor(torch.tensor([prompt + answer], dtype=torch.long), scores)
    np.testing.assert_allclose(ours(settings, prompt, answer, logits), scores[0].numpy())


@examples(deadline=None)
@given(prompt=IDS_SCORING, answer=IDS_SCORING, logits=LOGITS)
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
@given(answer=IDS_SCORING, logits=LOGITS)
def test_penalties_per_occurrence_and_for_presence(answer: list[int], logits: list[float]) -> None:
    settings = replace(BASE, frequency_penalty=0.5, presence_penalty=-0.25)
    counts = np.bincount(np.asarray(answer, dtype=np.int64), minlength=VOCABULARY_SCORING)
    expected = normalised(logits) - 0.5 * counts + 0.25 * (counts > 0)
    np.testing.assert_allclose(ours(settings, [1, 2], answer, logits), expected)


@examples(deadline=None)
@given(answer=IDS_SCORING, logits=LOGITS, temperature=st.floats(0.1, 2), top_p=st.floats(0.05, 1))
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
    continuations = Scoring(BASE, []).continuations((), said(logprobs))
    assert continuations.ids.tolist() == [2, 0]


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
