"""No bytes of a deployment hold the event loop for more than 50 ms, however many of them come, and whoever reads them.

Every run tries each stream with one of its readers, in turn; nightly runs all combinations.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, product

import pytest

from app.internal_api import CONTINUATION_HEADER, CONTINUATION_MARKED
from app.sse import MOST_EVENT
from tests.conftest import NIGHTLY
from tests.router.hostile.engine import HostileEngine, compact
from tests.router.hostile.law import HELD_S, MEASUREMENTS, serving
from tests.router.hostile.measured import MeasuredRouter
from tests.router.hostile.strategies import CHOICE, HI

MANY = 3 * 1024 * 1024
TOO_MANY = 26 * 1024 * 1024
LONG_TEXT = 512 * 1024
PIECE = 64 * 1024

_CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [CHOICE]}
_TEXT_DELTA = {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0}
_RESPONSE = {**_TEXT_DELTA, "delta": "a", "sequence_number": 1, "logprobs": []}
_MESSAGE = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_FORCED = {"tools": [_TOOL], "tool_choice": "required"}
_CHAT = {"messages": HI, "stream": True}

READERS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "openai, chat": ("/v1/chat/completions", {"model": "chat", **_CHAT}, _CHUNK),
    "openai, a call that may be cut": ("/v1/chat/completions", {"model": "chat", **_CHAT, **_FORCED}, _CHUNK),
    "openai, a call that is collected": (
        "/v1/chat/completions",
        {"model": "chat", "messages": HI, "max_tokens": 3, **_FORCED},
        _CHUNK,
    ),
    "openai, responses": ("/v1/responses", {"model": "chat", "input": HI, "stream": True}, _RESPONSE),
    "anthropic": ("/v1/messages", {"model": "chat", "max_tokens": 3, **_CHAT}, _MESSAGE),
    "azure": ("/chat/completions?api-version=2024-05-01-preview", _CHAT, _CHUNK),
    "databricks": ("/serving-endpoints/chat/invocations", _CHAT, _CHUNK),
    "databricks, completions": ("/serving-endpoints/chat/invocations", {"prompt": "a", "stream": True}, _CHUNK),
    "tgi": ("/generate_stream", {"inputs": "hi", "parameters": {"details": True}}, _CHUNK),
    "tgi, chat": ("/tgi/chat/v1/chat/completions", _CHAT, _CHUNK),
    "friendli": ("/serverless/v1/completions", {"model": "chat", "prompt": "hi", "stream": True}, _CHUNK),
    "friendli, chat": ("/dedicated/v1/chat/completions", {"model": "chat", **_CHAT}, _CHUNK),
}
"""Who reads a stream of a deployment: the client's path, its body, and an event of the deployment's."""


def repeated(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


def with_items(event: bytes, member: bytes, item: bytes) -> bytes:
    """An event with a member of as many items as fit."""
    return b'%b,"%b":[%b]}\n\n' % (event[:-3], member, repeated(item + b",", MOST_EVENT - 4096)[:-1])


def with_text(event: bytes, piece: bytes) -> bytes:
    """An event with a text as long as the longest answers."""
    return event.replace(b'"a"', b'"%b"' % repeated(piece, LONG_TEXT))


STREAMS: dict[str, Callable[[bytes], bytes]] = {
    "comments": lambda event: repeated(b":\n\n", MANY),
    "comments of one event": lambda event: repeated(b":\n", MANY),
    "events that repeat": lambda event: repeated(event, MANY),
    "events of two kinds": lambda event: repeated(event + event.replace(b'"a"', b'"\\u00e9"'), MANY),
    "comments between events": lambda event: repeated(b":\n" + event, MANY),
    "empty events": lambda event: repeated(b"data:\n\n", MANY),
    "empty lines": lambda event: b"\n" * MANY,
    "carriage returns": lambda event: b"\r" * MANY,
    "lines of data": lambda event: repeated(b"data:\n", MANY),
    "no line": lambda event: b"a" * TOO_MANY,
    "data without an end": lambda event: b"data: " + b"[" * TOO_MANY,
    "many choices": lambda event: with_items(event, b"choices", b"{}"),
    "another member": lambda event: with_items(event, b"x", b"[]"),
    "usage": lambda event: with_items(event, b"usage", b"{}"),
    "a response": lambda event: with_items(event, b"response", b"{}"),
    "a long text": lambda event: with_text(event, b"a"),
    "escapes": lambda event: with_text(event, b"\\n"),
    "signs": lambda event: with_items(event, b"usage", b'""'),
    "numbers": lambda event: with_items(event, b"logprobs", b"1"),
}
"""The bytes of a deployment after a valid event, which they may repeat."""

MARKS = ("", CONTINUATION_MARKED)
CASES = (
    [*product(STREAMS, READERS, MARKS)]
    if NIGHTLY
    else [(name, reader, mark) for name, reader, mark in zip(STREAMS, cycle(READERS), cycle(MARKS), strict=False)]
)


@pytest.fixture(scope="module")
def engine() -> HostileEngine:
    return HostileEngine()


@pytest.fixture(scope="module")
def router(engine: HostileEngine) -> Iterator[MeasuredRouter]:
    with serving(4 * 1024**2, engine) as router:
        yield router


@pytest.mark.parametrize(("name", "reader", "mark"), CASES)
def test_no_stream_holds_the_event_loop(
    engine: HostileEngine, router: MeasuredRouter, name: str, reader: str, mark: str
) -> None:
    path, body, event = READERS[reader]
    first = b"data: " + compact(event) + b"\n\n"
    rest = STREAMS[name](first)
    engine.pieces = [first, *(rest[at : at + PIECE] for at in range(0, len(rest), PIECE))]
    engine.extra = {CONTINUATION_HEADER: mark} if mark else {}
    headers = [(b"content-type", b"application/json")]
    for _ in range(MEASUREMENTS):
        reply, cost = router.measured("POST", path, compact(body), headers)
        if cost.held_s <= HELD_S:
            break
    assert cost.held_s <= HELD_S, (cost, reply.status, reply.body[-300:])
