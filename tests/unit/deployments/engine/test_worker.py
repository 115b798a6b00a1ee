"""A request that comes with output draws as if it had generated that itself."""

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from deployments.engine.worker import CpuGenerator

SIZE = 4096


def state(output: list[int]) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=SimpleNamespace(seed=2**40 + 5), output_token_ids=output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_generator_has_drawn_once_for_each_token(dtype: torch.dtype, count: int) -> None:
    undisturbed = torch.Generator()
    undisturbed.manual_seed(2**40 + 5)
    noise = torch.empty(SIZE, dtype=dtype)
    for _ in range(count):
        noise.exponential_(generator=undisturbed)
    generator = CpuGenerator.from_state(state([9] * count), SIZE)
    expected = noise.exponential_(generator=undisturbed).clone()
    assert torch.equal(noise.exponential_(generator=generator), expected)


def test_a_draw_for_a_part_of_the_prompt_is_taken_back() -> None:
    generator, noise = CpuGenerator.from_state(state([9, 9]), SIZE), torch.empty(SIZE)
    first = noise.exponential_(generator=generator).clone()
    generator.set_offset(generator.get_offset() - 4)
    assert torch.equal(noise.exponential_(generator=generator), first)
