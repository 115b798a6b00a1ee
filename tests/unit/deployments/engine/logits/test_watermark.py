"""The watermark, and the test that detects it."""

import pytest
import torch
from transformers import PretrainedConfig, WatermarkDetector, WatermarkingConfig
from transformers import WatermarkLogitsProcessor as Reference

from deployments.engine.logits.processor import SamplingRequest
from deployments.engine.logits.processors import Watermark, detect
from tests.support.engine.token_sampling import generate, made_up_scores

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
def test_other_values_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"^watermark must be true or false"):
        Watermark.from_request(SamplingRequest({"watermark": value}))
