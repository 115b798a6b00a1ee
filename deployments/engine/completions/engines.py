"""Wrappers of vLLM's engine for vLLM's completion server.

The server calls `generate` with a rendered prompt and reads other attributes of the engine. A wrapper rejects
unsupported parameters at once, before the server has started its response.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import torch
from vllm import RequestOutput, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs import embeds_input
from vllm.sampling_params import RequestOutputKind
from vllm.utils.async_utils import merge_async_iterators

from app.internal_api import to_int64_seed

Outputs = AsyncGenerator[RequestOutput, None]


class Engine:
    """A transparent wrapper: every other attribute is the engine's own."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        """Like `AsyncLLM.generate`."""
        outputs: Outputs = self._engine.generate(prompt, params, request_id, **options)
        return outputs


class SeededEngine(Engine):
    """One choice per seed, each a separate engine request. Closing the generator ends them all."""

    def __init__(self, engine: Any, seeds: Sequence[int]) -> None:
        super().__init__(engine)
        self._seeds = seeds

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        choices = [
            self._engine.generate(prompt, _with_seed(params, seed), f"{request_id}-{index}", **options)
            for index, seed in enumerate(self._seeds)
        ]
        merged = _merged(choices)
        return _joined(merged) if params.output_kind is RequestOutputKind.FINAL_ONLY else merged


class EmbeddingsEngine(Engine):
    """Replaces the embeddings of some of the prompt's tokens.

    `values` has hidden_size numbers for each of `indices`, which count the prompt's tokens from 0.
    """

    def __init__(self, engine: Any, indices: Sequence[int], values: Sequence[float]) -> None:
        super().__init__(engine)
        width = engine.model_config.get_hidden_size()
        if not engine.model_config.enable_prompt_embeds:
            raise VLLMValidationError(
                "replace_embeddings needs the engine argument enable_prompt_embeds", parameter="replace_embeddings"
            )
        if len(values) != len(indices) * width:
            raise VLLMValidationError(
                f"replace_embeddings.values must hold {width} numbers for each of {len(indices)} indices, "
                f"{len(indices) * width} in all, not {len(values)}",
                parameter="replace_embeddings.values",
            )
        self._indices = list(indices)
        self._rows = torch.tensor(values, dtype=engine.model_config.dtype).reshape(len(indices), width)

    def generate(self, prompt: Any, params: SamplingParams, request_id: str, **options: Any) -> Outputs:
        return super().generate(self._with_replacements(prompt), params, request_id, **options)

    def _with_replacements(self, prompt: Any) -> Any:
        require_tokens(prompt, "replace_embeddings")
        ids = prompt["prompt_token_ids"]
        if (highest := max(self._indices)) >= len(ids):
            raise VLLMValidationError(
                f"replace_embeddings.indices holds {highest}, but the prompt has {len(ids)} tokens",
                parameter="replace_embeddings.indices",
            )
        # The rows of kept tokens are part of the prefix cache's key, so they must differ from anything that a client
        # can send: NaN.
        rows = torch.full((len(ids), self._rows.shape[1]), torch.nan, dtype=self._rows.dtype)
        rows[self._indices] = self._rows
        is_token = torch.ones(len(ids), dtype=torch.bool)
        is_token[self._indices] = False
        return embeds_input(
            rows, prompt_token_ids=ids, is_token_ids=is_token.tolist(), cache_salt=prompt.get("cache_salt")
        )


def require_tokens(prompt: Any, parameter: str) -> None:
    """Raises VLLMValidationError for a prompt that is more than token ids."""
    if prompt["type"] != "token":
        raise VLLMValidationError(f"{parameter} needs a prompt of token ids only", parameter=parameter)


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    params = params.clone()
    params.seed = to_int64_seed(seed)
    return params


async def _merged(choices: Sequence[Outputs]) -> Outputs:
    async for index, output in merge_async_iterators(*choices):
        for choice in output.outputs:
            choice.index = index
        yield output


async def _joined(outputs: Outputs) -> Outputs:
    """One output with all choices."""
    found = {choice.index: (output, choice) async for output in outputs for choice in output.outputs}
    joined = found[0][0]
    joined.outputs = [found[index][1] for index in sorted(found)]
    yield joined
