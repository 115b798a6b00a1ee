"""Cohere's POST /v2/embed, which vLLM has too, and its first version, POST /v1/embed.

vLLM's own route takes no `cache_salt` and reports no `usage`, so the engine's `/v1/embeddings` answers, and its vectors
are put into Cohere's form here. Contract: Cohere's API reference, "Embed API (v2)", and what its SDK sends and reads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.dialects.base import Reply, ServingContext, immutable
from app.dialects.bodies import dump_members
from app.dialects.common.fields import NonEmptyList, absent, both, described_by, either, given, values
from app.dialects.common.requests import DirectTranslation, encoded
from app.dialects.openai.fields import OperationBody
from app.engine.vectors import embeddings, numbers

FIELD_NAMES = {
    "dimensions": "output_dimension",
    "truncate_prompt_tokens": "truncate",
    "truncation_side": "truncate",
}
"""vLLM's names of fields to Cohere's, except `input`, which has two."""

_ONLY_TEXTS = "only texts are embedded; send them as `texts`"


class InputPart(BaseModel):
    """One part of an input."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["text", "image_url"]
    text: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        if self.type != "text":
            raise ValueError("images are not embedded here; send the text, as {'type': 'text', 'text': …}")
        if self.text is None:
            raise ValueError("a part of type 'text' needs the field 'text'")
        return self


class Input(BaseModel):
    """One of the `inputs`: its texts make up one text."""

    model_config = ConfigDict(extra="ignore", strict=True)

    content: NonEmptyList[InputPart]

    def text(self) -> str:
        """The text to embed."""
        return "\n".join(part.text or "" for part in self.content)


class Embed(OperationBody):
    """The request."""

    model_config = described_by(
        either(absent("max_tokens"), values({"truncate": [None, "START", "END"]})),
        either(both(given("texts"), absent("inputs")), both(given("inputs"), absent("texts"))),
    )

    refused: ClassVar[Mapping[str, str]] = {**OperationBody.refused, "images": _ONLY_TEXTS}

    texts: NonEmptyList[str] | None = Field(default=None, description="vLLM's `input`")
    inputs: NonEmptyList[Input] | None = Field(
        default=None,
        description="the same as `texts`: the texts in an input's `content`, joined by line breaks; images are "
        "rejected",
    )
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = Field(
        default=None,
        description="accepted; changes nothing: no prompt of the model's is put before a text",
    )
    embedding_types: NonEmptyList[Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]] | None = Field(
        default=None,
        description="done here; `int8` and `uint8` are the numbers of a vector of length one times 127, rounded, and "
        "for `uint8` plus 128",
    )
    output_dimension: int | None = Field(default=None, ge=1, description="vLLM's `dimensions`")
    truncate: Literal["NONE", "START", "END"] | None = Field(
        default=None, description="done by vLLM; `END` by default, and `NONE` rejects a text that is too long"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="the length to which vLLM truncates")
    priority: int | None = Field(default=None, ge=0, le=999, description="accepted; changes nothing")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.texts is not None and self.inputs is not None:
            raise ValueError("inputs: not together with `texts`")
        if not self.texts and not self.inputs:
            raise ValueError(f"{'texts' if self.inputs is None else 'inputs'}: must be given and not be empty")
        if self.max_tokens is not None and self.truncate == "NONE":
            raise ValueError("max_tokens: only with `truncate` START or END")
        return self


@immutable
class CohereEmbedTranslation(DirectTranslation):
    """Vectors in each of `types`; `is_plain`: in the form of the API's first version without types, a list."""

    types: Sequence[str] = ("float",)
    is_plain: bool = False
    version: str = "2"

    @classmethod
    def from_request(cls, request: Embed, *, version: str) -> Self:
        body: dict[str, Any] = {"input": request.texts or [part.text() for part in request.inputs or ()]}
        if request.model is not None:
            body["model"] = request.model
        if request.output_dimension is not None:
            body["dimensions"] = request.output_dimension
        if request.truncate != "NONE":
            body["truncate_prompt_tokens"] = request.max_tokens or -1
            body["truncation_side"] = "left" if request.truncate == "START" else "right"
        is_plain = version == "1" and request.embedding_types is None
        return cls("/v1/embeddings", body, request.embedding_types or ["float"], is_plain, version)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        whole = embeddings(answer, msgspec.Raw if {*self.types} == {"float"} else numbers)
        vectors = [item["embedding"] for item in sorted(whole["data"], key=lambda item: item["index"])]
        by_type = {kind: [_FORMS[kind](vector) for vector in vectors] for kind in self.types}
        body = {
            "id": whole.get("id", ""),
            "embeddings": by_type["float"] if self.is_plain else by_type,
            "texts": self.body["input"],
            "meta": {
                "api_version": {"version": self.version},
                "billed_units": {"input_tokens": whole["usage"]["prompt_tokens"]},
            },
            "response_type": "embeddings_floats" if self.is_plain else "embeddings_by_type",
        }
        return Reply(dump_members(body))


def _bits(vector: Sequence[float]) -> list[int]:
    """A byte for eight numbers, the first in its highest bit: whether each is at least 0."""
    if len(vector) % 8:
        raise ValueError(f"{len(vector)} dimensions are no whole bytes")
    groups = (vector[start : start + 8] for start in range(0, len(vector), 8))
    return [sum((number >= 0) << (7 - place) for place, number in enumerate(group)) for group in groups]


_FORMS: Mapping[str, Callable[[list[float]], Any]] = {
    **{kind: partial(encoded, encoding=kind) for kind in ("float", "base64", "int8", "uint8")},
    "ubinary": _bits,
    "binary": lambda vector: [byte - 128 for byte in _bits(vector)],
}
"""An embedding type to a vector in this form. A bit of Cohere's and vLLM's is set for 0, too; of Azure's it is not."""
