"""The stochastic searches, against the probabilities of all answers of a small model."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from deployments.engine.beam_search import Kind, Settings, with_maximum
from tests.support.engine.beam_answers import Model, answers, made_up_model, normalised, said, searched

Answer = tuple[int, ...]

EOS = 0
STOCHASTIC = Settings(width=2, max_tokens=2, kind=Kind.STOCHASTIC, eos=frozenset({EOS}))
MODEL = made_up_model(3, 4, spread=0.7)


def probabilities(model: Model, settings: Settings, answer: Answer = ()) -> dict[Answer, float]:
    """The probabilities of all answers."""
    if answer and (answer[-1] in settings.eos or len(answer) == settings.max_tokens):
        return {answer: 1.0}
    expected: dict[Answer, float] = {}
    for token, logprob in enumerate(model(answer)):
        below = probabilities(model, settings, (*answer, token))
        expected |= {longer: float(np.exp(logprob)) * p for longer, p in below.items()}
    return expected


def without_replacement(p: Mapping[Answer, float], order: tuple[Answer, ...]) -> float:
    """The probability of drawing these, in this order."""
    total, left = 1.0, 1.0
    for answer in order:
        total *= p[answer] / left
        left -= p[answer]
    return total


def pairs(p: Mapping[Answer, float]) -> dict[tuple[Answer, ...], float]:
    """The probability of drawing these two, in any order."""
    either_way = ((pair, permutations(pair)) for pair in combinations(sorted(p), 2))
    return {pair: sum((without_replacement(p, order) for order in orders), 0.0) for pair, orders in either_way}


def agree(drawn: Counter[tuple[Answer, ...]], expected: Mapping[tuple[Answer, ...], float]) -> bool:
    """True if the draws may come from this distribution: chi-squared, at one in a thousand."""
    assert set(drawn) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1)
    observed = [drawn[key] for key in expected]
    return bool(chisquare(observed, [drawn.total() * p for p in expected.values()]).pvalue > 0.001)


def draws(model: Model, settings: Settings, count: int) -> Counter[tuple[Answer, ...]]:
    """The answers of `count` searches, sorted."""
    return Counter(tuple(sorted(answers(searched(model, settings, seed=seed)))) for seed in range(count))


def test_a_stochastic_search_draws_answers_without_replacement() -> None:
    p = probabilities(MODEL, STOCHASTIC)
    expected = pairs(p)
    assert len(expected) == 21
    assert agree(draws(MODEL, STOCHASTIC, 2500), expected)


def test_the_perturbed_log_probabilities_give_the_order_of_drawing() -> None:
    settings = replace(STOCHASTIC, width=3, max_tokens=1)
    p = probabilities(MODEL, settings)
    orders = Counter(
        tuple(
            beam.tokens for beam in sorted(searched(MODEL, settings, seed=seed).results(), key=lambda b: -b.perturbed)
        )
        for seed in range(2000)
    )
    assert agree(orders, {order: without_replacement(p, order) for order in permutations(p)})


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_width_of_one_is_ancestral_sampling(temperature: float) -> None:
    settings = replace(STOCHASTIC, width=1, temperature=temperature)
    p = probabilities(lambda answer: normalised(MODEL(answer) / temperature), settings)
    assert agree(draws(MODEL, settings, 2000), {(answer,): chance for answer, chance in p.items()})


def test_wide_enough_a_stochastic_search_finds_every_answer_with_its_probability() -> None:
    search = searched(MODEL, replace(STOCHASTIC, width=20, length_penalty=0))
    estimated = {beam.tokens: np.exp(search.value(beam)) for beam in search.results()}
    assert estimated == pytest.approx(probabilities(MODEL, STOCHASTIC))


def test_a_stochastic_search_returns_the_likeliest_answer_first() -> None:
    for seed in range(20):
        worth = [beam.score for beam in searched(MODEL, replace(STOCHASTIC, length_penalty=0), seed=seed).results()]
        assert worth == sorted(worth, reverse=True)


def test_naive_sampling_draws_continuations_without_replacement() -> None:
    settings = Settings(width=2, max_tokens=1, kind=Kind.NAIVE_SAMPLING, eos=frozenset({EOS}))
    model = made_up_model(6, 2, spread=1)
    p: dict[Answer, float] = {(token,): float(np.exp(logprob)) for token, logprob in enumerate(model(()))}
    expected = pairs(p)
    assert agree(draws(model, settings, 2500), expected)


LOCATIONS = st.lists(st.floats(-1e3, 50), min_size=1, max_size=20, unique=True).map(np.asarray)


@examples(deadline=None)
@given(gumbels=LOCATIONS, maximum=st.floats(-1e3, 1e3))
def test_conditioned_gumbels_have_their_maximum_and_their_order(gumbels: NDArray[np.float64], maximum: float) -> None:
    shifted = with_maximum(gumbels, maximum)
    assert np.isfinite(shifted).all()
    assert shifted.max() == maximum == shifted[gumbels.argmax()]
    assert (np.diff(shifted[np.argsort(gumbels)]) >= 0).all()


@pytest.mark.parametrize("maximum", [-3.0, 0.0, 40.0])
def test_conditioned_gumbels_are_gumbels_below_their_maximum(maximum: float) -> None:
    """Where another one is the maximum, a Gumbel has its distribution, truncated there."""
    random, locations = np.random.default_rng(1), np.log([0.6, 0.3, 0.1])
    uniform = []
    for _ in range(3000):
        gumbels = locations + random.gumbel(size=3)
        shifted = with_maximum(gumbels, maximum)
        if gumbels.argmax() != 1:
            # The distribution function of a Gumbel at location m, truncated at t: exp(exp(m - t) - exp(m - x)).
            uniform.append(np.exp(np.exp(locations[1] - maximum) - np.exp(locations[1] - shifted[1])))
    assert len(uniform) > 1500
    assert kstest(uniform, "uniform").pvalue > 0.001


def test_noise_belongs_to_tokens_and_not_to_their_ranks() -> None:
    """Two tokens that are nearly equally likely may change places from one run to the next."""
    level = normalised([0.0, 0.0, -1.0, -1.0])
    swapped = level + np.array([0, 1e-9, 0, -1e-9])
    assert said(level).ids.tolist() != said(swapped).ids.tolist()
    goes_on = made_up_model(4, 1)
    for kind in (Kind.NAIVE_SAMPLING, Kind.STOCHASTIC):
        settings = Settings(width=2, max_tokens=3, kind=kind)
        for seed in range(50):
            one = answers(searched(lambda answer: goes_on(answer) if answer else level, settings, seed=seed))
            other = answers(searched(lambda answer: goes_on(answer) if answer else swapped, settings, seed=seed))
            assert one == other
