from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import from_json

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Translation,
    no_lookups,
)
from app.dialects.common.schema_rules import absent, both, described_by, either, given
from app.dialects.friendli.fields import ModelName, Phrase, Strict, TokenId, checked
from app.dialects.friendli.rule import SOME_ITEMS, unset
from app.dialects.json_body import dump
from app.errors import BadRequest


class Embeddings(Strict):
    """POST …/v1/embeddings."""

    model_config = described_by(
        either(both(given("input"), unset("tokens")), both(absent("input"), given("tokens", SOME_ITEMS)))
    )

    encoding_format: Literal["float", "base64"] = "float"
    input: Phrase | Annotated[list[Phrase], Field(min_length=1)] | None = Field(
        default=None, description="vLLM's; exactly one of it and `tokens`"
    )
    model: ModelName = None
    tokens: list[TokenId] = Field(default=[], description="the input as ids")


def parse_embeddings(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    fields = checked(body, Embeddings)
    if (fields.input is None) == (not fields.tokens):
        raise BadRequest("input: either it or tokens must be given", param="input")
    engine_input = [fields.tokens] if fields.input is None else fields.input
    engine_body = {"input": engine_input, "encoding_format": fields.encoding_format}
    return Call("embeddings", engine_body, EmbeddingsTranslation(engine_body))


@dataclass(frozen=True)
class EmbeddingsTranslation(Translation):
    """vLLM's vectors, with a count of completion tokens, which the SDK requires."""

    body: dict[str, Any]

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/v1/embeddings", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        body = from_json(answer)
        body["usage"] = {**body["usage"], "completion_tokens": body["usage"].get("completion_tokens", 0)}
        return Reply(dump(body))
