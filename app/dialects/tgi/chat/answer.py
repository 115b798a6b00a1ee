from typing import Any

from pydantic_core import from_json

from app.dialects.base import Reply
from app.dialects.common.passthrough import StreamFormat
from app.dialects.common.terminating import TerminatingStream
from app.dialects.json_body import dump
from app.dialects.tgi.errors import chat_error_event
from app.engine.answers import EventCheck
from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.engine.usage import Usage, find_usage
from app.errors import MalformedAnswer
from app.sse import DONE, Framer, datas, encode

COMPLETIONS = StreamFormat("/v1/completions", chat_error_event)
_FINGERPRINT = "3.3.6-native"  # if the engine has none: clients need a string


# Nearly every chunk is a piece of text of one choice, which is completed without parsing it. Keys cannot be mistaken
# for text: inside a JSON string their quotes would be escaped.
_TEXT, _TGI_TEXT = b'"delta":{"content":"', b'"delta":{"role":"assistant","tool_calls":null,"content":"'
_TGI_END = b',"system_fingerprint":"%b"}\n\n' % _FINGERPRINT.encode()


def _is_text(frame: bytes) -> bool:
    """Whether frames are one, with nothing but a piece of text."""
    is_one = frame.count(b"\n") == 2 and frame.count(b'"delta":') == 1 and frame.find(_TEXT) >= 0
    has_more = (  # no loop: this runs for every token
        frame.find(b'"role":') >= 0
        or frame.find(b'"tool_calls":') >= 0
        or frame.find(b'"system_fingerprint":') >= 0
        or frame.find(b'"usage":') >= 0
        or frame.find(b'"error":') >= 0
    )
    return is_one and not has_more and frame.startswith(b"data: ") and frame.endswith(b"}\n\n")


def _completed(frame: bytes) -> bytes:
    return frame.replace(_TEXT, _TGI_TEXT)[:-3] + _TGI_END


def completion_reply(answer: dict[str, Any]) -> Reply:
    """A whole answer, with the fields that TGI's clients require."""
    answer = _with_fingerprint(answer)
    for choice in answer["choices"]:
        choice.setdefault("logprobs", None)
    return Reply(dump(answer))


def _with_fingerprint(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "system_fingerprint": answer.get("system_fingerprint") or _FINGERPRINT}


class ChatEvents(TerminatingStream):
    """Chat chunks, each with the role, the tool calls and the fingerprint that TGI's have."""

    check: EventCheck

    def __init__(self, *, hide_usage: bool) -> None:
        super().__init__(chat_error_event)
        self._framer = Framer()
        self.check = EventCheck("/v1/chat/completions")
        self._hide_usage = hide_usage
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        frames = self._framer.feed(chunk)
        if self._ended or self.failure is not None:
            return b""
        if self.check.repeats(frames):
            return _completed(frames)
        if _is_text(frames) and self.check.valid(frames):
            self.check.learn(frames)
            return _completed(frames)
        return b"".join(map(self._frame, datas(frames)))

    def _frame(self, data: bytes) -> bytes:
        if self._ended or self.failure is not None:
            return b""
        if (error := error_in(frame := encode(data))) is not None:
            self.failure = error
            return b""
        if not (self.check.valid(frame) or self.check.valid(frame := self.check.own(frame))):
            self.failure = MalformedAnswer(MALFORMED_RESPONSE)
            return b""
        if self.check.ended:
            self._ended = True
            return DONE
        if _is_text(frame):
            return _completed(frame)
        chunk = from_json(frame[6:-2])
        if not chunk["choices"]:
            self.usage = find_usage(data) or self.usage
            if self._hide_usage:
                return b""
        for choice in chunk["choices"]:
            choice["delta"] = {"role": "assistant", "content": None, "tool_calls": None, **choice["delta"]}
        if not chunk.get("system_fingerprint"):
            chunk["system_fingerprint"] = _FINGERPRINT
        return encode(dump(chunk))
