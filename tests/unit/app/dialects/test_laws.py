"""What every stream of every dialect keeps, over one table of conversations and any chunking."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects import legacy
from app.dialects.anthropic.dialect import Anthropic
from app.dialects.base import Call, Dialect, ParseContext, Request, ServingContext, Stream
from app.dialects.databricks.dialect import Databricks
from app.dialects.friendli.dialect import Friendli
from app.dialects.openai.dialect import OpenAI
from app.dialects.tgi.dialect import TGI
from app.engine.usage import Usage
from app.errors import Broken, TimedOut
from app.sse import Decoder, Event, encode
from tests.support import engine_answers as completions
from tests.support.samples import CONFIG, CONTEXT, EOS, MODEL
from tests.support.samples import SERVED as UNKNOWN

SERVED = ServingContext(UNKNOWN.deployment, UNKNOWN.settings, MODEL)


def chunk(delta: dict[str, object], finish_reason: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return encode(compact({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **fields}))


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def typed(name: str, **fields: object) -> bytes:
    return encode(compact({"type": name, **fields}), type=name)


CALL = legacy.Call("chat", "/v1/chat/completions", {}, stream=True)
HIDDEN = legacy.Call("chat", "/v1/chat/completions", {}, stream=True, note="hide usage")
RESPONSES = legacy.Call("responses", "/v1/responses", {}, stream=True)
ONE_CALL = legacy.Call("responses", "/v1/responses", {}, stream=True, note="one call")
MESSAGES = legacy.Call("chat", "/v1/messages", {}, stream=True)

DONE = b"data: [DONE]\n\n"
TRICKY = 'a "choices":[] "usage":{ data: [DONE]\n\nevent: response.completed\n: \\ é😀'
USAGE = encode('{"id":"c","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}')
COUNTED = Usage(9, 3)
COUNTS = {"usage": {"input_tokens": 9, "output_tokens": 3}}
MESSAGE_START = typed("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}})
MESSAGE_DELTA = typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})


@dataclass(frozen=True)
class Conversation:
    name: str
    dialect: Dialect
    call: Any
    upstream: bytes
    client: bytes
    usage: Usage | None = COUNTED
    first: bytes = b""
    """The upstream's first frame, where it is not the client's."""
    refusal: str = "invalid_request_error"


def openai(name: str, *frames: bytes) -> Conversation:
    body = b"".join(frames)
    return Conversation(name, OpenAI(), CALL, body + USAGE + DONE, body + USAGE + DONE)


def databricks(name: str, asked: dict[str, object], upstream: bytes, client: bytes) -> Conversation:
    """A stream at `/serving-endpoints/chat/invocations`."""
    body = compact({**asked, "stream": True}).encode()
    request = Request("POST", "/x", body, params={"name": "chat"})
    call = Databricks().parse("invocations", request, ParseContext(CONFIG, CONTEXT.random))
    return Conversation(f"databricks, {name}", Databricks(), call, upstream, client, refusal="BAD_REQUEST")


def completion(text: str, finish_reason: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return encode(compact({"id": "c", "choices": [choice], **fields}))


def response(name: str, **fields: object) -> bytes:
    output = {"id": "r", "output": [], "status": name.removeprefix("response."), **fields}
    return typed(name, response=output)


def told(name: str, **fields: object) -> bytes:
    """The same in Databricks' words."""
    begun = response(name, **fields).removesuffix(b"}}\n\n")
    return begun + b"," + compact(ASKED).encode()[1:-1] + b"}}\n\n"


TEXT = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop"))

PROMPT = MODEL.encode(" hello")


def tgi(name: str, ids: list[int], *events: bytes, finish_reason: str = "length") -> Conversation:
    """The engine says `ids`, one in a chunk; `events` are what TGI's client gets for each."""
    choice = completions.choice(MODEL, PROMPT, ids, finish_reason=finish_reason)
    parts = completions.portions(MODEL, choice, [1] * len(ids))
    body = {"inputs": " hello", "parameters": {"details": True, "seed": 5}}
    call = TGI().parse("generate_stream", Request("POST", "/generate_stream", json.dumps(body).encode()), CONTEXT)
    first = completions.stream(parts[:1]).removesuffix(DONE)
    told = b"".join(events)
    counts = Usage(len(PROMPT), len(ids))
    return Conversation(name, TGI(), call, completions.stream(parts), told, counts, first, refusal='"validation"')


def token(index: int, id: int, text: str, whole: str | None = None, reason: str = "length") -> bytes:
    told = {"id": id, "text": text, "logprob": 0.5 - index, "special": id == 0}
    counts = {"generated_tokens": index, "prompt_tokens": len(PROMPT), "input_length": len(PROMPT)}
    details = None if whole is None else {"finish_reason": reason, **counts, "seed": 5}
    return encode(compact({"index": index, "token": told, "generated_text": whole, "details": details}))


def called(index: int) -> bytes:
    """A function call's events."""
    return typed("response.output_item.added", output_index=index, item={"type": "function_call"}) + typed(
        "response.function_call_arguments.delta", output_index=index, delta='{"type":"function_call"}'
    )


def completed(*output: dict[str, str]) -> bytes:
    return typed("response.completed", response={"output": output, **COUNTS})


FEWER = ({"type": "function_call"}, {"type": "message"})
CALLING = chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"error":'}}]})
ASKED: dict[str, object] = {
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

CONVERSATIONS = [
    openai("text", *TEXT),
    openai("text that looks like frames", chunk({"content": TRICKY}), chunk({}, "stop")),
    openai("tools", CALLING, TEXT[2]),
    openai("length", chunk({"content": "Hi"}), chunk({}, "length")),
    Conversation("usage not asked for", OpenAI(), HIDDEN, b"".join(TEXT) + USAGE + DONE, b"".join(TEXT) + DONE),
    Conversation("no usage", OpenAI(), HIDDEN, b"".join(TEXT) + DONE, b"".join(TEXT) + DONE, None),
    Conversation(
        "keep-alive comments and CRLF",
        OpenAI(),
        HIDDEN,
        (b": ping\n\n" + TEXT[0] + b": ping\n\n" + TEXT[1] + b": ping\n" + USAGE + DONE).replace(b"\n", b"\r\n"),
        TEXT[0] + TEXT[1] + DONE,
    ),
    Conversation(
        "responses",
        OpenAI(),
        RESPONSES,
        body := typed("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + typed("response.completed", response={"output": TRICKY, **COUNTS}),
        body,
    ),
    Conversation(
        "responses, one call",
        OpenAI(),
        ONE_CALL,
        typed("response.created") + called(0) + called(1) + completed(*FEWER, {"type": "function_call"}),
        typed("response.created") + called(0) + completed(*FEWER),
    ),
    Conversation(
        "messages",
        Anthropic(),
        MESSAGES,
        body := MESSAGE_START + typed("content_block_delta", text=TRICKY) + MESSAGE_DELTA + typed("message_stop"),
        body,
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
        told("response.created")
        + typed("response.output_text.delta", delta=TRICKY)
        + told("response.completed", **UNION),
    ),
]


def friendli(name: str, headers: dict[str, str], *events: bytes) -> Conversation:
    """The engine says é😀 and an end of sequence, a token in each chunk; `events` are what the client gets."""
    ids = [*MODEL.encode("é😀"), 0]
    choice = completions.choice(MODEL, PROMPT, ids, finish_reason="stop", top=None)
    upstream = completions.stream(completions.portions(MODEL, choice, [1] * len(ids)))
    body = json.dumps({"prompt": " hello", "seed": 5, "stream": True}).encode()
    call = Friendli().parse("completions", Request("POST", "/v1/completions", body, headers=headers), CONTEXT)
    return Conversation(name, Friendli(), call, upstream, b"".join(events), Usage(len(PROMPT), len(ids)))


SPLIT = list(zip(("é", "", "😀"), MODEL.encode("é😀"), strict=True))


def of_friendlis(choice: dict[str, object]) -> bytes:
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
        *(of_friendlis({"text": t, "token": id, "finish_reason": None, "logprobs": None}) for t, id in SPLIT),
        of_friendlis({"text": "", "finish_reason": "stop", "seed": 5}),
        DONE,
    ),
]
"""Of those who can tell a failure only by breaking the connection; their own tests say so."""

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
    call = conversation.call
    modern: Call = call.modern(conversation.dialect) if isinstance(call, legacy.Call) else call
    return modern.translation.open_stream(SERVED)


def is_last(event: Event) -> bool:
    finals = ("response.completed", "response.failed", "message_stop", "error")
    of_tgis = '"error_type":' in event.data or '"generated_text":"' in event.data
    of_friendlis = event.data.startswith('{"event":"complete"')
    return of_tgis or of_friendlis or event.data == "[DONE]" or event.type in finals


@every
@given(points=fractions)
def test_any_chunking_gives_the_client_the_same_bytes(conversation: Conversation, points: list[float]) -> None:
    stream = open_stream(conversation)
    told = b"".join(stream.feed(part) for part in parts(conversation.upstream, points)) + stream.close()
    assert told == conversation.client
    assert stream.usage == conversation.usage
    assert [is_last(event) for event in events(told)].count(True) == 1
    assert is_last(events(told)[-1])


@each
@given(point=st.floats(0, 1), points=fractions, how=st.sampled_from(["fail", "close"]))
def test_a_failure_after_any_prefix_is_well_formed_and_told_once(
    conversation: Conversation, point: float, points: list[float], how: str
) -> None:
    stream = open_stream(conversation)
    prefix = conversation.upstream[: int(point * len(conversation.upstream))]
    told = b"".join(stream.feed(part) for part in parts(prefix, points))
    told += stream.fail(TimedOut("too slow")) if how == "fail" else stream.close()
    assert [is_last(event) for event in events(told)].count(True) == 1
    assert is_last(events(told)[-1])
    if not told.endswith(conversation.client[-30:]):
        assert b"too slow" in told or b"before it was complete" in told
    assert _after_the_end(stream) == b""


def _after_the_end(stream: Stream) -> bytes:
    return stream.feed(DONE) + stream.close() + stream.fail(Broken("again"))


@each
def test_the_engines_error_event_is_told_in_the_dialects_words(conversation: Conversation) -> None:
    stream = open_stream(conversation)
    first = conversation.client.split(b"\n\n")[0] + b"\n\n"
    error = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}
    told = stream.feed((conversation.first or first) + encode(compact(error)) + DONE) + stream.close()
    assert told.startswith(first)
    (last, *_) = [event for event in events(told) if "too long" in event.data]
    assert "BadRequestError" not in told.decode()
    assert conversation.refusal in last.data or conversation.call.task == "responses"
    assert [is_last(event) for event in events(told)].count(True) == 1


@each
def test_an_internal_error_event_keeps_the_engines_words_inside(conversation: Conversation) -> None:
    stream = open_stream(conversation)
    error = {"error": {"message": "CUDA error at worker 3", "type": "InternalServerError", "code": 500}}
    told = stream.feed(encode(compact(error)) + DONE) + stream.close()
    assert b"CUDA" not in told
    assert b"failed while serving the request" in told
