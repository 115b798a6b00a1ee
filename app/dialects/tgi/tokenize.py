"""`/tokenize`.

`/chat_tokenize`: the tokens of a chat's prompt, with their places in its text.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
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
from app.dialects.bodies import dump, dump_members, request_object
from app.dialects.common.requests import in_steps
from app.dialects.tgi.chat import chat_fields
from app.dialects.tgi.fields import read
from app.dialects.tgi.generate import truncated
from app.dialects.tgi.profile import named_model
from app.dialects.tgi.rules import check_inputs
from app.engine.pieces import Piece

_STEP = 4096
"""Tokens that are written at once."""


class _Token(msgspec.Struct):
    id: int
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokensTranslation(Translation):
    """The tokens of `inputs` with the characters that each covers, the last `truncate` of them."""

    inputs: str
    truncate: int | None
    needs_model = True
    generates = False

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        fields = read(request_object(request.body))
        check_inputs(fields.inputs)
        truncate = fields.parameters.truncate if fields.parameters else None
        return Call("completions", {"prompt": fields.inputs}, cls(fields.inputs, truncate))

    def engine_requests(self, serving: ServingContext) -> Flow:
        model = serving.known_model
        ids, starts, stops = array("I"), array("I"), array("I")

        def collect(piece: Piece) -> None:
            ids.extend(piece.ids)
            if piece.ids:
                begins, ends = zip(*piece.offsets, strict=True)
                starts.extend(begins)
                stops.extend(ends)

        yield from in_steps(model, self.inputs, "inputs", collect)
        kept = range(len(ids))[len(ids) - len(truncated(ids, self.truncate, model.max_len)) :]
        written = [b"["]
        for step in range(0, len(kept), _STEP):
            if step:
                yield ()
            part = slice(kept[step], kept[step : step + _STEP][-1] + 1)
            places = zip(ids[part], starts[part], stops[part], strict=True)
            tokens = [_Token(id, self.inputs[start:stop], start, stop) for id, start, stop in places]
            written += (b"," if step else b"", dump_members(tokens)[1:-1])
        written.append(b"]")
        return Reply(b"".join(written))


_FIELDS = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")
"""The fields of vLLM's chat request that the prompt depends on."""


@dataclass(frozen=True, slots=True)
class ChatTokenize(Translation):
    """`body` is vLLM's request for a rendered prompt."""

    body: Mapping[str, Any]
    needs_model = True
    generates = False

    @classmethod
    def parse(cls, request: Request, context: ParseContext) -> Call:
        body = request_object(request.body)
        fields, _ = chat_fields(body)
        rendered = {name: fields[name] for name in _FIELDS if name in fields}
        translation = cls({**rendered, "return_token_offsets": True})
        model, deployment = named_model(body.get("model"), request, context)
        return Call("chat", translation.body, translation, model, deployment)

    def engine_requests(self, serving: ServingContext) -> Flow:
        return no_lookups(EngineRequest("/v1/chat/completions/render", self.body))

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        prompt, model = from_json(answer), serving.known_model
        ids, offsets = prompt["token_ids"], prompt["token_offsets"]
        text = model.decode(ids, special=True)
        if offsets is None:  # from an engine that accepts embeddings as prompts
            (encoding,) = model.encodings([text], special=False)
            ids, offsets = encoding.ids, encoding.offsets
        tokens = [
            {"id": id, "text": text[start:stop], "start": start, "stop": stop}
            for id, (start, stop) in zip(ids, offsets, strict=True)
        ]
        return Reply(dump({"tokenize_response": tokens, "templated_text": text}))
