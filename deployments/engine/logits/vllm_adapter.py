"""The two processors that vLLM loads: one per place in its sampler, for a whole batch.

A batch without any of our parameters costs one lookup in an empty table.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from deployments.engine.logits.processor import Processor, SamplingRequest
from deployments.engine.logits.processors import (
    BadWordTokens,
    ForcedOutputTokens,
    NoRepeatNgram,
    Temperature,
    TypicalP,
    Watermark,
    Xtc,
)

Row = tuple[Sequence[Processor], Sequence[int], Sequence[int]]
"""A request's processors, its prompt, and its output: a list that vLLM appends to."""


class BatchProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM is not followed
    """Applies `processors`, in this order, to the rows of the requests that set their keys."""

    processors: ClassVar[Sequence[type[Processor]]]

    vocabulary_size: ClassVar[int | None] = None
    """The model's vocabulary, for `validate_params`, which vLLM calls on the class. Set by the process that serves
    requests; None: unknown."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError, which vLLM answers with 400."""
        cls.processors_for(sampling_params, cls.vocabulary_size)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`, float32 of shape (requests, vocabulary), changed in place."""
        for row, (processors, prompt, output) in self._rows.items():
            for processor in processors:
                processor(logits[row], prompt, output)
        return logits

    @classmethod
    def _row(cls, params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Row | None:
        processors = cls.processors_for(params, None)
        return (processors, prompt or [], output) if processors else None

    @classmethod
    def processors_for(cls, params: SamplingParams, vocabulary_size: int | None) -> list[Processor]:
        if not params.extra_args:
            return []
        is_structured = params.structured_outputs is not None
        request = SamplingRequest(params.extra_args, params.temperature, params.seed, is_structured, vocabulary_size)
        return [processor for kind in cls.processors if (processor := kind.from_request(request)) is not None]


class RawScores(BatchProcessor):
    """Before the penalties, and for greedy decoding too."""

    processors = (Watermark, NoRepeatNgram, BadWordTokens, ForcedOutputTokens)

    def is_argmax_invariant(self) -> bool:
        return False


class Sampling(BatchProcessor):
    """A processor that acts after vLLM's temperature, the place of those that declare themselves argmax-invariant.
    Greedy decoding is done before.
    """

    processors = (Temperature, TypicalP, Xtc)

    def is_argmax_invariant(self) -> bool:
        return True
