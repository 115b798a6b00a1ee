"""What vLLM's workers need for requests that come with output tokens. Importing it imports vLLM.

vLLM adds the methods of `WorkerExtension` to its workers (the engine argument `worker_extension_cls`), each in its own
process, and the server calls them once, when the engine is ready.
"""

from functools import partial
from typing import Any, Self

import torch
from vllm.v1.sample.ops.topk_topp_sampler import empty_exponential_noise_like
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from deployments.engine.scheduler import output_of


class WorkerExtension:
    """Methods of each worker, for `collective_rpc`."""

    model_runner: Any
    """vLLM's."""

    def take_output(self) -> bool:
        """Has the worker take requests that come with output tokens. False: its model runner is not known to."""
        runner = self.model_runner
        if not isinstance(runner, gpu_model_runner.GPUModelRunner):
            return False
        model = runner.model_config
        noise = empty_exponential_noise_like(
            torch.empty(model.get_vocab_size(), dtype=torch.float32, device=runner.device), model.use_fp64_gumbel
        )
        gpu_model_runner.CachedRequestState = partial(_RequestState, noise=noise)
        return True


class _RequestState(CachedRequestState):  # type: ignore[misc]  # vLLM ships no types
    """A new request's state in the V1 model runner: the output that it comes with, and a generator that has drawn once
    for each of its tokens.
    """

    generator: Any

    def __init__(self, *args: Any, noise: torch.Tensor, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_token_ids = output_of(self.sampling_params)
        if self.generator is None:
            return
        if self.generator.device.type == "cpu":
            self.generator = CpuGenerator.from_state(self, len(noise))
            return
        for _ in self.output_token_ids:
            noise.exponential_(generator=self.generator)


class CpuGenerator(torch.Generator):  # type: ignore[misc]
    """A request's generator, whose last draw vLLM can take back.

    It does so after each part of a long prompt, by the generator's offset. Those of CPUs have none, and raise, which
    would end the engine. Before a draw, a request has drawn once for each token of its output.
    """

    _state: Any
    _numbers: torch.Tensor

    @classmethod
    def from_state(cls, state: Any, size: int) -> Self:
        """The generator of a request's `state`; a draw fills `size` numbers."""
        generator = cls()  # torch's takes no arguments of others
        generator._state, generator._numbers = state, torch.empty(size, dtype=torch.int64)
        generator.set_offset(0)
        return generator

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        self.manual_seed(self._state.sampling_params.seed)
        for _ in self._state.output_token_ids:
            self._numbers.random_(generator=self)  # uses what an exponential_ uses, in a fifth of the time
