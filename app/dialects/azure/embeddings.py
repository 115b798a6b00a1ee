import base64
import struct
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.json_body import dump
from app.errors import Broken


def embeddings(body: bytes, encoding: str) -> bytes:
    """vLLM's embeddings of floats in the asked encoding, with the fields that the SDK requires."""
    try:
        answer = from_json(body)
        for item in answer["data"]:
            item["embedding"] = _ENCODERS[encoding](item["embedding"])
        usage = answer["usage"]
        answer["usage"] = {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["total_tokens"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Broken("The deployment's answer is no embedding") from error
    return dump(answer)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


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
