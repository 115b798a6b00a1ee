"""Estimates a request's tokens before the engine counts them. Pure."""

from collections.abc import Mapping
from typing import Any

_FIELDS = ("messages", "prompt", "input", "instructions", "system", "tools", "query", "queries", "documents")
_BYTES_PER_TOKEN = 4

_DATA = 500
"""The estimate for an image or a piece of audio: engines turn one into some hundreds of tokens."""

_DATA_FIELDS = ("url", "image_url", "data", "file_data")
"""The fields that hold one, as a URL or in base64: far more bytes than tokens."""


def estimate(body: Mapping[str, Any]) -> int:
    """The prompt's tokens in vLLM's request `body`, at least 1: token ids are counted, text has four bytes a token.

    A tokenizer would take milliseconds, and the engine returns the exact count a moment later.
    """
    return max(1, sum(_tokens(body.get(name)) for name in _FIELDS))


def _tokens(value: Any) -> int:
    if isinstance(value, str):
        return _bytes(value) // _BYTES_PER_TOKEN
    if isinstance(value, list):
        return len(value) if value and isinstance(value[0], int) else sum(map(_tokens, value))
    if isinstance(value, dict):
        return sum(_DATA if _is_data(name, part) else _tokens(part) for name, part in value.items())
    return 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _is_data(name: str, part: Any) -> bool:
    return name in _DATA_FIELDS and isinstance(part, str)
