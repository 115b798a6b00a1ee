"""A pace for a real engine: one token of each request in `STEP_S` seconds, on a machine that has to share its cores."""

import time
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

STEP_S = 0.2


class Pace(LogitsProcessor):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's `logits_processors`: changes no score, and takes its time."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """What vLLM passes says nothing about a pace."""

    def is_argmax_invariant(self) -> bool:
        """vLLM leaves out the processors of which greedy requests need nothing."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """There is none."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        time.sleep(STEP_S)
        return logits
