"""Finds token counts, output, the finish reason and the id in vLLM's answers, without parsing them.

The keys cannot be mistaken for text: inside a JSON string their quotes would be escaped. Contract: vLLM 0.29's chat and
text completions, `/v1/messages` and `/v1/responses`.

- The content of vLLM's answers: texts, tool calls, vectors. Reasoning is not part of it.
- Checks that an answer has the form that its request asked for: JSON, or a tool call.
- Corrects the end of a stream whose tool call was cut short.
"""

import base64
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec
from pydantic_core import from_json, to_json

from app.internal_api import EXTENDED_PATH
from app.sse import Decoder, Framer

_CALLS = rb'"tool_calls": ?\[\s*\{|"type": ?"(?:tool_use|function_call)"'
_VISIBLE_TEXT = rb'(?: |\\[nrt])*+(?:[^"\\ ]|\\[^nrt])'
_TEXT = re.compile(_VISIBLE_TEXT)


@dataclass(frozen=True, slots=True)
class OutputPatterns:
    """Patterns in a piece of an answer: of generated output (`token`), and of output that a reader sees (`visible`).

    Visible output is text other than white space, or a tool call. Reasoning is generated, and not visible.
    """

    token: re.Pattern[bytes]
    visible: re.Pattern[bytes]
    content: bytes = b"\0"
    """The bytes that nearly always precede the text. The default occurs in no JSON."""

    def is_visible(self, payload: bytes) -> bool:
        """Whether there is visible output in a piece of an answer."""
        at = payload.find(self.content)
        if at >= 0 and _TEXT.match(payload, at + len(self.content)):  # nearly always, and several times as fast
            return True
        return self.visible.search(payload) is not None


_PATTERNS = OutputPatterns(
    token=re.compile(rb'"(?:content|text|reasoning|reasoning_content|thinking|refusal)": ?"[^"]|' + _CALLS),
    visible=re.compile(rb'"(?:content|text|refusal)": ?"' + _VISIBLE_TEXT + rb"|" + _CALLS),
    content=b'"content":"',
)
# A stream of Responses events repeats the request in its first events, and names the kind of each delta.
_EVENTS = OutputPatterns(
    token=re.compile(rb"event: response\.\w+\.delta\n|" + _CALLS),
    visible=re.compile(
        rb'event: response\.(?:output_text|refusal)\.delta\n[^\n]*"delta": ?"' + _VISIBLE_TEXT + rb"|" + _CALLS
    ),
)

_WHOLE: Mapping[str, OutputPatterns] = dict.fromkeys(
    ("/v1/chat/completions", "/v1/completions", EXTENDED_PATH, "/v1/messages", "/v1/responses"), _PATTERNS
)
_STREAMED: Mapping[str, OutputPatterns] = {**_WHOLE, "/v1/responses": _EVENTS}


def output_patterns(path: str, *, stream: bool) -> OutputPatterns | None:
    """The patterns for answers of the engine's route `path`; None if it generates nothing."""
    return (_STREAMED if stream else _WHOLE).get(path)


_FINISH_KEY = b'"finish_reason":'
_WORD = re.compile(rb' ?"(\w{1,32})"')
_FINISH = re.compile(_FINISH_KEY + rb' ?"(\w{1,32})"')
_STOP = re.compile(rb'"stop_reason": ?"(\w{1,32})"')
_INCOMPLETE = re.compile(rb'"incomplete_details": ?\{"reason": ?"(\w{1,32})"')
_RESPONSE = re.compile(rb'"object": ?"response"')
_FUNCTION_CALL = re.compile(rb'"type": ?"function_call"')


def find_finish(payload: bytes) -> str | None:
    """The last finish reason in an answer, or in the end of a stream, in the engine's words."""
    last = payload.rfind(_FINISH_KEY)
    if last >= 0 and (word := _WORD.match(payload, last + len(_FINISH_KEY))):  # nearly always
        return word[1].decode()
    # `stop_reason` of chat and text completions is the stop string; it comes along with a `finish_reason`.
    for pattern in (_FINISH, _STOP, _INCOMPLETE):
        if found := pattern.findall(payload):
            return bytes(found[-1]).decode()
    if _RESPONSE.search(payload):
        return "tool_calls" if _FUNCTION_CALL.search(payload) else "stop"
    return None


_MOST_ID_BYTES = 256
_ID = re.compile(rb'"id": ?"([^"\\]{1,256})"')
_HEAD_BYTES = 512


def find_id(payload: bytes) -> bytes | None:
    """The id of an answer in UTF-8, from its beginning."""
    begin = 13 if payload.startswith(b'data: {"id":"') else 7 if payload.startswith(b'{"id":"') else 0
    end = payload.find(b'"', begin, begin + _MOST_ID_BYTES + 1)
    if 0 < begin < end and b"\\" not in (id := payload[begin:end]):  # nearly always, and twice as fast
        return id
    found = _ID.search(payload, 0, _HEAD_BYTES)
    return found[1] if found else None


MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that reading a malformed answer raises."""


class CollectedToolCall(NamedTuple):
    """A tool call; the arguments are JSON, as far as the model wrote it."""

    name: str
    arguments: str


@dataclass(slots=True)
class Content:
    """The texts of an answer, and its tool calls, under any keys that distinguish them."""

    texts: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))
    names: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))
    arguments: defaultdict[Any, str] = field(default_factory=lambda: defaultdict(str))

    @property
    def calls(self) -> list[CollectedToolCall]:
        """The tool calls, by choice and number."""
        return [CollectedToolCall(self.names[key], arguments) for key, arguments in sorted(self.arguments.items())]

    def add_message(self, message: Mapping[str, Any], key: Any) -> None:
        """A chat's message, or a delta of it."""
        self.texts[key] += message.get("content") or ""
        for number, call in enumerate(message.get("tool_calls") or ()):
            of_call = key, call.get("index", number)
            self.names[of_call] += call["function"].get("name") or ""
            self.arguments[of_call] += call["function"].get("arguments") or ""

    def add_call(self, key: Any, name: str, arguments: str) -> None:
        """A whole call, or the beginning of one."""
        self.names[key] += name
        self.arguments[key] += arguments


def content_of(answer: bytes, *, stream: bool) -> Content:
    """The content of a whole answer, or of a stream that has ended. Raises `MALFORMED`."""
    return _streamed(answer) if stream else _whole(from_json(answer))


def vectors_of(answer: bytes) -> list[Sequence[float]]:
    """The vectors of an answer to an embeddings request; of a partial answer, those that are complete. Raises
    `MALFORMED`.
    """
    found: list[Sequence[float]] = []
    for item in from_json(answer, allow_partial=True).get("data", ()):
        if (value := item.get("embedding")) is None:  # cut off
            break
        vector = array("f", base64.b64decode(value, validate=True)) if isinstance(value, str) else array("d", value)
        if found and len(vector) != len(found[0]):
            break
        found.append(vector)
    return found


def _whole(answer: Mapping[str, Any]) -> Content:
    content = Content()
    for number, choice in enumerate(answer.get("choices", ())):
        content.add_message(choice.get("message") or {"content": choice["text"]}, number)
    for number, block in enumerate(answer.get("content", ())):  # a message of Anthropic's
        if block["type"] == "tool_use":
            content.add_call(number, block.get("name") or "", to_json(block.get("input") or {}).decode())
        elif block["type"] == "text":
            content.texts[number] = block["text"]
    for number, item in enumerate(answer.get("output", ())):  # a response
        if item["type"] == "function_call":
            content.add_call(number, item.get("name") or "", item["arguments"])
        elif item["type"] == "message":
            content.texts[number] = "".join(part.get("text") or "" for part in item["content"])
    return content


def _streamed(answer: bytes) -> Content:
    content = Content()
    for event in _events(answer):
        if event.get("type") == "response.completed":
            return _whole(event["response"])
        for choice in event.get("choices", ()):
            content.add_message(choice.get("delta") or {"content": choice.get("text")}, choice["index"])
        if event.get("type") == "content_block_start" and event["content_block"]["type"] == "tool_use":
            content.add_call(event["index"], event["content_block"].get("name") or "", "")
        elif event.get("type") == "content_block_delta":
            delta = event["delta"]
            content.texts[event["index"]] += delta.get("text", "")
            if "partial_json" in delta:
                content.arguments[event["index"]] += delta["partial_json"]
    return content


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    for event in Decoder().feed(stream):
        if event.data != "[DONE]":
            yield from_json(event.data)


# It is parsed as a client would parse it, but not checked against the schema: that is the engine's task, and an answer
# that was cut short does not even parse.

_PROMISING = frozenset({"response_format", "structured_outputs", "text", "output_config", "tool_choice"})


class Promise(Enum):
    """The form that a request asks of its answer."""

    JSON = auto()
    CALL = auto()


def promised(body: Mapping[str, Any]) -> Promise | None:
    """The form that the vLLM request `body` asks for; None for most requests."""
    if _PROMISING.isdisjoint(body):
        return None
    if forces_a_call(body):
        return Promise.CALL
    kinds = (_at(body, "response_format", "type"), _at(body, "text", "format", "type"))
    if any(kind in ("json_schema", "json_object") for kind in kinds):
        return Promise.JSON
    schemas = (_at(body, "structured_outputs", "json"), _at(body, "output_config", "format", "schema"))
    return Promise.JSON if any(schema is not None for schema in schemas) else None


def forces_a_call(body: Mapping[str, Any]) -> bool:
    """Whether a vLLM request must be answered with a tool call."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice == "required"


def is_kept(promise: Promise, answer: bytes, *, stream: bool) -> bool:
    """Whether a whole answer of the engine's, or a stream that has ended, keeps the promise."""
    try:
        content = content_of(answer, stream=stream)
        texts, calls = list(content.texts.values()), list(content.arguments.values())
        for text in (*calls, *([] if promise is Promise.CALL else texts)):
            from_json(text or "{}")
    except MALFORMED:
        return False
    return bool(calls) or (promise is Promise.JSON and any(text.strip() for text in texts))


def _at(value: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


_USAGE = re.compile(rb'"usage": ?\{')
_COUNT = re.compile(rb'"(?:(?:prompt|input)|(completion|output))_tokens": ?(\d{1,18})(?!\d)')


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the engine reports them."""

    prompt_tokens: int
    completion_tokens: int


def find_usage(payload: bytes) -> Usage | None:
    """The highest counts in the usage objects of a piece of JSON, found without parsing the surrounding JSON.

    Counts only grow along a stream, so the highest are the last. The keys cannot be mistaken for text: inside a JSON
    string their quotes would be escaped.
    """
    if (found := _USAGE.search(payload)) is None:
        return None
    prompt = completion = 0
    for of_completion, count in _COUNT.findall(payload, found.start()):
        if of_completion:
            completion = max(completion, int(count))
        else:
            prompt = max(prompt, int(count))
    return Usage(prompt, completion)


def usage_of_answer(answer: bytes) -> Usage | None:
    """The counts of a whole answer: those of its last usage object, which is nearly always close to its end."""
    at = answer.rfind(b'"usage":')
    return (find_usage(answer[at:]) or find_usage(answer)) if at >= 0 else None


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


_LARGEST = 2**63 - 1
"""What reports and ledgers can hold."""


def max_tokens(body: Mapping[str, Any]) -> int | None:
    """The limit on the answer's tokens in the vLLM request `body`, if it has one; at most 64 bits of it."""
    for name in _LIMITS:
        if name in body:
            found: int | None = body[name]
            return None if found is None else max(-_LARGEST, min(found, _LARGEST))
    return None


# vLLM's streams show a call that is cut short as far as it got, but end as if it were complete, so the ends of all
# streams with calls are corrected. Contract: vLLM 0.29, `parser/abstract_parser.py`, `tool_parsers`,
# `entrypoints/openai/chat_completion`.


class CutCalls:
    """Corrects the end of one stream: a call whose arguments are not complete was cut short.

    vLLM's chats call that `tool_calls`, and its messages `tool_use`, unless the request names the tool.
    `is_forced`: a call without any arguments was cut, too. Where the model chose to call, some parsers send none for a
    function without parameters.
    """

    def __init__(self, path: str, *, is_forced: bool = True) -> None:
        self._is_forced = is_forced
        self._correct = self._message if path == "/v1/messages" else self._chat
        self._framer = Framer()
        self._arguments: defaultdict[int, str] = defaultdict(str)

    def feed(self, chunk: bytes) -> bytes:
        """The whole frames so far."""
        frames = self._framer.feed(chunk)
        if frames.find(b'"tool_') < 0 and frames.find(b'"input_json_delta"') < 0:
            return frames
        return b"".join(self._frame(frame + b"\n\n") for frame in frames.split(b"\n\n")[:-1])

    def _frame(self, frame: bytes) -> bytes:
        head, mark, data = frame.partition(b"data: ")
        try:
            event = from_json(data)
            is_changed = self._correct(event)
        except MALFORMED:
            return frame  # the stream's own check finds it
        return head + mark + to_json(event) + b"\n\n" if is_changed else frame

    def _chat(self, chunk: dict[str, Any]) -> bool:
        is_changed = False
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    self._arguments[choice["index"]] = ""
                self._arguments[choice["index"]] += (call.get("function") or {}).get("arguments") or ""
            if choice.get("finish_reason") == "tool_calls" and self._is_cut(choice["index"]):
                choice["finish_reason"], is_changed = "length", True
        return is_changed

    def _message(self, event: dict[str, Any]) -> bool:
        if event["type"] == "content_block_start":
            self._arguments.clear()
        elif event["type"] == "content_block_delta":
            self._arguments[0] += event["delta"].get("partial_json", "")
        elif event["type"] == "message_delta" and event["delta"].get("stop_reason") == "tool_use" and self._is_cut(0):
            event["delta"]["stop_reason"] = "max_tokens"
            return True
        return False

    def _is_cut(self, choice: int) -> bool:
        """Whether the last call's arguments are the beginning of a JSON object, and no more."""
        text = self._arguments[choice]
        try:
            from_json(text)
        except ValueError:
            return _is_a_beginning(text) if text else self._is_forced
        return False


def _is_a_beginning(text: str) -> bool:
    try:
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True


def cut_calls(path: str, body: Mapping[str, Any]) -> CutCalls | None:
    """The correction of the stream of a vLLM request whose answer may have calls; None for any other stream."""
    if path not in _MISNAMED or ("tools" not in body and "tool_choice" not in body):
        return None
    is_forced = forces_a_call(body)
    return CutCalls(path, is_forced=is_forced) if is_forced or _may_call(body) else None


def _may_call(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return bool(body.get("tools")) and (choice.get("type") if isinstance(choice, dict) else choice) != "none"


_MISNAMED = frozenset({"/v1/chat/completions", "/v1/messages"})
