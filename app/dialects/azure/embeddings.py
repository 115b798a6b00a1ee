"""Azure's embeddings: six encodings, made here of the floats that vLLM returns."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from app.dialects.azure.fields import Embeddings, checked
from app.dialects.base import Call, EngineRequest, Flow, Reply, ServingContext, Translation, no_lookups
from app.dialects.json_body import dump


@dataclass(frozen=True)
class EmbeddingTranslation(Translation):
    """An embedding request; `body` is vLLM's, `encoding` is the client's `encoding_format`."""

    body: Mapping[str, Any]
    encoding: str

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/v1/embeddings", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        """The vectors in the client's encoding, with the fields that the SDK requires."""
        embeddings = from_json(answer)
        for item in embeddings["data"]:
            item["embedding"] = _ENCODERS[self.encoding](item["embedding"])
        embeddings["usage"] = {name: embeddings["usage"][name] for name in ("prompt_tokens", "total_tokens")}
        return Reply(dump(embeddings))


def embeddings(body: dict[str, Any]) -> Call:
    """The call for a body without extra parameters to drop. Raises Unprocessable."""
    request = checked(Embeddings, body)
    sent = {name: value for name, value in body.items() if name not in ("input_type", "model")}
    sent["encoding_format"] = "float"
    return Call("embeddings", sent, EmbeddingTranslation(sent, request.encoding_format))


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
