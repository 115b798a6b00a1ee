"""What Friendli answers beside text: token ids, texts of ids, rendered conversations, vectors, the list of models."""

from typing import Any

from pydantic import Field
from pydantic_core import from_json

from app.dialects.base import Reply, ServingContext
from app.dialects.friendli.chat_fields import Message, Tool
from app.dialects.friendli.fields import Strict, TokenId
from app.dialects.json_body import dump
from app.errors import BadRequest, Broken


class Tokenize(Strict):
    """POST …/v1/tokenize."""

    model: str | None = None
    prompt: str


class Detokenize(Strict):
    """POST …/v1/detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class Render(Strict):
    """POST …/v1/chat/render."""

    chat_template_kwargs: dict[str, Any] | None = None
    messages: list[Message] = Field(min_length=1)
    model: str | None = None
    tools: list[Tool] = Field(default=[])


def tokens(prompt: str, served: ServingContext) -> dict[str, Any]:
    """`/tokenize`."""
    return {"tokens": served.known_model.encode(prompt)}


def text(ids: list[int], served: ServingContext) -> dict[str, Any]:
    """`/detokenize`. Raises BadRequest for an id that is none."""
    model = served.known_model
    if ids and max(ids) >= model.vocab_size:
        raise BadRequest(f"tokens: {max(ids)} is no token id, they are 0 to {model.vocab_size - 1}", param="tokens")
    return {"text": model.decode(ids, special=True)}


def rendered(body: bytes, served: ServingContext) -> Reply:
    """`/chat/render`: the prompt that the engine makes of a conversation. Raises Broken."""
    try:
        ids = from_json(body)["token_ids"]
        return Reply(dump({"text": served.known_model.decode(ids, special=True)}))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Broken("The deployment's answer is no prompt") from error
