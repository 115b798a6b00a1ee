"""The numbers of a request that decide its cost. Pure functions of a request in vLLM's fields."""

from collections.abc import Mapping
from typing import Any

_NUMBERS = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "n": "n",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "dimensions": "dimensions",
}
"""Fields of requests, and the names under which they are recorded."""

_COUNTS = {"stop": "stop", "stop_sequences": "stop", "tools": "tools"}
_INPUTS = {"completions": "prompt", "embeddings": "input", "rerank": "documents", "classify": "input"}
_LARGEST = 2**53
"""The largest number recorded. JSON numbers are unbounded, and a larger one is meaningless."""


def parameters(task: str, body: Mapping[str, Any]) -> dict[str, int | float]:
    """Sampling parameters as they are if they are numbers, `stop` and `tools` as counts; `inputs` is the number of
    prompts of a batch, if there are several. Never any text.
    """
    found: dict[str, int | float] = {}
    for name, recorded in _NUMBERS.items():
        value = body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
            found[recorded] = value
    for name, recorded in _COUNTS.items():
        if value := body.get(name):
            found[recorded] = len(value) if isinstance(value, list) else 1
    inputs = body.get(_INPUTS.get(task, ""))
    if isinstance(inputs, list) and len(inputs) > 1 and not isinstance(inputs[0], int):
        found["inputs"] = len(inputs)
    return found
