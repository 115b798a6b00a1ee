"""Processors that change how a token is drawn: typical_p, XTC, temperatures above vLLM's limit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from transformers import TypicalLogitsWarper

from deployments.engine.logits.processor import SamplingRequest
from deployments.engine.logits.processors import Temperature, TypicalP, Xtc
from tests.support.engine.token_sampling import present, ruled_out

SCORES = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40).map(torch.tensor)
PROBABILITIES = [0.4, 0.3, 0.2, 0.1]


@given(scores=SCORES, mass=st.floats(0.01, 0.99), temperature=st.floats(2.1, 50))
def test_typical_p_is_transformers_at_any_temperature(scores: torch.Tensor, mass: float, temperature: float) -> None:
    request = SamplingRequest({"typical_p": mass, "temperature": temperature}, temperature=2)
    expected = TypicalLogitsWarper(mass)(None, (scores / temperature)[None])[0]
    processed = scores / 2  # as vLLM leaves them
    present(Temperature.from_request(request))(processed, [], [])
    present(TypicalP.from_request(request))(processed, [], [])
    torch.testing.assert_close(processed, expected)


@given(scores=SCORES, mass=st.floats(0.01, 0.99))
def test_typical_p_keeps_the_fewest_of_the_most_typical(scores: torch.Tensor, mass: float) -> None:
    surprise = -scores.double().log_softmax(-1)
    probabilities = (-surprise).exp()
    distance = (surprise - (probabilities * surprise).sum()).abs()
    processed = scores.clone()
    TypicalP(mass)(processed, [], [])
    kept = ~torch.isneginf(processed)
    assert torch.equal(processed[kept], scores[kept])
    assert probabilities[kept].sum() >= mass - 1e-4
    farthest = distance[kept].max()
    assert bool((distance[~kept] >= farthest - 1e-4).all())
    assert probabilities[distance < farthest - 1e-4].sum() < mass + 1e-4


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(SamplingRequest({"typical_p": 1}), id="all of the mass"),
        pytest.param(SamplingRequest({"typical_p": 0.5}, temperature=0), id="greedy"),
        pytest.param(SamplingRequest({}), id="not asked"),
    ],
)
def test_typical_p_is_off(request_: SamplingRequest) -> None:
    assert TypicalP.from_request(request_) is None


@pytest.mark.parametrize("value", [0, -0.1, 1.1, math.nan, math.inf, "0.5", True, [0.5]])
def test_other_masses_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"^typical_p must be "):
        TypicalP.from_request(SamplingRequest({"typical_p": value}))


def excluded(threshold: float, position: int = 0, probability: float = 1.0, seed: int = 0) -> set[int]:
    scores = torch.tensor(PROBABILITIES).log()
    Xtc(threshold, probability, seed)(scores, [], [9] * position)
    return ruled_out(scores)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.05, {0, 1, 2}), (0.15, {0, 1}), (0.25, {0}), (0.35, set()), (0.5, set())]
)
def test_the_least_likely_choice_at_or_above_the_threshold_stays(threshold: float, expected: set[int]) -> None:
    assert excluded(threshold) == expected


def test_one_of_equal_choices_stays() -> None:
    scores = torch.zeros(4)
    Xtc(0.25, 1, 0)(scores, [], [])
    assert len(ruled_out(scores)) == 3


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_xtc_acts_with_its_probability(probability: float) -> None:
    acted = sum(excluded(0.15, position, probability) != set() for position in range(4000))
    assert binomtest(acted, 4000, probability).pvalue > 0.001


def test_the_seed_and_the_position_decide() -> None:
    def acts(seed: int) -> list[bool]:
        return [excluded(0.15, position, 0.5, seed) != set() for position in range(64)]

    assert acts(1) == acts(1)
    assert len({tuple(acts(seed)) for seed in (-1, 0, 1, 2, 2**64 - 1)}) == 5


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(SamplingRequest({"xtc_threshold": 0.1}), id="no probability"),
        pytest.param(SamplingRequest({"xtc_probability": 0.1}), id="no threshold"),
        pytest.param(SamplingRequest({"xtc_threshold": 0, "xtc_probability": 1}), id="threshold 0"),
        pytest.param(SamplingRequest({"xtc_threshold": 0.1, "xtc_probability": 0}), id="probability 0"),
        pytest.param(SamplingRequest({"xtc_threshold": 0.1, "xtc_probability": 1}, temperature=0), id="greedy"),
    ],
)
def test_xtc_is_off(request_: SamplingRequest) -> None:
    assert Xtc.from_request(request_) is None


@pytest.mark.parametrize("key", ["xtc_threshold", "xtc_probability"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "x", [0.1]])
def test_other_fractions_are_rejected(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{key} must be "):
        Xtc.from_request(SamplingRequest({key: value}))


@pytest.mark.parametrize("value", [2, 1, 0, -3, math.inf, "4"])
def test_lower_temperatures_are_the_requests_own(value: object) -> None:
    with pytest.raises(ValueError, match=r"^temperature .*must be "):
        Temperature.from_request(SamplingRequest({"temperature": value}, temperature=2))


@pytest.mark.parametrize("own", [0, 1, 1.9])
def test_the_requests_own_temperature_must_be_at_the_limit(own: float) -> None:
    with pytest.raises(ValueError, match=f"^temperature among the vllm_xargs needs 2 .* got {own}"):
        Temperature.from_request(SamplingRequest({"temperature": 4}, temperature=own))
