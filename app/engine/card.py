"""What the engine in a replica says of itself, for those who operate it: versions, arguments, device and load."""

from typing import Any

import msgspec


class EngineCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine's card. None is what the engine does not report."""

    vllm: str
    """Versions."""
    ray: str
    revision: str | None = None
    """The commit of the model's repository; None for a folder."""
    device: str
    """vLLM's kind of device: ``cuda``, ``cpu`` …"""
    devices: int
    """Devices that a replica's engine has."""
    arguments: dict[str, Any]
    """vLLM's engine arguments as it resolved them."""
    ready_at: float
    """When the engine was ready, in Unix seconds."""
    running: int | None = None
    """Requests that vLLM computes."""
    waiting: int | None = None
    """Requests that wait for it: in vLLM, and in Serve before it."""
    kv_cache_use: float | None = None
    """The share of the KV cache in use, of the fullest of the replica's engines."""
    prefix_queries: int | None = None
    """Prompt tokens looked up in the prefix cache since the engine was ready."""
    prefix_hits: int | None = None
    """Those of them that it had."""


encode = msgspec.json.Encoder().encode
_cards = msgspec.json.Decoder(EngineCard)


def decode(data: bytes) -> EngineCard:
    """Raises msgspec.DecodeError on anything else than a card."""
    return _cards.decode(data)
