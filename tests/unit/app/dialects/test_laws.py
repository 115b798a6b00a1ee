"""Rules for every stream of every dialect: one table of conversations, in any chunking."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.anthropic.dialect import Anthropic
from app.dialects.base import Call, Dialect, ParseContext, Request, ServingContext, Stream
from app.dialects.databricks.dialect import Databricks
from app.dialects.friendli.dialect import Friendli
from app.dialects.openai.dialect import OpenAI
from app.dialects.tgi.dialect import TGI
from app.engine.output import Usage
from app.errors import Broken, TimedOut
from app.sse import Decoder, Event, encode
from tests.support.clients.samples import CONFIG, CONTEXT, EOS, MODEL
from tests.support.clients.samples import SERVED as UNKNOWN
from tests.support.engine import engine_answers as completions

SERVED = ServingContext(UNKNOWN.deployment, UNKNOWN.settings, MODEL)


def chunk(delta: dict[str, object], finish_reason: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return encode(compact({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **fields}))


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def typed(name: str, **fields: object) -> bytes:
    return encode(compact({"type": name, **fields}), type=name)


DONE = b"data: [DONE]\n\n"
TRICKY = 'a "choices":[] "usage":{ data: [DONE]\n\nevent: response.completed\n: \\ é😀'
USAGE = encode('{"id":"c","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}')
COUNTED = Usage(9, 3)
COUNTS = {"usage": {"input_tokens": 9, "output_tokens": 3}}
CACHED = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def message_start(**cached: int) -> bytes:
    message: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "content": []}
    return typed("message_start", message={**message, "usage": {"input_tokens": 9, "output_tokens": 0, **cached}})


def message_delta(**cached: int) -> bytes:
    return typed(
        "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 3, **cached}
    )


MESSAGE_TEXT = typed("content_block_delta", index=0, delta={"type": "text_delta", "text": TRICKY})
MESSAGE_STOP = typed("message_stop")


@dataclass(frozen=True)
class Conversation:
    name: str
    call: Call
    upstream: bytes
    client: bytes
    usage: Usage | None = COUNTED
    first: bytes = b""
    """The engine's first frame, if it is not the client's."""
    error_type: str = "invalid_request_error"


def call(dialect: Dialect, operation: str, body: dict[str, object], **request: Any) -> Call:
    """The parsed call of a request."""
    content = Request("POST", "/x", compact(body).encode(), **request)
    return dialect.parse(operation, content, ParseContext(CONFIG, CONTEXT.random))


def openai(name: str, *frames: bytes) -> Conversation:
    body = b"".join(frames)
    return Conversation(name, SHOWN, body + USAGE + DONE, body + USAGE + DONE)


def databricks(name: str, body: dict[str, object], upstream: bytes, client: bytes) -> Conversation:
    """A stream at `/serving-endpoints/chat/invocations`."""
    parsed = call(Databricks(), "invocations", {**body, "stream": True}, params={"name": "chat"})
    return Conversation(f"databricks, {name}", parsed, upstream, client, error_type="BAD_REQUEST")


def completion(text: str, finish_reason: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return encode(compact({"id": "c", "choices": [choice], **fields}))


STATUSES = {"response.created": "in_progress", "response.completed": "completed", "response.incomplete": "incomplete"}


def response(name: str, **fields: object) -> bytes:
    output = {"id": "r", "output": [], "status": STATUSES[name], **fields}
    return typed(name, response=output)


def databricks_response(name: str, **fields: object) -> bytes:
    """The same stream in Databricks' dialect."""
    begun = response(name, **fields).removesuffix(b"}}\n\n")
    return begun + b"," + compact(REQUEST_FIELDS).encode()[1:-1] + b"}}\n\n"


OPENAIS: dict[str, object] = {
    "error": None,
    "store": False,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
}
"""Fields that vLLM's response objects lack, or have changed."""


def openai_response(name: str, **fields: object) -> bytes:
    """The same stream in OpenAI's dialect."""
    return response(name, **fields, **OPENAIS)


TEXT = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop"))

PROMPT = MODEL.encode(" hello")


def tgi(name: str, ids: list[int], *events: bytes, finish_reason: str = "length") -> Conversation:
    """The engine generates `ids`, one per chunk; `events` are what TGI's client gets for each."""
    choice = completions.choice(MODEL, PROMPT, ids, finish_reason=finish_reason)
    parts = completions.portions(MODEL, choice, [1] * len(ids))
    parsed = call(TGI(), "generate_stream", {"inputs": " hello", "parameters": {"details": True, "seed": 5}})
    usage = Usage(len(PROMPT), len(ids))
    first = completions.stream(parts[:1]).removesuffix(DONE)
    upstream, client = completions.stream(parts), b"".join(events)
    return Conversation(name, parsed, upstream, client, usage, first, error_type='"validation"')


def token(index: int, id: int, text: str, whole: str | None = None, reason: str = "length") -> bytes:
    fields = {"id": id, "text": text, "logprob": 0.5 - index, "special": id == 0}
    counts = {"generated_tokens": index, "prompt_tokens": len(PROMPT), "input_length": len(PROMPT)}
    details = None if whole is None else {"finish_reason": reason, **counts, "seed": 5}
    return encode(compact({"index": index, "token": fields, "generated_text": whole, "details": details}))


def called(index: int) -> bytes:
    """A function call's events."""
    return typed("response.output_item.added", output_index=index, item={"type": "function_call"}) + typed(
        "response.function_call_arguments.delta", output_index=index, delta='{"type":"function_call"}'
    )


def completed(*output: dict[str, str], **fields: object) -> bytes:
    return typed("response.completed", response={"status": "completed", "output": output, **COUNTS, **fields})


FEWER = ({"type": "function_call"}, {"type": "message"})
CALLING = chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"error":'}}]})
REQUEST_FIELDS: dict[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
    "error": None,
    "store": False,
}
SUMS = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
UNION = {"usage": {**COUNTS["usage"], "prompt_tokens": 9, "completion_tokens": 3}}
CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, object] = {"model": "chat", "stream": True}
HIDDEN = call(OpenAI(), "chat", {**CHAT, **STREAM})
SHOWN = call(OpenAI(), "chat", {**CHAT, **STREAM, "stream_options": {"include_usage": True}})
RESPONSES = call(OpenAI(), "responses", {**STREAM, "input": "hi"})
ONE_CALL = call(OpenAI(), "responses", {**STREAM, "input": "hi", "parallel_tool_calls": False})
MESSAGES = call(Anthropic(), "messages", {**CHAT, **STREAM, "max_tokens": 5})

CONVERSATIONS = [
    openai("text", *TEXT),
    openai("text that looks like frames", chunk({"content": TRICKY}), chunk({}, "stop")),
    openai("tools", CALLING, TEXT[2]),
    openai("length", chunk({"content": "Hi"}), chunk({}, "length")),
    Conversation("usage not asked for", HIDDEN, b"".join(TEXT) + USAGE + DONE, b"".join(TEXT) + DONE),
    Conversation("no usage", HIDDEN, b"".join(TEXT) + DONE, b"".join(TEXT) + DONE, None),
    Conversation(
        "keep-alive comments and CRLF",
        HIDDEN,
        (b": ping\n\n" + TEXT[0] + b": ping\n\n" + TEXT[1] + b": ping\n" + TEXT[2] + USAGE + DONE).replace(
            b"\n", b"\r\n"
        ),
        b"".join(TEXT) + DONE,
    ),
    Conversation(
        "responses",
        RESPONSES,
        response("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + response("response.completed", **COUNTS),
        openai_response("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + openai_response("response.completed", **COUNTS),
    ),
    Conversation(
        "responses, one call",
        ONE_CALL,
        response("response.created") + called(0) + called(1) + completed(*FEWER, {"type": "function_call"}),
        openai_response("response.created") + called(0) + completed(*FEWER, **OPENAIS),
    ),
    Conversation(
        "messages",
        MESSAGES,
        message_start() + MESSAGE_TEXT + message_delta() + MESSAGE_STOP,
        message_start(**CACHED) + MESSAGE_TEXT + message_delta(**CACHED) + MESSAGE_STOP,
        first=message_start(**CACHED),
    ),
    tgi(
        "tokens that split characters",
        MODEL.encode("é😀"),
        token(1, MODEL.encode("é")[0], "é"),
        token(2, MODEL.encode("😀")[0], ""),
        token(3, MODEL.encode("😀")[1], "😀", "é😀"),
    ),
    tgi(
        "an end of sequence",
        [*MODEL.encode("hello"), 0],
        token(1, MODEL.encode("hello")[0], "hello"),
        token(2, 0, EOS, "hello", "eos_token"),
        finish_reason="stop",
    ),
    databricks(
        "usage on the last choice",
        CHAT,
        b": ping\n\n" + b"".join(TEXT) + USAGE + DONE,
        TEXT[0] + TEXT[1] + chunk({}, "stop", usage=SUMS) + DONE,
    ),
    databricks(
        "usage apart",
        {**CHAT, "stream_options": {"include_usage": True}},
        body := chunk({"content": TRICKY}) + TEXT[2] + USAGE + DONE,
        body,
    ),
    databricks("tools", CHAT, CALLING + TEXT[2] + USAGE + DONE, CALLING + chunk({}, "stop", usage=SUMS) + DONE),
    databricks(
        "a suffix",
        {"prompt": "p", "suffix": TRICKY, "max_tokens": 3},
        completion("Hi") + completion(" there", "length") + USAGE + DONE,
        completion("Hi") + completion(" there" + TRICKY, "length", usage=SUMS) + DONE,
    ),
    databricks(
        "responses",
        {"input": "hi"},
        response("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + response("response.completed", **COUNTS),
        databricks_response("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + databricks_response("response.completed", **UNION),
    ),
]


def friendli(name: str, headers: dict[str, str], *events: bytes) -> Conversation:
    """The engine generates é😀 and an end of sequence, a token per chunk; `events` are what the client gets."""
    ids = [*MODEL.encode("é😀"), 0]
    choice = completions.choice(MODEL, PROMPT, ids, finish_reason="stop", top=None)
    upstream = completions.stream(completions.portions(MODEL, choice, [1] * len(ids)))
    parsed = call(Friendli(), "completions", {"prompt": " hello", "seed": 5, "stream": True}, headers=headers)
    return Conversation(name, parsed, upstream, b"".join(events), Usage(len(PROMPT), len(ids)))


SPLIT = list(zip(("é", "", "😀"), MODEL.encode("é😀"), strict=True))


def friendli_chunk(choice: dict[str, object]) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return encode(compact({**head, "choices": [{"index": 0, **choice}]}))


BREAKING = [
    friendli(
        "Friendli, classic",
        {},
        *(encode(compact({"event": "token_sampled", "index": 0, "text": t, "token": id})) for t, id in SPLIT),
        encode(
            compact(
                {
                    "event": "complete",
                    "choices": [{"index": 0, "seed": 5, "text": "é😀", "tokens": [id for _, id in SPLIT]}],
                    "usage": {"prompt_tokens": len(PROMPT), "completion_tokens": 3, "total_tokens": len(PROMPT) + 3},
                }
            )
        ),
    ),
    friendli(
        "Friendli, modern",
        {"user-agent": "friendli-core"},
        *(friendli_chunk({"text": t, "token": id, "finish_reason": None, "logprobs": None}) for t, id in SPLIT),
        friendli_chunk({"text": "", "finish_reason": "stop", "seed": 5}),
        DONE,
    ),
]
"""Dialects without error events: a failure breaks the connection, as their own tests show."""

each = pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.name)
every = pytest.mark.parametrize("conversation", [*CONVERSATIONS, *BREAKING], ids=lambda c: c.name)
fractions = st.lists(st.floats(0, 1), max_size=10)


def parts(data: bytes, points: list[float]) -> list[bytes]:
    edges = sorted({0, len(data), *(int(point * len(data)) for point in points)})
    return [data[a:b] for a, b in pairwise(edges)]


def events(data: bytes) -> list[Event]:
    assert data == b"" or data.endswith(b"\n\n")
    return Decoder().feed(data)


def open_stream(conversation: Conversation) -> Stream:
    return conversation.call.translation.open_stream(SERVED)


def is_last(event: Event) -> bool:
    finals = ("response.completed", "response.failed", "message_stop", "error")
    tgi = '"error_type":' in event.data or '"generated_text":"' in event.data
    friendli = event.data.startswith('{"event":"complete"')
    failed = event.data.startswith(('{"error":', '{"error_code":'))
    return tgi or friendli or failed or event.data == "[DONE]" or event.type in finals


def ends_once(sent: bytes) -> bool:
    """Whether a stream has one last event, or the two with which OpenAI's server ends a failed response."""
    found = events(sent)
    end = found[-2:] if [event.type for event in found[-2:]] == ["error", "response.failed"] else found[-1:]
    return bool(found) and [event for event in found if is_last(event)] == end


@every
@given(points=fractions)
def test_any_chunking_gives_the_client_the_same_bytes(conversation: Conversation, points: list[float]) -> None:
    stream = open_stream(conversation)
    sent = b"".join(stream.feed(part) for part in parts(conversation.upstream, points)) + stream.close()
    assert sent == conversation.client
    assert stream.usage == conversation.usage
    assert ends_once(sent)


@each
@given(point=st.floats(0, 1), points=fractions, how=st.sampled_from(["fail", "close"]))
def test_a_failure_after_any_prefix_is_well_formed_and_sent_once(
    conversation: Conversation, point: float, points: list[float], how: str
) -> None:
    stream = open_stream(conversation)
    prefix = conversation.upstream[: int(point * len(conversation.upstream))]
    sent = b"".join(stream.feed(part) for part in parts(prefix, points))
    sent += stream.fail(TimedOut("too slow")) if how == "fail" else stream.close()
    assert ends_once(sent)
    if not sent.endswith(conversation.client[-30:]):
        assert b"too slow" in sent or b"before it was complete" in sent
    assert _after_the_end(stream) == b""


def _after_the_end(stream: Stream) -> bytes:
    return stream.feed(DONE) + stream.close() + stream.fail(Broken("again"))


@each
def test_the_engines_error_event_has_the_dialects_form(conversation: Conversation) -> None:
    stream = open_stream(conversation)
    first = conversation.client.split(b"\n\n")[0] + b"\n\n"
    error = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}
    sent = stream.feed((conversation.first or first) + encode(compact(error)) + DONE) + stream.close()
    assert sent.startswith(first)
    (last, *_) = [event for event in events(sent) if "too long" in event.data]
    assert "BadRequestError" not in sent.decode()
    assert conversation.error_type in last.data or conversation.call.task == "responses"
    assert ends_once(sent)


@each
def test_an_internal_error_event_does_not_leak_the_engines_message(conversation: Conversation) -> None:
    stream = open_stream(conversation)
    error = {"error": {"message": "CUDA error at worker 3", "type": "InternalServerError", "code": 500}}
    sent = stream.feed(encode(compact(error)) + DONE) + stream.close()
    assert b"CUDA" not in sent
    assert b"failed while serving the request" in sent
