"""Describes the model to the router, at a route alongside vLLM's own; `app.engine.model` reads it.

Describes the engine to those who operate it: `app.engine.card`.
"""

import hashlib
import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import ray
import vllm
from fastapi import FastAPI, Request, Response

from app.engine.card import EngineCard, encode
from app.engine.model import labels_of
from app.internal_api import CONTINUES
from deployments.engine.logits.registry import supported_xargs


def add_model_card(app: FastAPI, path: str, *, continues: bool) -> None:
    """Adds `GET path` to vLLM's application `app`, whose state holds the engine's client once it runs.

    Routers poll it: an unchanged card costs only a 304.
    """
    cards: dict[str, bytes] = {}

    @app.get(path, include_in_schema=False)
    def model_card(request: Request) -> Response:
        if not cards:
            card = json.dumps({**_card(request.app.state.engine_client), CONTINUES: continues}).encode()
            cards[f'"{hashlib.sha256(card).hexdigest()}"'] = card
        ((etag, card),) = cards.items()
        headers = {"etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(card, media_type="application/json", headers=headers)


def eos_token_ids(engine: Any) -> frozenset[int]:
    """All ids that end an answer: the tokenizer's, and those in the model's generation config."""
    listed = engine.model_config.try_get_generation_config().get("eos_token_id") or []
    ids = frozenset(listed if isinstance(listed, list) else [listed])
    own = engine.get_tokenizer().eos_token_id
    return ids | ({own} if own is not None else frozenset())


def _card(engine: Any) -> Mapping[str, Any]:
    model = engine.model_config
    return {
        "tokenizer": engine.get_tokenizer().backend_tokenizer.to_str(),
        "eos_token_ids": sorted(eos_token_ids(engine)),
        "max_model_len": model.max_model_len,
        "hidden_size": model.get_hidden_size(),
        "vocab_size": model.get_vocab_size(),
        "logprobs_mode": str(model.logprobs_mode),
        "processors": supported_xargs(model.logits_processors or ()),
        "labels": labels_of(getattr(model.hf_config, "id2label", None) or {}),
    }


_RESOLVED = {
    "model": "model_config.model",
    "tokenizer": "model_config.tokenizer",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "max_model_len": "model_config.max_model_len",
    "enforce_eager": "model_config.enforce_eager",
    "seed": "model_config.seed",
    "load_format": "load_config.load_format",
    "gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks": "cache_config.num_gpu_blocks",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "scheduling_policy": "scheduler_config.policy",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "distributed_executor_backend": "parallel_config.distributed_executor_backend",
    "max_loras": "lora_config.max_loras",
    "max_lora_rank": "lora_config.max_lora_rank",
}
"""vLLM's names of engine arguments, and where its configuration has what it made of them."""


def engine_card(config: Any, ready_at: float, counts: Mapping[str, Any]) -> bytes:
    """The card of an engine with this VllmConfig. `counts`: the card's numbers of requests and tokens."""
    arguments = {name: value for name, path in _RESOLVED.items() if (value := _plain_at(config, path)) is not None}
    model, parallel = config.model_config, config.parallel_config
    card = EngineCard(
        vllm=vllm.__version__,
        ray=ray.__version__,
        revision=getattr(model.hf_config, "_commit_hash", None) or model.revision,
        device=str(config.device_config.device_type),
        devices=parallel.world_size_across_dp,
        arguments=arguments,
        ready_at=ready_at,
        **counts,
    )
    return encode(card)


def _plain_at(config: Any, path: str) -> Any:
    """A value of the configuration as JSON has it; None if this version of vLLM has none there."""
    try:
        value = attrgetter(path)(config)
    except AttributeError:
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).removeprefix("torch.")
