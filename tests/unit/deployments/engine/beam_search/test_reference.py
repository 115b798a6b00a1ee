"""Deterministic beam search finds the same beams as transformers, in the same order, with the same scores."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from deployments.engine.beam_search import Settings
from tests.support.engine.beam_answers import Model, normalised, searched

VOCABULARY = 24
NEVER = VOCABULARY
PROMPT = [3, 17, 8, 3, 17]
BASE = Settings(width=4, max_tokens=12, eos=frozenset({1}))


@dataclass(frozen=True)
class TinyModel:
    """A random model with many likely answers, and its log-probabilities after PROMPT."""

    transformer: Any

    def logprobs(self, answer: Any) -> Any:
        with torch.no_grad():
            logits = self.transformer(torch.tensor([[*PROMPT, *answer]])).logits[0, -1]
        return normalised(logits.double().numpy())

    def found(self, **arguments: Any) -> list[tuple[list[int], float]]:
        """transformers' beams."""
        output = self.transformer.generate(
            torch.tensor([PROMPT]), do_sample=False, return_dict_in_generate=True, output_scores=True, **arguments
        )
        pairs = zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True)
        return [(up_to(ids[len(PROMPT) :], arguments["eos_token_id"]), score) for ids, score in pairs if score > -1e8]


def up_to(ids: list[int], eos: list[int]) -> list[int]:
    ends = [place + 1 for place, token in enumerate(ids) if token in eos]
    return ids[: min(ends, default=len(ids))]


def tiny(seed: int) -> TinyModel:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(seed)
    transformer = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, pad_token_id=0, **sizes)).eval()
    with torch.no_grad():
        transformer.model.embed_tokens.weight.mul_(50)
        transformer.lm_head.weight.mul_(50)
    return TinyModel(transformer)


def in_transformers_words(settings: Settings) -> dict[str, Any]:
    words = {
        "num_beams": settings.width,
        "num_return_sequences": settings.width,
        "max_new_tokens": settings.max_tokens,
        "eos_token_id": sorted(settings.eos) or [NEVER],
        "length_penalty": settings.length_penalty,
        "early_stopping": settings.early_stopping,
        "repetition_penalty": settings.repetition_penalty,
        "min_new_tokens": settings.min_tokens or None,
        "bad_words_ids": [list(ids) for ids in settings.forbidden] or None,
        "no_repeat_ngram_size": settings.no_repeat_ngram if settings.no_repeat_ngram > 1 else None,
    }
    return {name: value for name, value in words.items() if value is not None}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"width": 2, "length_penalty": 0.0}, id="sum"),
        pytest.param({"width": 3, "length_penalty": 2.0, "eos": frozenset({1, 5})}, id="long, two eos"),
        pytest.param({"width": 5, "length_penalty": -1.0, "early_stopping": True}, id="short, early"),
        pytest.param({"early_stopping": "never", "eos": frozenset({1, 5, 9})}, id="never early"),
        pytest.param({"early_stopping": True}, id="early"),
        pytest.param({"no_repeat_ngram": 2, "eos": frozenset()}, id="n-grams, no eos"),
        pytest.param({"repetition_penalty": 1.4, "no_repeat_ngram": 3}, id="penalty, n-grams"),
        pytest.param({"repetition_penalty": 0.8}, id="reward"),
        pytest.param({"forbidden": ((7,), (2, 4), (9, 10, 11)), "min_tokens": 6}, id="forbidden, not too short"),
        pytest.param({"max_tokens": 1}, id="one token"),
    ],
)
def test_the_beams_are_those_of_transformers(changes: dict[str, Any], seed: int) -> None:
    settings, model = replace(BASE, **changes), tiny(seed)
    logprobs: Model = model.logprobs
    search = searched(logprobs, settings, PROMPT)
    results = search.results()
    expected = model.found(**in_transformers_words(settings))
    assert [list(beam.tokens) for beam in results] == [ids for ids, _ in expected]
    np.testing.assert_allclose([search.value(beam) for beam in results], [score for _, score in expected], rtol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_width_of_one_is_greedy_search(seed: int) -> None:
    model = tiny(seed)
    greedy = model.transformer.generate(torch.tensor([PROMPT]), do_sample=False, eos_token_id=1, max_new_tokens=12)
    search = searched(model.logprobs, replace(BASE, width=1), PROMPT)
    assert [list(beam.tokens) for beam in search.results()] == [greedy[0, len(PROMPT) :].tolist()]
