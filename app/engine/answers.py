"""Whether a deployment's answer is one: a server may send anything after status 200. Pure.

Whole answers must be JSON objects with the members that vLLM's answers to the path always have. Every event of a stream
must be a JSON object of its kind. Contract: vLLM 0.29, `entrypoints`.
"""

import re
from collections.abc import Mapping

from pydantic_core import CoreSchema, SchemaValidator, core_schema

from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.errors import MalformedAnswer
from app.internal_api import EXTENDED_PATH
from app.sse import Framer, has_comment, split

EVENT_STREAM, JSON = "text/event-stream", "application/json"
"""The media types of the engine's streams and whole answers."""


def _object(**members: CoreSchema) -> CoreSchema:
    """An object with these members; other members are not even converted to Python's objects."""
    fields = {name: core_schema.typed_dict_field(member) for name, member in members.items()}
    return core_schema.typed_dict_schema(fields)


def _list(item: CoreSchema, *, least: int = 0) -> CoreSchema:
    # `fail_fast`: an error for each of a million items would take gigabytes.
    return core_schema.list_schema(item, min_length=least, strict=True, fail_fast=True)


_TEXT, _COUNT = core_schema.str_schema(strict=True), core_schema.int_schema(strict=True)
_COMPLETION = _object(choices=_list(_object(text=_TEXT), least=1))
_ANY = SchemaValidator(_object())
_WHOLE: Mapping[str, SchemaValidator] = {
    path: SchemaValidator(schema)
    for path, schema in {
        "/v1/chat/completions": _object(choices=_list(_object(message=_object()), least=1)),
        "/v1/completions": _COMPLETION,
        EXTENDED_PATH: _COMPLETION,
        "/v1/embeddings": _object(data=_list(_object(), least=1)),
        "/v1/rerank": _object(results=_list(_object())),
        "/score": _object(data=_list(_object())),
        "/v1/responses": _object(status=_TEXT, output=_list(_object())),
        "/v1/messages": _object(content=_list(_object())),
        "/v1/messages/count_tokens": _object(input_tokens=_COUNT),
        "/tokenize": _object(tokens=_list(_COUNT)),
        "/detokenize": _object(prompt=_TEXT),
        "/pooling": _object(data=_list(_object(), least=1)),
    }.items()
}
"""Path to what every whole answer has; other paths answer with any object."""

EMPTY_ANSWERS = frozenset({"/ping"})
"""Paths whose status alone is the answer."""


def check_answer(path: str, answer: bytes, media_type: str) -> None:
    """Raises MalformedAnswer unless this is a whole answer to a request to `path`."""
    if path in EMPTY_ANSWERS:
        return
    if not media_type.endswith("json"):
        raise MalformedAnswer(MALFORMED_RESPONSE)
    try:
        _WHOLE.get(path, _ANY).validate_json(answer)
    except ValueError as error:
        raise MalformedAnswer(MALFORMED_RESPONSE) from error


_EVENTS: Mapping[str, SchemaValidator] = {
    "choices": SchemaValidator(_object(choices=_list(_object()))),
    "type": SchemaValidator(_object(type=_TEXT)),
}
"""By the member that every event of a stream has: a list of objects, or a string."""

# A frame with one line of data, without its end. The engine's events have no other form.
_FRAME = re.compile(rb"(?:(?:event|id|retry):[^\n]*\n)*data: ?([^\n]*)(?:\n(?:event|id|retry):[^\n]*)*")
_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":")

# The members that differ between the events of a stream of text. A name cannot be part of a text: inside a JSON
# string its quotes would be escaped.
_DIFFERS = re.compile(rb'"(?:content|text|delta|reasoning|reasoning_content|thinking)":"((?:[^"\\]|\\.)*+)"')
_NUMBER = re.compile(rb'"sequence_number":(\d+)')

# Characters of a JSON string that need no escape.
_PLAIN = bytes(set(range(0x20, 0x80)) - set(b'"\\'))


class EventCheck:
    """Checks the events of one stream: each is ``[DONE]``, or a JSON object with `member`, one of ``_EVENTS``.

    Parsing every event would cost 3 % of the router's work. But most events of a stream differ from the one before in a
    piece of text alone, and in Responses in a number behind it, which `repeats` sees without parsing.
    """

    __slots__ = ("_after", "_before", "_event", "_middle")

    def __init__(self, member: str) -> None:
        self._event = _EVENTS[member]
        self._before, self._middle, self._after = b"\n", b"", b""  # no event begins with a line end

    def repeats(self, frames: bytes) -> bool:
        """Whether frames are one event, and differ from the learned one in a text without escapes and the number."""
        before, after = self._before, self._after
        if not (frames.startswith(before) and frames.endswith(after)):
            return False
        end = len(frames) - len(after)
        if middle := self._middle:
            at = frames.rfind(middle, len(before), end)
            number = frames[at + len(middle) : end]
            if at < 0 or not number.isdigit() or number.startswith(b"0"):
                return False
            end = at
        return end >= len(before) and _is_plain(frames[len(before) : end])

    def valid(self, frames: bytes) -> bool:
        """Whether whole frames, without comments, are all valid events."""
        if frames.find(b"\n\n") == len(frames) - 2:  # nearly always
            return self._is_event(frames[:-2])
        return all(map(self._is_event, frames[:-2].split(b"\n\n")))

    def learn(self, frames: bytes) -> None:
        """Remembers what surrounds the text of a valid event. Frames that are not one event teach nothing."""
        if frames.find(b"\n\n") == len(frames) - 2 and (found := _DIFFERS.search(frames)) is not None:
            self._before, self._middle, self._after = frames[: found.start(1)], b"", frames[found.end(1) :]
            if (number := _NUMBER.search(frames, found.end(1))) is not None:
                self._middle, self._after = frames[found.end(1) : number.start(1)], frames[number.end(1) :]

    def _is_event(self, frame: bytes) -> bool:
        if frame.startswith(b"data: ") and b"\n" not in frame:  # nearly always
            data = frame[6:]
        elif (found := _FRAME.fullmatch(frame.lstrip(b"\n"))) is None:
            return not frame.strip(b"\n")
        else:
            data = found[1]
        if data == b"[DONE]":
            return True
        try:
            self._event.validate_json(data)
        except ValueError:
            return False
        return True


def event_check(path: str) -> EventCheck:
    """The check of the streams of `path`."""
    return EventCheck("type" if path in ("/v1/messages", "/v1/responses") else "choices")


def _is_plain(text: bytes) -> bool:
    """Whether the content of a JSON string is UTF-8 without escapes. No regular expression: their machinery is cold in
    the caches when the next token comes."""
    others = text.translate(None, _PLAIN)
    if not others:
        return True
    try:
        return min(others) >= 0x80 and text.decode() is not None
    except UnicodeDecodeError:
        return False


class Beginning:
    """The first chunks of a stream, up to the end of its first event: until then no status has been sent."""

    def __init__(self, path: str) -> None:
        self._check = event_check(path)
        self._framer = Framer()
        self.received = b""

    def feed(self, chunk: bytes) -> bool:
        """Whether the first event, or a comment, is complete, or too long to wait for.

        Raises MalformedAnswer if this is no event.
        """
        if not self.received and chunk.startswith(b"data: {") and chunk.endswith(b"\n\n") and self._check.valid(chunk):
            self.received = chunk  # nearly always
            return True
        self.received += chunk
        begins = self.received.startswith(_BEGINNINGS) or any(form.startswith(self.received) for form in _BEGINNINGS)
        if not begins:
            raise MalformedAnswer(MALFORMED_RESPONSE)
        frames = self._framer.feed(chunk)
        if frames:
            first = next(split(frames), None) if has_comment(frames) else frames[: frames.index(b"\n\n") + 2]
            if first is not None and error_in(first) is None and not self._check.valid(first):
                raise MalformedAnswer(MALFORMED_RESPONSE)
        return bool(frames) or len(self.received) > _MOST_BEGINNING


_MOST_BEGINNING = 1024 * 1024
"""Bytes. A Responses stream begins with an event that repeats the request's tools."""
