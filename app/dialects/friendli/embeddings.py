from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from app.dialects.base import Call, ParseContext, Reply, Request, ServingContext, immutable
from app.dialects.bodies import dump_members
from app.dialects.common.fields import absent, both, described_by, either, given
from app.dialects.common.requests import DirectTranslation
from app.dialects.friendli.fields import ExactFields, ModelName, Phrase, TokenId, checked
from app.dialects.friendli.rules import SOME_ITEMS, unset
from app.engine.vectors import embeddings
from app.errors import BadRequest


class Classification(ExactFields):
    """POST /dedicated/classify."""

    model_config = described_by(
        either(both(given("input"), unset("tokens")), both(absent("input"), given("tokens", SOME_ITEMS)))
    )

    input: Phrase | Annotated[list[Phrase], Field(min_length=1)] | None = Field(
        default=None, description="vLLM's; exactly one of it and `tokens`"
    )
    model: ModelName = None
    tokens: list[TokenId] = Field(default=[], description="the input as ids")

    def texts(self) -> Any:
        """vLLM's `input`. Raises BadRequest."""
        if (self.input is None) == (not self.tokens):
            raise BadRequest("input: either it or tokens must be given", param="input")
        return [self.tokens] if self.input is None else self.input


class Embeddings(Classification):
    """POST …/v1/embeddings."""

    encoding_format: Literal["float", "base64"] = "float"


def parse_classification(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    engine_body = {"input": checked(body, Classification).texts()}
    return Call("classify", engine_body, DirectTranslation("/classify", engine_body))


def parse_embeddings(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    fields = checked(body, Embeddings)
    engine_body = {"input": fields.texts(), "encoding_format": fields.encoding_format}
    return Call("embeddings", engine_body, FriendliEmbeddingsTranslation("/v1/embeddings", engine_body))


@immutable
class FriendliEmbeddingsTranslation(DirectTranslation):
    """vLLM's vectors, with a count of completion tokens, which the SDK requires."""

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        body = embeddings(answer, msgspec.Raw)
        body["usage"] = {**body["usage"], "completion_tokens": body["usage"].get("completion_tokens", 0)}
        return Reply(dump_members(body))
