"""The processors inside vLLM: its batches, its sampler, its validation; and which engines load them."""

from typing import Any

import pytest
import torch
from transformers import TypicalLogitsWarper
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessors,
    MoveDirectionality,
    validate_logits_processors_parameters,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from deployments.engine.logits.processors import green_list
from deployments.engine.logits.registry import PROCESSORS, logits_processors, supported_xargs
from deployments.engine.logits.vllm_adapter import BatchProcessor, RawScores, Sampling
from tests.support.engine.token_sampling import ruled_out

CPU = torch.device("cpu")
BOTH = (RawScores, Sampling)


def added(index: int, output: list[int] | None = None, **params: Any) -> tuple[int, SamplingParams, list[int], Any]:
    return (index, SamplingParams(**params), [1], [] if output is None else output)


def batch(kind: type[BatchProcessor], *requests: Any) -> BatchProcessor:
    """A processor for a batch of these requests."""
    processor = kind(None, CPU, False)
    processor.update_state(BatchUpdate(batch_size=len(requests), removed=[], added=requests, moved=[]))
    return processor


def forced(token: int) -> dict[str, Any]:
    return {"extra_args": {"forced_output_tokens": [token]}}


def chosen(processor: BatchProcessor) -> list[int | None]:
    """The token that each of three rows is forced to."""
    rows = processor.apply(torch.zeros(3, 8))
    return [int(row.argmax()) if ruled_out(row) else None for row in rows]


def test_each_row_gets_the_processors_of_its_request() -> None:
    assert chosen(batch(RawScores, added(0, **forced(4)), added(1), added(2, **forced(5)))) == [4, None, 5]


def test_rows_follow_their_requests() -> None:
    processor = batch(RawScores, added(0, **forced(4)), added(1), added(2, **forced(5)))
    processor.update_state(None)
    swap = (0, 1, MoveDirectionality.SWAP)
    processor.update_state(BatchUpdate(batch_size=3, removed=[], added=[added(2)], moved=[swap]))
    assert chosen(processor) == [None, 4, None]
    processor.update_state(BatchUpdate(batch_size=2, removed=[1], added=[], moved=[]))
    assert chosen(processor) == [None, None, None]


def test_the_output_is_read_as_it_grows() -> None:
    output: list[int] = []
    processor = batch(RawScores, added(0, output, extra_args={"forced_output_tokens": [4, 6]}))
    assert chosen(processor)[0] == 4
    output.append(4)
    assert chosen(processor)[0] == 6
    output.append(6)
    assert chosen(processor)[0] is None


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "extra_args", [None, {}, {"watermark": False}, {"kv_transfer_params": {"a": 1}}, {"typical_p": 1}]
)
def test_scores_stay_unchanged_without_parameters(kind: type[BatchProcessor], extra_args: Any) -> None:
    logits = torch.randn(1, 8)
    assert torch.equal(batch(kind, added(0, extra_args=extra_args)).apply(logits.clone()), logits)


def test_a_prompt_of_embeddings_has_no_ids() -> None:
    params = SamplingParams(extra_args={"watermark": True, "no_repeat_ngram": 2})
    logits = torch.randn(1, 8)
    assert torch.equal(batch(RawScores, (0, params, None, [])).apply(logits.clone()), logits)


def sample(logits: torch.Tensor, *requests: SamplingParams) -> torch.Tensor:
    """The logprobs that vLLM's sampler draws by, given `logits` (requests, vocabulary). Outputs are [2, 2]."""
    prompts, outputs = [[1]] * len(requests), [[2, 2] for _ in requests]
    rows = [(i, params, prompts[i], outputs[i]) for i, params in enumerate(requests)]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([float(getattr(params, name)) for params in requests])

    metadata = SamplingMetadata(
        temperature=column("temperature"),
        all_greedy=False,
        all_random=all(params.temperature > 0 for params in requests),
        top_p=None,
        top_k=None,
        generators={0: torch.Generator()},  # without one vLLM compiles its sampling, for a minute
        max_num_logprobs=-1,
        no_penalties=False,
        prompt_token_ids=torch.tensor(prompts),
        frequency_penalties=column("frequency_penalty"),
        presence_penalties=column("presence_penalty"),
        repetition_penalties=column("repetition_penalty"),
        output_token_ids=outputs,
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(batch(kind, *rows) for kind in BOTH),
    )
    output = Sampler(logprobs_mode="processed_logprobs")(logits, metadata)
    return output.logprobs_tensors.logprobs


def test_penalties_then_the_temperature_then_typical_p() -> None:
    logits = 4 * torch.randn(1, 200)
    params = SamplingParams(temperature=2, frequency_penalty=1, extra_args={"temperature": 5, "typical_p": 0.6})
    penalised = logits.clone()
    penalised[0, 2] -= 2
    expected = TypicalLogitsWarper(0.6)(None, penalised / 5).log_softmax(-1)
    assert len(ruled_out(expected[0])) > 0
    torch.testing.assert_close(sample(logits.clone(), params), expected)


def test_the_watermark_is_on_the_raw_scores() -> None:
    logits = torch.randn(1, 200)
    params = SamplingParams(temperature=0.5, repetition_penalty=1.5, extra_args={"watermark": True})
    marked = logits + 2 * green_list(2, 200)
    for token in (1, 2):
        marked[0, token] *= 1.5 if marked[0, token] < 0 else 1 / 1.5
    torch.testing.assert_close(sample(logits.clone(), params), (marked / 0.5).log_softmax(-1))


def test_a_greedy_request_in_the_batch_is_unaffected() -> None:
    logits = torch.randn(2, 50)
    asks = {"typical_p": 0.5, "xtc_threshold": 0.001, "xtc_probability": 1}
    logprobs = sample(logits.clone(), SamplingParams(temperature=0, extra_args=asks), SamplingParams(extra_args=asks))
    assert ruled_out(logprobs[0]) == set()
    assert ruled_out(logprobs[1]) != set()


@pytest.mark.parametrize(
    ("extra_args", "message"),
    [
        ({"watermark": 3}, "^watermark must be true or false, got 3"),
        ({"no_repeat_ngram": 0}, "^no_repeat_ngram must be at least 1, got 0"),
        ({"bad_word_tokens": [3, -1]}, "^bad_word_tokens holds an empty sequence"),
        ({"forced_output_tokens": "3"}, "^forced_output_tokens must be a list of integers, got '3'"),
        ({"typical_p": 0}, "^typical_p must be above 0 and at most 1, got 0"),
        ({"xtc_threshold": 7}, "^xtc_threshold must be between 0 and 1, got 7"),
        ({"temperature": 3}, "^temperature among the vllm_xargs needs 2"),
    ],
)
def test_vllm_rejects_invalid_values(extra_args: dict[str, Any], message: str) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        validate_logits_processors_parameters(tuple(PROCESSORS), SamplingParams(extra_args=extra_args))


def test_a_known_vocabulary_bounds_the_ids() -> None:
    class Known(RawScores):
        vocabulary_size = 50

    params = SamplingParams(extra_args={"bad_word_tokens": [3, -1, 50]})
    RawScores.validate_params(params)
    with pytest.raises(ValueError, match=r"^bad_word_tokens holds 50"):
        Known.validate_params(params)


VALID = {
    "watermark": True,
    "no_repeat_ngram": 2,
    "bad_word_tokens": [3],
    "forced_output_tokens": [3],
    "temperature": 3,
    "typical_p": 0.5,
    "xtc_threshold": 0.1,
    "xtc_probability": 0.5,
}


@pytest.mark.parametrize(("key", "kind"), [(key, name) for name, keys in PROCESSORS.items() for key in keys])
def test_each_processor_supports_the_keys_that_it_is_listed_with(key: str, kind: str) -> None:
    with_its_pair = {"xtc_threshold": 0.1, "xtc_probability": 0.5} if key.startswith("xtc") else {key: VALID[key]}
    params = SamplingParams(temperature=2, seed=5, extra_args=with_its_pair)
    heeds = {f"{each.__module__}:{each.__name__}": bool(each.processors_for(params, None)) for each in BOTH}
    assert heeds == {name: name == kind for name in PROCESSORS}


def test_all_keys_are_listed() -> None:
    assert {key for keys in PROCESSORS.values() for key in keys} == set(VALID)
    kinds = [processor for each in BOTH for processor in each.processors]
    assert len(kinds) == len(VALID) - 1, "XTC has two keys, the others one each"


@pytest.mark.parametrize("loaded", [(), ("some.other:Processor",), tuple(PROCESSORS), tuple(PROCESSORS)[1:]])
def test_an_engine_supports_the_keys_of_its_loaded_processors(loaded: tuple[str, ...]) -> None:
    assert supported_xargs(loaded) == [key for name in loaded for key in PROCESSORS.get(name, ())]


@pytest.mark.parametrize(
    ("engine_kwargs", "expected"),
    [
        ({"dtype": "float32", "speculative_config": None}, list(PROCESSORS)),
        ({"speculative_config": {"method": "ngram"}}, []),
        ({"spec_method": "ngram"}, []),
    ],
)
def test_engines_load_processors_unless_they_speculate(engine_kwargs: dict[str, Any], expected: list[str]) -> None:
    assert logits_processors(engine_kwargs) == expected
