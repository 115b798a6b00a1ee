"""How Friendli's completions and chat have tokens chosen, in vLLM's words."""

from collections.abc import Sequence
from typing import Any

from app.dialects.common.engine_request import temperature
from app.dialects.friendli.fields import GenerationFields
from app.dialects.friendli.response_format import structured
from app.internal_api import Xarg, to_int64_seed


def sampling(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    """Temperature, processors and the answer's shape. `several`: vLLM gives more than one choice.

    Raises BadRequest.
    """
    asked = _temperature_fields(fields, several=several)
    if fields.xtc_threshold and fields.xtc_probability and not fields.is_greedy:
        xtc = {Xarg.XTC_THRESHOLD: fields.xtc_threshold, Xarg.XTC_PROBABILITY: fields.xtc_probability}
        asked["vllm_xargs"] = {**asked.get("vllm_xargs", {}), **xtc}
    if (shape := structured(fields.response_format)) is not None:
        asked["structured_outputs"] = shape
    return asked


def _temperature_fields(fields: GenerationFields, *, several: bool) -> dict[str, Any]:
    if not fields.is_greedy:
        return temperature(1.0 if fields.temperature is None else fields.temperature)
    if several:
        # vLLM refuses several choices at temperature 0; one token to draw from is the same.
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": 0.0, "top_p": 1.0}


def counts_up(seeds: Sequence[int]) -> bool:
    """Whether the seeds are those that vLLM makes of the first one, for each choice the next."""
    first, *others = map(to_int64_seed, seeds)
    return others == [first + index for index in range(1, len(seeds))]


def seeded(seeds: Sequence[int]) -> dict[str, Any]:
    """As many choices as seeds, which count up."""
    return {"seed": to_int64_seed(seeds[0]), **({"n": len(seeds)} if len(seeds) > 1 else {})}
