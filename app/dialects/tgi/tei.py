"""Text Embeddings Inference (TEI), Hugging Face's server beside TGI: vectors of texts, and ranked texts.

Contract: TEI's OpenAPI description of `/embed` and `/rerank`, and what `huggingface_hub` sends and reads. Its errors
are TGI's, and unknown fields are ignored, as there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema
from pydantic_core import from_json

from app.dialects.base import Call, ParseContext, Reply, Request, ServingContext
from app.dialects.common.direct import DirectTranslation
from app.dialects.common.fields import NonEmpty, NonEmptyList
from app.dialects.json_body import dump
from app.dialects.spelling import request_object
from app.dialects.tgi.fields import Strict, checked
from app.errors import Unprocessable

TokenIds = NonEmptyList[int]

_PROMPT_NAME = "rejected: the router does not have the prompts in the model's own settings"


class _Texts(Strict):
    truncate: bool = Field(default=False, description="done by vLLM; without it a text that is too long is rejected")
    truncation_direction: Literal["left", "right", "Left", "Right"] = Field(
        default="Right", description="vLLM's `truncation_side`"
    )

    def truncation(self) -> dict[str, Any]:
        """vLLM's fields."""
        side = {"truncation_side": self.truncation_direction.lower()}
        return {"truncate_prompt_tokens": -1, **side} if self.truncate else {}


class Embed(_Texts):
    """POST /embed. The answer has a vector for each text, as a list."""

    inputs: NonEmpty | TokenIds | NonEmptyList[str] | NonEmptyList[TokenIds] = Field(description="vLLM's `input`")
    normalize: bool = Field(default=True, description="vLLM's `use_activation`")
    dimensions: int | None = Field(default=None, ge=1, description="vLLM's")
    prompt_name: Annotated[Any, WithJsonSchema({"type": "null"})] = Field(default=None, description=_PROMPT_NAME)


class Rerank(_Texts):
    """POST /rerank with `texts`. The answer is a list, the best text first."""

    query: str = Field(description="vLLM's")
    texts: NonEmptyList[str] = Field(description="vLLM's `documents`")
    raw_scores: bool = Field(default=False, description="vLLM's `use_activation`, if true")
    return_text: bool = Field(default=False, description="done here")


@dataclass(frozen=True)
class EmbedTranslation(DirectTranslation):
    """Vectors, from vLLM's `/v1/embeddings`."""

    field_names: ClassVar[Mapping[str, str]] = {
        "input": "inputs",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "normalize",
    }

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Embed, request_object(request.body))
        if fields.prompt_name is not None:
            raise Unprocessable(f"`prompt_name` is {_PROMPT_NAME}", param="prompt_name")
        if not fields.inputs:
            raise Unprocessable("`inputs` cannot be empty", param="inputs")
        body: dict[str, Any] = {"input": fields.inputs, **fields.truncation()}
        if not fields.normalize:
            body["use_activation"] = False
        if fields.dimensions is not None:
            body["dimensions"] = fields.dimensions
        return Call("embeddings", body, cls("/v1/embeddings", body), field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        vectors = sorted(from_json(answer)["data"], key=lambda vector: vector["index"])
        return Reply(dump([vector["embedding"] for vector in vectors]))


@dataclass(frozen=True)
class RerankTranslation(DirectTranslation):
    """Texts in the order of their scores, from vLLM's `/v1/rerank`."""

    with_texts: bool = False
    field_names: ClassVar[Mapping[str, str]] = {
        "documents": "texts",
        "truncate_prompt_tokens": "truncate",
        "use_activation": "raw_scores",
    }

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = checked(Rerank, request_object(request.body))
        if not fields.texts:
            raise Unprocessable("`texts` cannot be empty", param="texts")
        body: dict[str, Any] = {"query": fields.query, "documents": fields.texts, **fields.truncation()}
        if fields.raw_scores:
            body["use_activation"] = False
        translation = cls("/v1/rerank", body, fields.return_text)
        return Call("rerank", body, translation, field_names=cls.field_names)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        texts = self.body["documents"]
        return Reply(dump([self._ranked(result, texts) for result in from_json(answer)["results"]]))

    def _ranked(self, result: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
        text = {"text": texts[result["index"]]} if self.with_texts else {}
        return {"index": result["index"], **text, "score": result["relevance_score"]}


def embeds_only(request: Request, context: ParseContext) -> bool:
    """Whether the path names an endpoint with vectors and without completions: `/` is TEI's there, as TEI has it."""
    endpoint = context.config.endpoints.get(request.params.get("endpoint", ""))
    return endpoint is not None and "embeddings" in endpoint.tasks and "completions" not in endpoint.tasks
