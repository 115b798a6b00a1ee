"""Cohere's POST /v2/embed, which vLLM has too.

vLLM's own route takes no `cache_salt` and reports no `usage`, so the engine's `/v1/embeddings` answers, and its vectors
are put into Cohere's form here. Contract: Cohere's API reference, "Embed API (v2)", and what its SDK sends and reads.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import from_json

from app.dialects.base import Reply, ServingContext
from app.dialects.common.direct import DirectTranslation
from app.dialects.common.fields import NonEmptyList
from app.dialects.common.schema_rules import absent, described_by, either, values
from app.dialects.json_body import dump
from app.dialects.openai.fields import Request

FIELD_NAMES = {
    "dimensions": "output_dimension",
    "input": "texts",
    "truncate_prompt_tokens": "truncate",
    "truncation_side": "truncate",
}
"""vLLM's names of fields to Cohere's."""

_ONLY_TEXTS = "only texts are embedded; send them as `texts`"


class Embed(Request):
    """The request."""

    model_config = described_by(either(absent("max_tokens"), values({"truncate": [None, "START", "END"]})))

    refused: ClassVar[Mapping[str, str]] = {**Request.refused, "images": _ONLY_TEXTS, "inputs": _ONLY_TEXTS}

    texts: NonEmptyList[str] = Field(description="vLLM's `input`")
    input_type: str | None = Field(
        default=None,
        description="accepted; changes nothing: no prompt of the model's is put before a text",
    )
    embedding_types: NonEmptyList[Literal["float", "binary", "ubinary", "base64"]] | None = Field(
        default=None, description="done here"
    )
    output_dimension: int | None = Field(default=None, ge=1, description="vLLM's `dimensions`")
    truncate: Literal["NONE", "START", "END"] | None = Field(
        default=None, description="done by vLLM; `END` by default, and `NONE` rejects a text that is too long"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="the length to which vLLM truncates")
    priority: int | None = Field(default=None, ge=0, le=999, description="accepted; changes nothing")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.texts:
            raise ValueError("texts: must not be empty")
        if self.max_tokens is not None and self.truncate == "NONE":
            raise ValueError("max_tokens: only with `truncate` START or END")
        return self


@dataclass(frozen=True)
class EmbedTranslation(DirectTranslation):
    """Vectors in each of `types`."""

    types: Sequence[str] = ("float",)

    @classmethod
    def of(cls, request: Embed) -> Self:
        body: dict[str, Any] = {"input": request.texts}
        if request.model is not None:
            body["model"] = request.model
        if request.output_dimension is not None:
            body["dimensions"] = request.output_dimension
        if request.truncate != "NONE":
            body["truncate_prompt_tokens"] = request.max_tokens or -1
            body["truncation_side"] = "left" if request.truncate == "START" else "right"
        return cls("/v1/embeddings", body, request.embedding_types or ["float"])

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        whole = from_json(answer)
        vectors = [item["embedding"] for item in sorted(whole["data"], key=lambda item: item["index"])]
        body = {
            "id": whole.get("id", ""),
            "embeddings": {kind: [_FORMS[kind](vector) for vector in vectors] for kind in self.types},
            "texts": self.body["input"],
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": whole["usage"]["prompt_tokens"]},
            },
            "response_type": "embeddings_by_type",
        }
        return Reply(dump(body))


def _bits(vector: Sequence[float]) -> list[int]:
    """A byte for eight numbers, the first in its highest bit: whether each is at least 0."""
    if len(vector) % 8:
        raise ValueError(f"{len(vector)} dimensions are no whole bytes")
    groups = (vector[start : start + 8] for start in range(0, len(vector), 8))
    return [sum((number >= 0) << (7 - place) for place, number in enumerate(group)) for group in groups]


_FORMS: Mapping[str, Callable[[Sequence[float]], Any]] = {
    "float": list,
    "base64": lambda vector: b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode(),
    "ubinary": _bits,
    "binary": lambda vector: [byte - 128 for byte in _bits(vector)],
}
"""An embedding type to a vector in this form."""
