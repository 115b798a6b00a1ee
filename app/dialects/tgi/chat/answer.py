from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from app.dialects.base import Reply, ServingContext
from app.dialects.common.passthrough import StreamFormat
from app.dialects.common.terminating import TerminatingStream
from app.dialects.json_body import dump
from app.dialects.tgi.errors import chat_error_events
from app.engine.errors import engine_error
from app.engine.usage import Usage, find_usage
from app.errors import Broken
from app.sse import DONE, Decoder, encode

COMPLETIONS = StreamFormat(is_terminal=lambda frames: frames.endswith(DONE), error_frames=chat_error_events)
_FINGERPRINT = "3.3.6-native"  # where the engine tells none: a client needs a string


def tokens_of_the_template(body: bytes, served: ServingContext) -> Reply:
    """`/chat_tokenize`: the tokens of a chat's prompt with their places in its text. Raises Broken."""
    try:
        told = from_json(body)
        tokenizer, ids, offsets = served.known_model.tokenizer, told["token_ids"], told["token_offsets"]
        text: str = tokenizer.decode(ids, skip_special_tokens=False)
        if offsets is None:  # an engine that takes embeddings for prompts does not tell them
            encoding = tokenizer.encode(text, add_special_tokens=False)
            ids, offsets = encoding.ids, encoding.offsets
        tokens = [
            {"id": id, "text": text[start:stop], "start": start, "stop": stop}
            for id, (start, stop) in zip(ids, offsets, strict=True)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Broken("The deployment's answer is no prompt") from error
    return Reply(dump({"tokenize_response": tokens, "templated_text": text}))


def completed(body: bytes) -> Reply:
    """A whole answer with the fields without which TGI's clients do not read it. Raises Broken."""
    try:
        answer = _with_fingerprint(from_json(body))
        for choice in answer["choices"]:
            choice.setdefault("logprobs", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken("The deployment's answer is no completion") from error
    return Reply(dump(answer))


def text_of(answer: Mapping[str, Any]) -> str:
    """What a whole chat answer says. Raises Broken."""
    try:
        text: str = answer["choices"][0]["message"]["content"] or ""
    except (KeyError, TypeError, IndexError) as error:
        raise Broken("The deployment's answer is no completion") from error
    return text


def _with_fingerprint(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "system_fingerprint": answer.get("system_fingerprint") or _FINGERPRINT}


class ChatEvents(TerminatingStream):
    """A `Stream` of chat chunks, each with the role, the tool calls and the fingerprint that TGI's have."""

    def __init__(self, *, hide_usage: bool) -> None:
        super().__init__(chat_error_events)
        self._decoder = Decoder()
        self._hide_usage = hide_usage
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        try:
            return b"".join(self._frame(event.data) for event in self._decoder.feed(chunk))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment's answer is no completion") from error

    def _frame(self, data: str) -> bytes:
        if self._ended:
            return b""
        if data == "[DONE]":
            self._ended = True
            return DONE
        chunk = from_json(data)
        if "error" in chunk:
            return self.fail(engine_error(data.encode(), status=500))
        if not chunk["choices"]:
            self.usage = find_usage(data.encode()) or self.usage
            if self._hide_usage:
                return b""
        for choice in chunk["choices"]:
            choice["delta"] = {"role": "assistant", "content": None, "tool_calls": None, **choice["delta"]}
        return encode(dump(_with_fingerprint(chunk)))
