"""A client of marked streams, as the router is: it reads groups of events, and continues after any of them."""

import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.internal_api import (
    CONTINUATION_HEADER,
    CONTINUATION_MARKED,
    CONTINUATION_NEW,
    INTERNAL_KEY_HEADER,
    MARK_HAND_OVER,
    MARK_NONE,
)
from tests.support.engine.model_application import ENGINE_KEY

_MARK = re.compile(rb":t ([\d,]*)\n\n")
_ITS_OWN = frozenset({"created", "created_at", "completed_at", "cached_tokens"})
"""Fields in which two runs differ: the time, and what the engine had in its cache."""


@dataclass
class Group:
    """Events, and the ids of their tokens."""

    events: list[Any]
    tokens: list[int]


@dataclass
class Answer:
    """A stream's groups. `rest`: what followed the last mark."""

    status: int
    is_marked: bool
    groups: list[Group] = field(default_factory=list)
    rest: bytes = b""
    is_handed_over: bool = False
    bodies: int = 0

    @property
    def tokens(self) -> list[int]:
        return [token for group in self.groups for token in group.tokens]

    @property
    def events(self) -> list[Any]:
        return [event for group in self.groups for event in group.events]

    def after(self, count: int) -> list[Any]:
        """The events after those of the first `count` tokens."""
        events: list[Any] = []
        for group in self.groups:
            if count >= 0:
                count -= len(group.tokens)
            if count < 0:
                events += group.events
        return events


def asked(
    http: httpx.Client, path: str, body: Mapping[str, Any], output: Sequence[int] | None = None, id: str = "r-1"
) -> Answer:
    """The answer to a request for marks; with `output`, the rest after these tokens."""
    header = CONTINUATION_NEW if output is None else str(len(output))
    return sent(http, path, json.dumps(body).encode() + array("I", output or ()).tobytes(), header, id)


def sent(http: httpx.Client, path: str, content: bytes, header: str | None, id: str = "r-1") -> Answer:
    """The answer to these bytes. `header` None: no marks."""
    headers = {INTERNAL_KEY_HEADER: ENGINE_KEY, "content-type": "application/json", "x-request-id": id}
    if header is not None:
        headers[CONTINUATION_HEADER] = header
    with http.stream("POST", path, content=content, headers=headers) as response:
        answer = Answer(response.status_code, response.headers.get(CONTINUATION_HEADER) == CONTINUATION_MARKED)
        text = b"".join(response.iter_raw())
    if answer.is_marked:
        read(text, answer)
    else:
        answer.rest = text
    return answer


def read(text: bytes, answer: Answer) -> None:
    """Adds the groups of a stream's bytes."""
    begin = 0
    for mark in _MARK.finditer(text):
        tokens = [int(token) for token in mark[1].split(b",") if token]
        answer.groups.append(Group(list(events(text[begin : mark.start()])), tokens))
        begin = mark.end()
    answer.rest = text[begin:]
    if answer.rest in (MARK_HAND_OVER, MARK_NONE):
        answer.is_handed_over, answer.rest = answer.rest == MARK_HAND_OVER, b""


def events(text: bytes) -> Iterator[Any]:
    """The data of each event, without `_ITS_OWN` and the last digits of log-probabilities."""
    for frame in text.split(b"\n\n"):
        for line in frame.splitlines():
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ")
                yield "[DONE]" if data == b"[DONE]" else _comparable(json.loads(data))


def joined(events: Sequence[Any]) -> list[Any]:
    """A completion's events, its text as one: vLLM merges what its API layer could not read in time."""
    texts = [event["choices"][0]["text"] for event in events if event != "[DONE]" and event["choices"]]
    ends = [event for event in events if event == "[DONE]" or not event["choices"]]
    reasons = [event["choices"][0]["finish_reason"] for event in events if event != "[DONE]" and event["choices"]]
    return ["".join(texts), reasons[-1:], *ends]


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            return {name: _comparable(item) for name, item in value.items() if name not in _ITS_OWN}
        case list():
            return [_comparable(item) for item in value]
        case float():
            return round(value, 3)
    return value
