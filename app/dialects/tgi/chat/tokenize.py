"""`/chat_tokenize`: the tokens of a chat's prompt, with their places in its text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from app.dialects.json_body import dump
from app.dialects.spelling import request_object
from app.dialects.tgi.addressing import named_model
from app.dialects.tgi.chat.chat import chat_fields

_FIELDS = ("messages", "tools", "chat_template_kwargs")
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
