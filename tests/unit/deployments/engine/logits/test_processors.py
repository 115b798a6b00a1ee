"""No n-gram twice.

The watermark, and the test that detects it.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor, PretrainedConfig, WatermarkDetector, WatermarkingConfig
from transformers import WatermarkLogitsProcessor as Reference

from deployments.engine.logits.processor import SamplingRequest
from deployments.engine.logits.processors import NoRepeatNgram, Watermark, detect
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


VOCABULARY = 2000
PARAMETERS = {"bias": 2.0, "hashing_key": 15485863, "seeding_scheme": "lefthash", "context_width": 1}


def detect_elsewhere(ids: list[int]) -> float:
    """The z-score that transformers computes."""
    config = WatermarkingConfig(greenlist_ratio=0.5, **PARAMETERS)
    model = PretrainedConfig(vocab_size=VOCABULARY, bos_token_id=VOCABULARY)
    detector = WatermarkDetector(model, "cpu", config, ignore_repeated_ngrams=True)
    return float(detector(torch.tensor([ids]), return_dict=True).z_score[0])


@pytest.mark.parametrize("seed", range(8))
def test_marked_text_is_found_and_unmarked_text_is_not(seed: int) -> None:
    marked = generate(made_up_scores(VOCABULARY, seed), [1], 200, Watermark(), seed=seed)
    unmarked = generate(made_up_scores(VOCABULARY, seed), [1], 200, seed=seed)
    assert detect(marked, VOCABULARY).z > 4
    assert abs(detect(unmarked, VOCABULARY).z) < 4


@pytest.mark.parametrize("processors", [[Watermark()], []], ids=["marked", "unmarked"])
def test_transformers_detector_agrees(processors: list[Watermark]) -> None:
    ids = generate(made_up_scores(VOCABULARY, 9), [1], 120, *processors)
    assert detect(ids, VOCABULARY).z == pytest.approx(detect_elsewhere(ids))


def test_the_same_tokens_are_green_as_elsewhere() -> None:
    reference = Reference(VOCABULARY, "cpu", greenlist_ratio=0.5, **PARAMETERS)
    for previous in (0, 7, VOCABULARY - 1):
        scores = torch.randn(VOCABULARY)
        expected = reference(torch.tensor([[3, previous]]), scores[None])[0]
        Watermark()(scores, [3], [previous])
        torch.testing.assert_close(scores, expected)


def test_the_prompts_last_token_marks_the_first_of_the_output() -> None:
    with_prompt, with_output = torch.zeros(10), torch.zeros(10)
    Watermark()(with_prompt, [5], [])
    Watermark()(with_output, [], [5])
    assert with_prompt.tolist() == with_output.tolist()
    assert sorted(with_prompt.tolist()) == [0.0] * 5 + [2.0] * 5


def test_nothing_is_marked_without_a_previous_token() -> None:
    scores = torch.zeros(10)
    Watermark()(scores, [], [])
    assert not scores.any()


def test_repeated_pairs_are_no_evidence() -> None:
    ids = generate(made_up_scores(VOCABULARY, 3), [1], 20, Watermark())
    assert detect(ids * 50, VOCABULARY).tokens <= 20
    assert detect([4], VOCABULARY).z == 0


@pytest.mark.parametrize(("value", "is_on"), [(True, True), (1, True), (False, False), (0, False), (None, False)])
def test_a_request_switches_the_watermark_on(value: object, is_on: bool) -> None:
    assert (Watermark.from_request(SamplingRequest({"watermark": value})) is not None) == is_on


@pytest.mark.parametrize("value", ["yes", 2, 0.5, [1]])
def test_other_values_are_rejected_watermark(value: object) -> None:
    with pytest.raises(ValueError, match=r"^watermark must be true or false"):
        Watermark.from_request(SamplingRequest({"watermark": value}))
