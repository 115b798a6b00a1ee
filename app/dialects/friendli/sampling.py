"""Sampling parameters of Friendli's completions and chat in vLLM's fields."""

from collections.abc import Sequence
from typing import Any

from app.dialects.common.engine_request import temperature
from app.dialects.friendli.fields import GenerationFields
from app.dialects.friendli.response_format import structured_outputs
from app.internal_api import Xarg, to_int64_seed


def sampling(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    """Temperature, logits processors and structured outputs. `several`: one vLLM request with more than one choice.

    Raises BadRequest.
    """
    body = _temperature_fields(fields, several=several)
    if fields.xtc_threshold and fields.xtc_probability and not fields.is_greedy:
        xtc = {Xarg.XTC_THRESHOLD: fields.xtc_threshold, Xarg.XTC_PROBABILITY: fields.xtc_probability}
        body["vllm_xargs"] = {**body.get("vllm_xargs", {}), **xtc}
    if (outputs := structured_outputs(fields.response_format)) is not None:
        body["structured_outputs"] = outputs
    return body


def _temperature_fields(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    if not fields.is_greedy:
        return temperature(1.0 if fields.temperature is None else fields.temperature)
    if several:
        # vLLM rejects several choices at temperature 0; sampling from one token is the same.
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": 0.0, "top_p": 1.0}


def seeds_count_up(seeds: Sequence[int]) -> bool:
    """Whether `seeds` are those that vLLM derives from the first: the next integer for each choice."""
    first, *others = map(to_int64_seed, seeds)
    return others == [first + index for index in range(1, len(seeds))]


def seed_fields(seeds: Sequence[int]) -> dict[str, Any]:
    """vLLM's `seed`, and `n` as the number of `seeds`, which count up."""
    return {"seed": to_int64_seed(seeds[0]), **({"n": len(seeds)} if len(seeds) > 1 else {})}
