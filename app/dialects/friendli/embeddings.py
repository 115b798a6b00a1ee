from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import from_json

from app.dialects.base import Reply
from app.dialects.friendli.fields import Phrase, Strict, TokenId, checked
from app.dialects.json_body import dump
from app.errors import BadRequest, Broken


class Embeddings(Strict):
    """POST …/v1/embeddings."""

    encoding_format: Literal["float", "base64"] = "float"
    input: Phrase | Annotated[list[Phrase], Field(min_length=1)] | None = None
    model: str | None = None
    tokens: list[TokenId] = Field(default=[])


def embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's question. Raises BadRequest or Unprocessable."""
    fields = checked(body, Embeddings)
    if (fields.input is None) == (not fields.tokens):
        raise BadRequest("input: either it or tokens must be given", param="input")
    given = [fields.tokens] if fields.input is None else fields.input
    return {"input": given, "encoding_format": fields.encoding_format}


def embedded(body: bytes) -> Reply:
    """vLLM's answer, with a count of completion tokens, which the SDK insists on. Raises Broken."""
    try:
        told = from_json(body)
        told["usage"] = {**told["usage"], "completion_tokens": told["usage"].get("completion_tokens", 0)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken("The deployment's answer is no embedding") from error
    return Reply(dump(told))
