"""Finds token counts, output, the finish reason and the id in vLLM's answers, without parsing them.

The keys cannot be mistaken for text: inside a JSON string their quotes would be escaped. Contract: vLLM 0.29's chat and
text completions, `/v1/messages` and `/v1/responses`.

Checks that an answer has the form that its request asked for: JSON, or a tool call.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec
from pydantic_core import from_json

from app.engine.collectors import MALFORMED, content_of, forces_a_call
from app.internal_api import EXTENDED_PATH

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
