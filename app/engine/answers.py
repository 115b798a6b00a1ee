"""Whether a deployment's answer is one: a server may send anything after status 200. Pure.

Whole answers and the events of streams must be JSON objects with the members that vLLM's always have, and known members
must have their types. A stream must say why each of its choices has ended. Contract: vLLM 0.29, `entrypoints`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar, Union, cast

import msgspec
from pydantic_core import CoreSchema, SchemaValidator, core_schema, from_json
from pydantic_core.core_schema import TypedDictField

from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.errors import MalformedAnswer
from app.internal_api import EXTENDED_PATH
from app.sse import Framer, has_comment, split

EVENT_STREAM, JSON = "text/event-stream", "application/json"
"""The media types of the engine's streams and whole answers."""

VERSION_PATH, TOKENIZER_INFO_PATH = "/version", "/tokenizer_info"
QUESTIONS = frozenset({VERSION_PATH, TOKENIZER_INFO_PATH})
"""Paths that vLLM answers to a GET, without a body; the others are POSTs."""


def _object(**members: CoreSchema | TypedDictField) -> CoreSchema:
    """An object with these members; other members are not even converted to Python's objects."""
    fields = {
        name: member if member["type"] == "typed-dict-field" else core_schema.typed_dict_field(cast(CoreSchema, member))
        for name, member in members.items()
    }
    return core_schema.typed_dict_schema(cast(dict[str, TypedDictField], fields))


def _may(schema: CoreSchema) -> TypedDictField:
    """A member that may be absent or null."""
    return core_schema.typed_dict_field(core_schema.nullable_schema(schema), required=False)


def _list(item: CoreSchema, *, least: int = 0) -> CoreSchema:
    # `fail_fast`: an error for each of a million items would take gigabytes.
    return core_schema.list_schema(item, min_length=least, strict=True, fail_fast=True)


_TEXT, _COUNT = core_schema.str_schema(strict=True), core_schema.int_schema(strict=True, ge=0, lt=2**53)
_NUMBER = core_schema.float_schema(strict=True)
_USAGE = _may(
    _object(
        prompt_tokens=_may(_COUNT),
        completion_tokens=_may(_COUNT),
        total_tokens=_may(_COUNT),
        input_tokens=_may(_COUNT),
        output_tokens=_may(_COUNT),
    )
)
_HEAD: Mapping[str, TypedDictField] = {
    "id": _may(_TEXT),
    "object": _may(_TEXT),
    "created": _may(_COUNT),
    "model": _may(_TEXT),
    "system_fingerprint": _may(_TEXT),
    "usage": _USAGE,
}
_FUNCTION = _object(name=_may(_TEXT), arguments=_may(_TEXT))
_TOOL_CALL = _object(id=_may(_TEXT), type=_may(_TEXT), function=_may(_FUNCTION))
_CONTENT: Mapping[str, TypedDictField] = {
    "role": _may(_TEXT),
    "content": _may(_TEXT),
    "reasoning": _may(_TEXT),
    "reasoning_content": _may(_TEXT),
    "refusal": _may(_TEXT),
    "tool_calls": _may(_list(_TOOL_CALL)),
    "function_call": _may(_FUNCTION),
}
_TOKEN_LOGPROBS = _object(
    text_offset=_may(_list(_COUNT)),
    token_logprobs=_may(_list(core_schema.nullable_schema(_NUMBER))),
    tokens=_may(_list(_TEXT)),
    top_logprobs=_may(_list(core_schema.nullable_schema(core_schema.dict_schema(_TEXT, _NUMBER)))),
)
_LOGPROBS = _object(content=_may(_list(_object(token=_TEXT, logprob=_NUMBER))))
_PART: Mapping[str, CoreSchema | TypedDictField] = {
    "index": _may(_COUNT),
    "text": _TEXT,
    "token_ids": _may(_list(_COUNT)),
    "prompt_token_ids": _may(_list(_COUNT)),
    "stop_reason": _may(core_schema.union_schema([_TEXT, _COUNT])),
    "logprobs": _may(_TOKEN_LOGPROBS),
    "prompt_logprobs": _may(
        _list(core_schema.nullable_schema(core_schema.dict_schema(_TEXT, _object(logprob=_NUMBER))))
    ),
}
_COMPLETION = _object(**_HEAD, choices=_list(_object(**_PART, finish_reason=_TEXT), least=1))
_CHAT_CHOICE = _object(index=_may(_COUNT), message=_object(**_CONTENT), finish_reason=_TEXT, logprobs=_may(_LOGPROBS))
_ITEM = _object(
    id=_may(_TEXT),
    type=_may(_TEXT),
    status=_may(_TEXT),
    role=_may(_TEXT),
    content=_may(_list(_object(type=_TEXT, text=_may(_TEXT), annotations=_may(_list(_object()))))),
    summary=_may(_list(_object())),
    name=_may(_TEXT),
    call_id=_may(_TEXT),
    arguments=_may(_TEXT),
)
_RESPONSE = _object(
    **{name: schema for name, schema in _HEAD.items() if name != "created"},
    created_at=_may(_NUMBER),
    status=_TEXT,
    output=_list(_ITEM),
)
_BLOCK = _object(type=_TEXT, text=_may(_TEXT), thinking=_may(_TEXT), id=_may(_TEXT), name=_may(_TEXT))
_MESSAGE: Mapping[str, CoreSchema | TypedDictField] = {
    "id": _may(_TEXT),
    "type": _may(_TEXT),
    "role": _may(_TEXT),
    "model": _may(_TEXT),
    "content": _list(_BLOCK),
    "stop_reason": _may(_TEXT),
    "stop_sequence": _may(_TEXT),
    "usage": _USAGE,
}
_CLASSES = _object(index=_may(_COUNT), label=_may(_TEXT), num_classes=_may(_COUNT), probs=_list(_NUMBER))
_ANY = SchemaValidator(_object())
_WHOLE: Mapping[str, SchemaValidator] = {
    path: SchemaValidator(schema)
    for path, schema in {
        "/v1/chat/completions": _object(**_HEAD, choices=_list(_CHAT_CHOICE, least=1)),
        "/v1/completions": _COMPLETION,
        EXTENDED_PATH: _COMPLETION,
        "/v1/embeddings": _object(**_HEAD, data=_list(_object(index=_may(_COUNT), object=_may(_TEXT)), least=1)),
        "/v1/rerank": _object(**_HEAD, results=_list(_object(index=_COUNT, relevance_score=_NUMBER))),
        "/score": _object(**_HEAD, data=_list(_object(index=_may(_COUNT), object=_may(_TEXT), score=_NUMBER))),
        "/classify": _object(**_HEAD, data=_list(_CLASSES, least=1)),
        "/v1/responses": _RESPONSE,
        "/v1/messages": _object(**_MESSAGE),
        "/v1/messages/count_tokens": _object(input_tokens=_COUNT),
        "/tokenize": _object(tokens=_list(_COUNT), count=_may(_COUNT), max_model_len=_may(_COUNT)),
        "/detokenize": _object(prompt=_TEXT),
        VERSION_PATH: _object(version=_TEXT),
        TOKENIZER_INFO_PATH: _object(tokenizer_class=_TEXT),
        "/pooling": _object(**_HEAD, data=_list(_object(index=_may(_COUNT), object=_may(_TEXT)), least=1)),
    }.items()
}
"""Path to the members of every whole answer, and their types; other paths answer with any object."""

EMPTY_ANSWERS = frozenset({"/ping"})
"""Paths whose status alone is the answer."""


def check_answer(
    path: str,
    answer: bytes,
    media_type: str,
    *,
    encoding: str | None = None,
    request: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Raises MalformedAnswer unless this is a whole answer to a `request` to `path`.

    `encoding`: the request's `encoding_format` of vectors. Only "float" allows no texts; some servers know no other.
    """
    if path in EMPTY_ANSWERS:
        return
    if not media_type.endswith("json"):
        raise MalformedAnswer(MALFORMED_RESPONSE)
    try:
        _check_numbers(answer)
        whole = _WHOLE.get(path, _ANY).validate_json(answer)
        if path == "/v1/rerank" and not _has_indices(whole["results"], request):
            raise MalformedAnswer(MALFORMED_RESPONSE)
        if path in _VECTORS:
            decoder, form = _VECTORS[path]
            if not all(_is_vector(item.vector, form, encoding) for item in decoder.decode(answer).data):
                raise MalformedAnswer(MALFORMED_RESPONSE)
    except ValueError as error:
        raise MalformedAnswer(MALFORMED_RESPONSE) from error


def _has_indices(results: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> bool:
    """Whether each result of a reranking is another document's, and there are as many as were asked for."""
    documents, top = request.get("documents"), request.get("top_n")
    if not isinstance(documents, list):
        return True
    count = len(documents)
    wanted = min(top, count) if isinstance(top, int) and top > 0 else count
    indices = {result["index"] for result in results}
    return len(results) == len(indices) == wanted and max(indices, default=-1) < count


def _check_numbers(data: bytes) -> None:
    """Raises ValueError for NaN and infinities, which Python's parsers take for JSON, and clients' do not."""
    if b"NaN" in data or b"Infinity" in data:
        from_json(data, allow_inf_nan=False)


class _Embedding(msgspec.Struct):
    vector: msgspec.Raw = msgspec.field(name="embedding")


class _Pooled(msgspec.Struct):
    vector: msgspec.Raw = msgspec.field(name="data")


Vector = TypeVar("Vector", _Embedding, _Pooled)


class _Vectors(msgspec.Struct, Generic[Vector]):
    data: list[Vector]


_LIST = rb"\[,*+\]"
_VECTORS: Mapping[str, tuple[msgspec.json.Decoder[_Vectors[Any]], re.Pattern[bytes]]] = {
    "/v1/embeddings": (msgspec.json.Decoder(_Vectors[_Embedding]), re.compile(_LIST)),
    "/pooling": (msgspec.json.Decoder(_Vectors[_Pooled]), re.compile(rb"%b|\[%b(?:,%b)*+\]" % (_LIST, _LIST, _LIST))),
}
"""Path to its vectors, and to what is left of one of them without its numbers: some have a list for each token."""

_BASE64 = re.compile(rb'"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"')


def _is_vector(raw: msgspec.Raw, form: re.Pattern[bytes], encoding: str | None) -> bool:
    """Whether JSON is lists of numbers of this form, or a text in base64: numbers are not worth an object each."""
    text = bytes(raw)
    if text.startswith(b"["):
        return form.fullmatch(text.translate(None, b"0123456789.eE+- \t\r\n")) is not None
    return encoding != "float" and _BASE64.fullmatch(text) is not None


_EVENT = {
    "/v1/chat/completions": _object(
        **_HEAD,
        choices=_list(
            _object(index=_COUNT, delta=_object(**_CONTENT), finish_reason=_may(_TEXT), logprobs=_may(_LOGPROBS))
        ),
    ),
    "/v1/completions": _object(**_HEAD, choices=_list(_object(**_PART, finish_reason=_may(_TEXT)))),
    "/v1/responses": _object(
        type=_TEXT,
        sequence_number=_may(_COUNT),
        output_index=_may(_COUNT),
        content_index=_may(_COUNT),
        item_id=_may(_TEXT),
        delta=_may(_TEXT),
        text=_may(_TEXT),
        arguments=_may(_TEXT),
        item=_may(_ITEM),
        part=_may(_object(type=_TEXT, text=_may(_TEXT))),
        response=_may(_RESPONSE),
    ),
    "/v1/messages": _object(
        type=_TEXT,
        index=_may(_COUNT),
        message=_may(_object(**_MESSAGE)),
        content_block=_may(_BLOCK),
        delta=_may(
            _object(
                type=_may(_TEXT),
                text=_may(_TEXT),
                thinking=_may(_TEXT),
                partial_json=_may(_TEXT),
                stop_reason=_may(_TEXT),
                stop_sequence=_may(_TEXT),
            )
        ),
        usage=_USAGE,
    ),
}
_TOKENS = SchemaValidator(_EVENT["/v1/completions"])


def _type_of(schema: Any) -> Any:
    """A schema's type for msgspec, which reads an event twice as fast, and takes no NaN for a number."""
    match schema["type"]:
        case "typed-dict":
            return msgspec.defstruct(
                "Event",
                [
                    (name, _type_of(field["schema"]), *(() if field.get("required", True) else (None,)))
                    for name, field in schema["fields"].items()
                ],
                kw_only=True,
                gc=False,
            )
        case "nullable":
            return _type_of(schema["schema"]) | None
        case "list":
            return Annotated[list[_type_of(schema["items_schema"])], msgspec.Meta(min_length=schema["min_length"])]  # type: ignore[misc]
        case "dict":
            return dict[_type_of(schema["keys_schema"]), _type_of(schema["values_schema"])]  # type: ignore[misc]
        case "union":
            return Union[tuple(map(_type_of, schema["choices"]))]  # noqa: UP007
        case "int":
            return Annotated[int, msgspec.Meta(ge=schema["ge"], lt=schema["lt"])]
        case kind:
            return {"str": str, "float": float}[kind]


_EVENTS: Mapping[str, msgspec.json.Decoder[Any]] = {
    path: msgspec.json.Decoder(_type_of(schema))
    for path, schema in {**_EVENT, EXTENDED_PATH: _EVENT["/v1/completions"]}.items()
}
"""Path to the members of the events of its streams, and their types."""


def token_chunk(data: bytes) -> dict[str, Any]:
    """The data of an event of a stream of completions, with the members that readers of tokens need.

    Raises ValueError for anything else.
    """
    _check_numbers(data)
    chunk: dict[str, Any] = _TOKENS.validate_json(data)
    return chunk


_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BLOCK_EVENTS = {"content_block_start": "content_block", "content_block_delta": "delta", "message_start": "message"}

# A frame with one line of data, without its end, and before it the event's name, which must be the data's `type`. The
# engine's events have no other form. Clients would obey other lines: `retry`, or an event that says there is an error.
_FRAME = re.compile(rb"(?:event: ?([^\n]+)\n)?data: ?([^\n]*)")
_LF = 0x0A
_BEGINNINGS = (b"data:", b"event:", b":")

# The members that differ between the events of a stream of text. A name cannot be part of a text: inside a JSON
# string its quotes would be escaped.
_DIFFERS = re.compile(rb'"(?:content|text|delta|reasoning|reasoning_content|thinking)":"((?:[^"\\]|\\.)*+)"')
_SEQUENCE = re.compile(rb'"sequence_number":(\d+)')

# What surrounds a text, and the number behind it: before, between them, after; the least length of the whole, and where
# its middle begins and ends. No event begins with a line end.
_Learned = tuple[bytes, bytes, bytes, int, int, int]
_NOTHING: _Learned = (b"\n", b"", b"", 1, 1, 1)

# Characters of a JSON string that need no escape.
_PLAIN = bytes(set(range(0x20, 0x80)) - set(b'"\\'))


class EventCheck:
    """Checks the events of one stream of `path`: each is a JSON object of its kind, or ``[DONE]``.

    `ended` is set by the last event, which is not valid before every choice, or the message, has a reason for its end.

    Parsing every event would cost 3 % of the router's work. But most events of a stream differ from the one before in a
    piece of text alone, and in Responses in a number behind it, which `repeats` sees without parsing.
    """

    __slots__ = ("_begun", "_decode", "_finished", "_learned", "_started", "_takes", "ended")

    def __init__(self, path: str) -> None:
        self._decode = _EVENTS[path].decode
        self._takes = _TAKES.get(path, EventCheck._take_choices)
        self._learned = _NOTHING
        self._begun: bytes | None = None
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self.ended = False

    def begins(self, frames: bytes) -> bool:
        """Whether the frames that begin a stream are valid. They are not parsed again if `valid` gets them next,
        unless they are the whole stream."""
        is_valid = self.valid(frames)
        if is_valid and not self.ended:
            self._begun = frames
        else:
            self._restart()
        return is_valid

    def repeats(self, frames: bytes) -> bool:
        """Whether frames are one event, and differ from the learned one in a text without escapes and the number."""
        before, middle, after, least, start, end = self._learned
        if not (frames.startswith(before) and frames.endswith(after) and len(frames) >= least):
            return False
        text = frames[start:end]
        if middle:
            text, found, number = text.rpartition(middle)
            if not (found and number.isdigit()) or number.startswith(b"0"):
                return False
        # No regular expression: their machinery is cold in the caches when the next token comes.
        others = text.translate(None, _PLAIN)
        return not others or _is_utf8(others, text)

    def valid(self, frames: bytes) -> bool:
        """Whether whole frames, without comments, are all valid events."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            if frames == begun:
                return True
            self._restart()  # they come in other pieces
        if frames.find(b"\n\n") == len(frames) - 2:  # nearly always
            return self._is_event(frames[:-2])
        if all(map(self._is_event, frames[:-2].split(b"\n\n"))):
            return True
        self.ended = False  # the caller checks them one by one
        return False

    def learn(self, frames: bytes) -> None:
        """Remembers what surrounds the text of a valid event. Frames that are not one event teach nothing."""
        if frames.find(b"\n\n") == len(frames) - 2 and (found := _DIFFERS.search(frames)) is not None:
            start, end = found.span(1)
            number = _SEQUENCE.search(frames, end)
            middle, last = (b"", end) if number is None else (frames[end : number.start(1)], number.end(1))
            rest = len(frames) - last
            self._learned = frames[:start], middle, frames[last:], start + len(middle) + rest, start, -rest

    def forget(self) -> None:
        """Nothing repeats, until the next event is learned."""
        self._learned = _NOTHING

    def _restart(self) -> None:
        self._started.clear()
        self._finished.clear()
        self.ended = False

    def _is_event(self, frame: bytes) -> bool:
        if self.ended:
            return not frame.strip(b"\n")
        name = None
        if frame.startswith(b"data: ") and _LF not in frame:  # nearly always
            data = frame[6:]
        elif (found := _FRAME.fullmatch(frame.lstrip(b"\n"))) is None:
            return not frame.strip(b"\n")
        else:
            name, data = found.groups()
        if data == b"[DONE]":
            self.ended = name is None and self._is_finished
            return self.ended
        try:
            # The decoder takes any bytes for the text of other members, and gives up on deep ones.
            if not data.isascii():
                data.decode()
            event = self._decode(data)
            if name is not None and name != getattr(event, "type", "").encode():
                return False
            return self._takes(self, event)
        except (ValueError, RecursionError):
            return False

    @property
    def _is_finished(self) -> bool:
        return bool(self._finished) and self._started <= self._finished

    def _take_choices(self, event: Any) -> bool:
        for choice in event.choices:
            (self._finished if choice.finish_reason else self._started).add(choice.index or 0)
        return True

    def _take_response(self, event: Any) -> bool:
        self.ended = event.type in _LAST_EVENTS and event.response is not None
        return self.ended or event.type not in _LAST_EVENTS

    def _take_message(self, event: Any) -> bool:
        if event.type == "message_delta" and event.delta is not None and event.delta.stop_reason:
            self._finished.add(0)
        if event.type == "message_stop":
            self.ended = self._is_finished
            return self.ended
        return event.type not in _BLOCK_EVENTS or getattr(event, _BLOCK_EVENTS[event.type]) is not None


_TAKES: Mapping[str, Callable[[EventCheck, Any], bool]] = {
    "/v1/responses": EventCheck._take_response,
    "/v1/messages": EventCheck._take_message,
}


def _is_utf8(others: bytes, text: bytes) -> bool:
    """Whether `text` is UTF-8, and its bytes that are not `_PLAIN` need no escape either."""
    try:
        return min(others) >= 0x80 and text.decode() is not None
    except UnicodeDecodeError:
        return False


class Beginning:
    """The first chunks of a stream, up to the end of its first event: until then no status has been sent.

    For a first chunk that is not simply some valid events, as it nearly always is (`EventCheck.begins`).
    """

    def __init__(self, path: str) -> None:
        self._check = EventCheck(path)
        self._framer = Framer()
        self.received = b""

    def feed(self, chunk: bytes) -> bool:
        """Whether the first event, or a comment, is complete, or too long to wait for.

        Raises MalformedAnswer if this is no event.
        """
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
