"""The encodings of embeddings, computed from the floats that vLLM returns."""

import base64
import struct
from collections.abc import Mapping
from typing import Any


def encoded(vector: list[float], encoding: str) -> Any:
    """A vector in an `encoding_format`. Raises as arithmetic does if it is not a list of numbers."""
    return _ENCODERS[encoding](vector)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *map(float, vector))).decode()


def _bits(vector: list[float]) -> list[int]:
    """One byte for eight signs, the first the most significant; a remainder is padded with zeros."""
    padded = [value > 0 for value in vector] + [False] * (-len(vector) % 8)
    return [sum(bit << (7 - i) for i, bit in enumerate(padded[at : at + 8])) for at in range(0, len(padded), 8)]


def _scaled(vector: list[float]) -> list[int]:
    """Each value of a vector of length one, [-1, 1], as an integer in [-128, 127]."""
    return [max(-128, min(127, round(value * 127))) for value in vector]


_ENCODERS: Mapping[str, Any] = {
    "float": lambda vector: vector,
    "base64": _base64,
    "ubinary": _bits,
    "binary": lambda vector: [value - 128 for value in _bits(vector)],
    "int8": _scaled,
    "uint8": lambda vector: [value + 128 for value in _scaled(vector)],
}
