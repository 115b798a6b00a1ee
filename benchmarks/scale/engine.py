"""An engine that uses almost no CPU, in its own process. It answers every route of vLLM's that the benchmarks call. At
each step every stream gets a token, as with a real engine, and each token has its time of sending (`created`, in
nanoseconds of the monotonic clock, which the machine's processes share). Whole answers are canned.

    python -m benchmarks.scale.engine PORT STEP_MS
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

import uvloop

from benchmarks.load import HOST
from benchmarks.relay import HEAD

EMBEDDINGS, DIMENSIONS = 2048, 1024
ANSWER_BYTES = 5_000_000

_TOKEN = (
    b'data: {"id":"chatcmpl-9f6ab9c27fba4c6d8a0b8e9bd84b1e5f","object":"chat.completion.chunk","created":%d,'
    b'"model":"tiny-llama","choices":[{"index":0,"delta":{"content":" river"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
_END = (_TOKEN % 1795266774).replace(b'"finish_reason":null', b'"finish_reason":"stop"') + (
    b'data: {"id":"chatcmpl-9f6ab9c27fba4c6d8a0b8e9bd84b1e5f","object":"chat.completion.chunk","created":1795266774,'
    b'"model":"tiny-llama","choices":[],"usage":{"prompt_tokens":35,"total_tokens":99,"completion_tokens":64}}\n\n'
    b"data: [DONE]\n\n"
)
_MESSAGE_TOKEN = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" river"}}\n\n'
)
_MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"content":[],"model":"tiny-llama","stop_reason":null,"usage":{"input_tokens":35,"output_tokens":0}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
)
_MESSAGE_END = (
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    b'"usage":{"input_tokens":35,"output_tokens":64}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_STREAMED = re.compile(rb'"stream": ?true')
_USAGE = {"prompt_tokens": 35, "total_tokens": 99, "completion_tokens": 64}


def chat_answer(size: int = 0) -> bytes:
    """A whole chat answer; with a `size`, in bytes, one with as many log-probabilities as it takes."""
    entry = {"token": " river", "logprob": -0.7314, "bytes": [32, 114, 105, 118, 101, 114]}
    one = {**entry, "top_logprobs": [{**entry, "logprob": -1.0 - place} for place in range(5)]}
    count = size // len(_json(one))
    message = {"role": "assistant", "content": " river" * max(1, count)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    if count:
        choice["logprobs"] = {"content": [one] * count}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny-llama"}
    return _json({**body, "choices": [choice], "usage": _USAGE})


def message_answer() -> bytes:
    """A whole answer of `/v1/messages`."""
    content = [{"type": "text", "text": " river"}]
    body = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "model": "tiny-llama"}
    usage = {"input_tokens": 35, "output_tokens": 1}
    return _json({**body, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage})


def embeddings_answer(count: int) -> bytes:
    """Of a batch of so many."""
    vector = [round(-0.5 + place / DIMENSIONS, 9) for place in range(DIMENSIONS)]
    data = [{"index": index, "object": "embedding", "embedding": vector} for index in range(count)]
    body = {"id": "embd-1", "object": "list", "created": 1, "model": "tiny-llama", "data": data}
    return _json({**body, "usage": {"prompt_tokens": 35, "total_tokens": 35, "completion_tokens": 0}})


def _json(value: object) -> bytes:
    """Compact, as vLLM's."""
    return json.dumps(value, separators=(",", ":")).encode()


class Answers:
    """The whole answers, created once."""

    def __init__(self) -> None:
        self._small, self._large = _whole(chat_answer()), _whole(chat_answer(ANSWER_BYTES))
        self._message = _whole(message_answer())
        self._embedding, self._embeddings = (_whole(embeddings_answer(count)) for count in (1, EMBEDDINGS))

    def of(self, path: bytes, body: bytes) -> bytes:
        """The HTTP response for a request without `stream`."""
        if path == b"/v1/embeddings":
            return self._embeddings if b'"input":["' in body else self._embedding
        if path == b"/v1/messages":
            return self._message
        return self._large if b'"logprobs":true' in body else self._small


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Connection(asyncio.Protocol):
    """One connection. `streams` are the running ones, with the number of tokens that each still has to send."""

    def __init__(self, streams: dict["Connection", int], answers: Answers) -> None:
        self._streams, self._answers = streams, answers
        self._parts: list[bytes] = []
        self._missing = 0
        self.is_message = False

    def connection_made(self, transport: Any) -> None:  # uvloop's transport is not an asyncio.Transport by type
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            data = b"".join([*self._parts, data])
            self._parts = []
            head, found, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if found and length is not None:
                self._missing = int(length[1]) - len(body)
        else:
            self._missing -= len(data)
        self._parts.append(data)
        if self._missing == 0 and b"\r\n\r\n" in self._parts[0]:
            request, self._parts = b"".join(self._parts), []
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        path = request.split(b" ", 2)[1]
        if _STREAMED.search(request) and (tokens := _TOKENS.search(request)):
            self.is_message = path == b"/v1/messages"
            head = HEAD + b"\r\n"
            self.transport.write(head + _chunk(_MESSAGE_START) if self.is_message else head)
            self._streams[self] = int(tokens[1])
            return
        self.transport.write(self._answers.of(path, request))


def step(streams: dict[Connection, int]) -> None:
    """Every stream sends one token, or its end."""
    last = b"0\r\n\r\n"
    ended, message_ended = _chunk(_END) + last, _chunk(_MESSAGE_END) + last
    message_token = _chunk(_MESSAGE_TOKEN)
    for stream, tokens in list(streams.items()):
        if tokens:
            streams[stream] = tokens - 1
            stream.transport.write(message_token if stream.is_message else _chunk(_TOKEN % time.perf_counter_ns()))
        else:
            del streams[stream]
            stream.transport.write(message_ended if stream.is_message else ended)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, step_s: float) -> None:
    """Runs until the process ends."""
    streams: dict[Connection, int] = {}
    answers = Answers()
    await asyncio.get_running_loop().create_server(lambda: Connection(streams, answers), HOST, port, backlog=1024)
    while True:
        await asyncio.sleep(step_s)
        step(streams)


def main(arguments: Iterable[str]) -> None:
    """The command line."""
    port, step_ms = arguments
    uvloop.run(serve(int(port), float(step_ms) / 1000))


if __name__ == "__main__":
    main(sys.argv[1:])
