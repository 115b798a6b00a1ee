"""Token ids of a text, the text of ids, and the prompt of a conversation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from app.dialects.common.tokenize import in_steps
from app.dialects.friendli import chat
from app.dialects.friendli.chat_fields import Message, Tool
from app.dialects.friendli.fields import TOOLS, ModelName, Strict, TokenId, checked
from app.dialects.json_body import dump
from app.errors import BadRequest


class Tokenize(Strict):
    """POST …/v1/tokenize."""

    model: ModelName = None
    prompt: str = Field(description="its ids, with special tokens as the engine adds them")


class Detokenize(Strict):
    """POST …/v1/detokenize."""

    model: ModelName = None
    tokens: list[TokenId] = Field(description="their text, with special tokens spelt out")


class Render(Strict):
    """POST …/v1/chat/render."""

    chat_template_kwargs: dict[str, Any] | None = None
    messages: list[Message] = Field(min_length=1)
    model: ModelName = None
    tools: list[Tool] = Field(default=[], description=TOOLS)


def parse_tokenize(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    prompt = checked(body, Tokenize).prompt
    return Call("completions", {"prompt": prompt}, TokenizeTranslation(prompt))


@dataclass(frozen=True)
class TokenizeTranslation(Translation):
    """The ids of a text, by the router's copy of the tokenizer."""

    prompt: str
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        pieces: list[bytes] = []  # as JSON: a list of integers takes ten times the memory
        yield from in_steps(serving.known_model, self.prompt, "prompt", lambda it: pieces.append(dump(it.ids)[1:-1]))
        return Reply(b'{"tokens":[%b]}' % b",".join(filter(None, pieces)))


def parse_detokenize(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    return Call("completions", {}, DetokenizeTranslation(checked(body, Detokenize).tokens))


@dataclass(frozen=True)
class DetokenizeTranslation(Translation):
    """The text of ids, by the router's copy of the tokenizer; special tokens are spelt out."""

    ids: list[int]
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        yield from ()
        model = serving.known_model
        if self.ids and max(self.ids) >= model.vocab_size:
            raise BadRequest(
                f"tokens: {max(self.ids)} is not a token id; ids are 0 to {model.vocab_size - 1}", param="tokens"
            )
        return Reply(dump({"text": model.decode(self.ids, special=True)}))


def parse_render(body: Mapping[str, Any], request: Request, context: ParseContext) -> Call:
    """Raises BadRequest or Unprocessable."""
    checked(body, Render)
    engine_body = {name: value for name, value in body.items() if name != "model" and value != []}
    return Call("chat", engine_body, RenderTranslation(engine_body))


@dataclass(frozen=True)
class RenderTranslation(Translation):
    """The prompt that the engine makes of a conversation."""

    body: dict[str, Any]
    needs_model = True
    generates = False

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest(f"{chat.PATH}/render", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        ids = from_json(answer)["token_ids"]
        return Reply(dump({"text": serving.known_model.decode(ids, special=True)}))
