"""Whether a deployment's answer is one: a server may send anything after status 200. Pure.

Whole answers and the events of streams must be JSON objects with the members that vLLM's always have, known members
must have their types, and there must be as many choices, vectors or results as the request makes certain. A stream must
say why each of its choices has ended. Members that neither vLLM's nor OpenAI's answers have are left out, and so are
those that vLLM has for requests that ask for them, if this one did not. Contract: vLLM 0.29, `entrypoints`.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, cast

import msgspec
from pydantic_core import CoreSchema, SchemaValidator, core_schema, from_json
from pydantic_core.core_schema import TypedDictField

from app.engine.errors import MALFORMED_RESPONSE, error_in
from app.engine.expected import ON_REQUEST, asked_for, count_of, finish_reasons
from app.engine.vectors import LONG, VECTORS, check_vectors, outlined
from app.errors import MalformedAnswer
from app.internal_api import EXTENDED_PATH
from app.sse import Framer, encode, has_comment, split

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


_NAMES: Final = "names"


def _closed(names: str, **members: CoreSchema | TypedDictField) -> CoreSchema:
    """An object with these members, those with these `names`, of any type, and those of ON_REQUEST. Clients get no
    others."""
    return {**_object(**members), "metadata": {_NAMES: frozenset(names.split())}}


def _may(schema: CoreSchema) -> TypedDictField:
    """A member that may be absent or null."""
    return core_schema.typed_dict_field(core_schema.nullable_schema(schema), required=False)


def _one_of(*words: str) -> CoreSchema:
    return core_schema.literal_schema([*words])


def _list(item: CoreSchema, *, least: int = 0) -> CoreSchema:
    # `fail_fast`: an error for each of a million items would take gigabytes.
    return core_schema.list_schema(item, min_length=least, strict=True, fail_fast=True)


_ANY_COUNT = 2**53
_TEXT, _COUNT = core_schema.str_schema(strict=True), core_schema.int_schema(strict=True, ge=0, lt=_ANY_COUNT)
_NUMBER = core_schema.float_schema(strict=True, allow_inf_nan=False)
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
_OTHERS = "metrics service_tier"
_COMPLETION = _closed(_OTHERS, **_HEAD, choices=_list(_object(**_PART, finish_reason=_TEXT), least=1))
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
_RESPONSE = _closed(
    "background billing completed_at conversation error frequency_penalty incomplete_details instructions "
    "max_output_tokens max_tool_calls metadata output_text parallel_tool_calls presence_penalty previous_response_id "
    "prompt prompt_cache_key prompt_cache_retention reasoning safety_identifier service_tier store temperature text "
    "tool_choice tools top_logprobs top_p truncation user",
    **{name: schema for name, schema in _HEAD.items() if name != "created"},
    created_at=_may(_NUMBER),
    status=_one_of("completed", "incomplete", "failed", "in_progress", "queued", "cancelled"),
    output=_list(_ITEM),
)
_BLOCK = _object(type=_TEXT, text=_may(_TEXT), thinking=_may(_TEXT), id=_may(_TEXT), name=_may(_TEXT))
_STOP_REASON = _may(
    _one_of(
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded"
    )
)
_MESSAGE = _closed(
    "container context_management",
    id=_may(_TEXT),
    type=_may(_TEXT),
    role=_may(_TEXT),
    model=_may(_TEXT),
    content=_list(_BLOCK),
    stop_reason=_STOP_REASON,
    stop_sequence=_may(_TEXT),
    usage=_USAGE,
)
_CLASSES = _object(index=_may(_COUNT), label=_may(_TEXT), num_classes=_may(_COUNT), probs=_list(_NUMBER, least=1))
_RANKED = _object(index=_COUNT, relevance_score=_NUMBER, document=_may(_object(text=_may(_TEXT))))
_VECTOR = _object(index=_may(_COUNT), object=_may(_TEXT))
_WHOLE: Mapping[str, CoreSchema] = {
    "/v1/chat/completions": _closed(_OTHERS, **_HEAD, choices=_list(_CHAT_CHOICE, least=1)),
    "/v1/completions": _COMPLETION,
    EXTENDED_PATH: _COMPLETION,
    "/v1/embeddings": _closed("", **_HEAD, data=_list(_VECTOR, least=1)),
    "/v1/rerank": _closed("meta", **_HEAD, results=_list(_RANKED)),
    "/score": _closed("", **_HEAD, data=_list(_object(index=_may(_COUNT), object=_may(_TEXT), score=_NUMBER))),
    "/classify": _closed("", **_HEAD, data=_list(_CLASSES, least=1)),
    "/v1/responses": _RESPONSE,
    "/v1/messages": _MESSAGE,
    "/v1/messages/count_tokens": _closed("context_management", input_tokens=_COUNT),
    "/tokenize": _closed("token_strs", tokens=_list(_COUNT), count=_may(_COUNT), max_model_len=_may(_COUNT)),
    "/detokenize": _closed("", prompt=_TEXT),
    VERSION_PATH: _object(version=_TEXT),
    TOKENIZER_INFO_PATH: _object(tokenizer_class=_TEXT),
    "/pooling": _closed("", **_HEAD, data=_list(_VECTOR, least=1)),
}
"""Path to the members of every whole answer, and their types; other paths answer with any object."""

_ANY = _object()

EMPTY_ANSWERS = frozenset({"/ping"})
"""Paths whose status alone is the answer."""


Request = Mapping[str, Any]


def checked_answer(path: str, answer: bytes, media_type: str, request: Request | None = None) -> bytes:
    """A whole answer from `path`, without the members that such an answer does not have.

    `request`: the body that it answers; None if that is unknown. Raises MalformedAnswer if it does not answer it.
    """
    if path in EMPTY_ANSWERS:
        return answer
    if not media_type.endswith("json"):
        raise MalformedAnswer(MALFORMED_RESPONSE)
    try:
        mark = secrets.token_hex(16)  # no engine can know it
        is_long = path == "/v1/embeddings" and len(answer) > LONG
        json = outlined(answer, mark) if is_long else answer
        _check_text(json)
        requested = asked_for(request or {})
        whole, is_own = _read(path, json, requested)
        if request is not None and not _has_parts(path, whole, request):
            raise MalformedAnswer(MALFORMED_RESPONSE)
        if path in VECTORS:
            check_vectors(path, json, request, mark)
        return answer if is_own else bytes(_own_members(msgspec.Raw(answer), _WHOLE.get(path, _ANY), requested))
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(MALFORMED_RESPONSE) from error


def _read(path: str, json: bytes, requested: frozenset[str]) -> tuple[Any, bool]:
    """A whole answer, and whether it has no members but its own, as nearly always. Raises ValueError."""
    with suppress(msgspec.ValidationError):
        return _whole_decoder(path, requested).decode(json), True
    return _whole_decoder(path, None).decode(json), False


_PARTS = ("choices", "data", "results")


def _has_parts(path: str, whole: Any, request: Request) -> bool:
    """Whether there are as many parts as the request asks for, each with an index of its own, and each is right."""
    if (count := count_of(path, request)) is None:
        return True
    parts: Sequence[Any] = next(getattr(whole, name) for name in _PARTS if hasattr(whole, name))
    indices = {part.index for part in parts}
    if len(parts) != count or (indices != {None} and len(indices) != count):
        return False
    if path == "/v1/rerank":
        return all(_is_ranked(part, request["documents"]) for part in parts)
    reasons = finish_reasons(request)
    return all((part.index or 0) < count and getattr(part, "finish_reason", "stop") in reasons for part in parts)


def _is_ranked(result: Any, documents: Any) -> bool:
    """Whether a result is about one of the documents, and repeats no other text than that document's."""
    documents = documents if isinstance(documents, list) else [documents]
    text = None if result.document is None else result.document.text
    return result.index < len(documents) and (text is None or text == documents[result.index])


def _check_text(data: bytes) -> None:
    """Raises ValueError for bytes that are no text: msgspec's decoders take any for the texts that they leave out."""
    if not data.isascii():
        data.decode()


def _check_numbers(data: bytes) -> None:
    """Raises ValueError for NaN and infinities, which pydantic takes for JSON, and clients' parsers do not."""
    if b"NaN" in data or b"Infinity" in data:
        from_json(data, allow_inf_nan=False)


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"


def _own_members(json: msgspec.Raw, schema: Any, requested: frozenset[str]) -> msgspec.Raw:
    """A JSON value of a schema without the members that `_closed` objects do not have; the same if it has none.

    Raises ValueError if it is not of that schema.
    """
    if schema["type"] == "nullable":
        return json if bytes(json) == _NULL else _own_members(json, schema["schema"], requested)
    names = schema.get("metadata", {}).get(_NAMES)
    if names is None:
        return json
    own, members = {}, _MEMBERS.decode(json)
    for name, value in members.items():
        if name in schema["fields"]:
            own[name] = _own_members(value, schema["fields"][name]["schema"], requested)
        elif name in names or (name in ON_REQUEST and (name in requested or bytes(value) == _NULL)):
            own[name] = value
    is_own = all(own.get(name) is value for name, value in members.items())
    return json if is_own else msgspec.Raw(msgspec.json.encode(own))


_EVENT = {
    "/v1/chat/completions": _closed(
        _OTHERS,
        **_HEAD,
        choices=_list(
            _object(index=_COUNT, delta=_object(**_CONTENT), finish_reason=_may(_TEXT), logprobs=_may(_LOGPROBS))
        ),
    ),
    "/v1/completions": _closed(_OTHERS, **_HEAD, choices=_list(_object(**_PART, finish_reason=_may(_TEXT)))),
    "/v1/responses": _closed(
        "annotation annotation_index code input logprobs message name obfuscation param refusal summary_index",
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
    "/v1/messages": _closed(
        "context_management",
        type=_TEXT,
        index=_may(_COUNT),
        message=_may(_MESSAGE),
        content_block=_may(_BLOCK),
        delta=_may(
            _object(
                type=_may(_TEXT),
                text=_may(_TEXT),
                thinking=_may(_TEXT),
                partial_json=_may(_TEXT),
                stop_reason=_STOP_REASON,
                stop_sequence=_may(_TEXT),
            )
        ),
        usage=_USAGE,
    ),
}
_EVENT[EXTENDED_PATH] = _EVENT["/v1/completions"]
_TOKENS = SchemaValidator(_EVENT["/v1/completions"])


def _type_of(schema: Any, requested: frozenset[str] | None) -> Any:
    """A schema's type for msgspec, which reads an event twice as fast as pydantic, and a long answer five times as
    fast, in which it holds the interpreter's lock; and which takes no NaN for a number.

    A `_closed` object has no members of ON_REQUEST but null, and those `requested`; with None it may have any.
    """
    match schema["type"]:
        case "typed-dict":
            names = None if requested is None else schema.get("metadata", {}).get(_NAMES)
            others = () if names is None else (names | ON_REQUEST) - schema["fields"].keys()
            return msgspec.defstruct(
                "Event",
                [
                    *(
                        (name, _type_of(field["schema"], requested), *(() if field.get("required", True) else (None,)))
                        for name, field in schema["fields"].items()
                    ),
                    *(
                        (name, msgspec.Raw if name in (names or ()) or name in (requested or ()) else None, None)
                        for name in others
                    ),
                ],
                kw_only=True,
                gc=False,
                forbid_unknown_fields=names is not None,
            )
        case "nullable":
            return _type_of(schema["schema"], requested) | None
        case "list":
            item = _type_of(schema["items_schema"], requested)
            return Annotated[list[item], msgspec.Meta(min_length=schema["min_length"])]  # type: ignore[valid-type]
        case "dict":
            return dict[_type_of(schema["keys_schema"], requested), _type_of(schema["values_schema"], requested)]  # type: ignore[misc]
        case "union":
            return Union[tuple(_type_of(choice, requested) for choice in schema["choices"])]  # noqa: UP007
        case "literal":
            return Literal[tuple(schema["expected"])]
        case "int":
            return Annotated[int, msgspec.Meta(ge=schema["ge"], lt=schema["lt"])]
        case kind:
            return {"str": str, "float": float}[kind]


@cache
def _decoder(path: str, requested: frozenset[str] = frozenset()) -> msgspec.json.Decoder[Any]:
    """Reads the events of the streams of a path, if the request asks for these members."""
    return msgspec.json.Decoder(_type_of(_EVENT[path], requested))


@cache
def _whole_decoder(path: str, requested: frozenset[str] | None) -> msgspec.json.Decoder[Any]:
    """Reads the whole answers of a path that have no other members than `_type_of` says."""
    return msgspec.json.Decoder(_type_of(_WHOLE.get(path, _ANY), requested))


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
_MOST_LEARNED = 64 * 1024
"""Bytes of an event that is searched for them: megabytes of escapes would take a third of a second."""

Learned = tuple[bytes, bytes, bytes, int, int, int]
"""What surrounds a text, and the number behind it: before, between them, after; the least length of the whole, and
where what varies begins and ends."""

_NOTHING_ASKED, _REASONS = asked_for({}), finish_reasons({})
_NOTHING: Learned = (b"\n", b"", b"", 1, 1, 1)  # no event begins with a line end

# Characters of a JSON string that need no escape.
_PLAIN = bytes(set(range(0x20, 0x80)) - set(b'"\\'))


class EventCheck:
    """Checks the events of one stream of `path`: each is a JSON object of its kind, or ``[DONE]``.

    `ended` is set by the last event, which is not valid before every choice, or the message, has a reason for its end.

    Parsing every event would cost 3 % of the router's work. But most events of a stream differ from the one before in a
    piece of text alone, and in Responses in a number behind it, which `repeats` sees without parsing. Of the frames
    that it saw last, `varying` is the text, up to the number; None if they do not repeat the `learned` event.
    """

    __slots__ = (
        "_asked",
        "_begun",
        "_decode",
        "_finished",
        "_least",
        "_most",
        "_path",
        "_reasons",
        "_started",
        "_takes",
        "_unlearned",
        "ended",
        "learned",
        "varying",
    )

    def __init__(self, path: str, request: Request | None = None) -> None:
        self._path = path
        self._asked, self._reasons, self._least, self._most = _NOTHING_ASKED, _REASONS, 1, _ANY_COUNT
        self._decode = _decoder(path).decode
        if request is not None:
            self.expect(request)
        self._takes = _TAKES.get(path, EventCheck._take_choices)
        self.learned, self._unlearned = _NOTHING, b""
        self.varying: bytes | None = None
        self._begun: bytes | None = None
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self.ended = False

    def expect(self, request: Request) -> None:
        """Checks the answer to this request: how many choices it has, how they end, and which members it has."""
        self._asked, self._reasons = asked_for(request), finish_reasons(request)
        self._decode = _decoder(self._path, self._asked).decode
        if (count := count_of(self._path, request)) is not None:
            self._least = self._most = count

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
        if self._unlearned:
            unlearned, self._unlearned = self._unlearned, b""
            if not frames.endswith(b"[DONE]\n\n"):  # otherwise nothing follows
                self._learn(unlearned)
        before, middle, after, least, start, end = self.learned
        self.varying = None
        if not (frames.startswith(before) and frames.endswith(after) and len(frames) >= least):
            return False
        text = varying = frames[start:end]
        if middle:
            text, found, number = text.rpartition(middle)
            if not (found and number.isdigit()) or number.startswith(b"0"):
                return False
        # No regular expression: their machinery is cold in the caches when the next token comes.
        others = text.translate(None, _PLAIN)
        if others and not _is_utf8(others, text):
            return False
        self.varying = varying
        return True

    def valid(self, frames: bytes) -> bool:
        """Whether whole frames, without comments, are all valid events."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            if frames == begun:
                return True
            self._restart()  # they come in other pieces
        end = len(frames) - 2
        if frames.find(b"\n") == end or frames.find(b"\n\n") == end:  # one event: nearly always, of one line
            return self._is_event(frames[:-2])
        are_valid, may_repeat = True, not frames.endswith(b"[DONE]\n\n")  # the end repeats nothing
        for frame in frames[:-2].split(b"\n\n"):
            if (self.ended or not may_repeat or not self.repeats(frame + b"\n\n")) and not self._is_event(frame):
                are_valid = False
                break
        self.varying = None  # of the last one
        self.ended = self.ended and are_valid  # the caller checks them one by one
        return are_valid

    def own(self, frame: bytes) -> bytes:
        """A frame without the members that its event does not have; the same if it has no others, or is no event."""
        if (found := _FRAME.fullmatch(frame.strip(b"\n"))) is None:
            return frame
        name, data = found.groups()
        try:
            own = _own_members(given := msgspec.Raw(data), _EVENT[self._path], self._asked)
        except (ValueError, RecursionError):
            return frame
        return frame if own is given else encode(bytes(own), type=name.decode() if name else None)

    def learn(self, frames: bytes) -> None:
        """Remembers what surrounds the text of the last of some valid events, as soon as something may repeat it."""
        self._unlearned = frames

    def _learn(self, frames: bytes) -> None:
        if frames.find(b"\n\n") != len(frames) - 2:
            frames = frames[frames.rfind(b"\n\n", 0, -2) + 2 :]
        if len(frames) <= _MOST_LEARNED and (found := _DIFFERS.search(frames)) is not None:
            start, end = found.span(1)
            number = _SEQUENCE.search(frames, end)
            middle, last = (b"", end) if number is None else (frames[end : number.start(1)], number.end(1))
            rest = len(frames) - last
            self.learned = frames[:start], middle, frames[last:], start + len(middle) + rest, start, -rest

    def without_text(self) -> bytes:
        """The event that was learned last, with an empty text; b"" if there is none, or it says more than its text."""
        if self._unlearned:
            self._learn(self._unlearned)
            self._unlearned = b""
        before, between, after, *_ = self.learned
        return before + between + after if before != _NOTHING[0] and b'"logprobs":{' not in after else b""

    def forget(self) -> None:
        """Nothing repeats, until the next event is learned."""
        self.learned, self._unlearned = _NOTHING, b""

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
            if not data.isascii():
                _check_text(data)
            event = self._decode(data)
            if name is not None and name != getattr(event, "type", "").encode():
                return False
            return self._takes(self, event)
        except (ValueError, RecursionError):
            return False

    @property
    def _is_finished(self) -> bool:
        return len(self._finished) >= self._least and self._started <= self._finished

    def _take_choices(self, event: Any) -> bool:
        for choice in event.choices:
            index, reason = choice.index or 0, choice.finish_reason
            if index >= self._most or (reason and reason not in self._reasons):
                return False
            (self._finished if reason else self._started).add(index)
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

    def __init__(self, path: str, request: Request | None = None) -> None:
        self._check = EventCheck(path, request)
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
            if first is not None and error_in(first) is None and not self._check.valid(self._check.own(first)):
                raise MalformedAnswer(MALFORMED_RESPONSE)
        return bool(frames) or len(self.received) > _MOST_BEGINNING


_MOST_BEGINNING = 1024 * 1024
"""Bytes. A Responses stream begins with an event that repeats the request's tools."""
