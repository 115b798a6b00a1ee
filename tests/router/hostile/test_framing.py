"""Deployments that answer with anything.

The client gets an orderly end, or a broken connection where its dialect has no other; no client hangs, and no defect
appears.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.router.hostile.budget import attempt
from tests.router.hostile.engine import compact
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import CHOICE, HI, VALID, mutated

SHARE = 0.1

BREAKS_OFF = {"azure", "friendli", "tgi"}
"""Dialects without an error event: a broken stream closes the connection."""

POSTS = [
    (path, dialects, {**body, "stream": True} if stream and "/embeddings" not in path else body)
    for path, dialects, body in VALID
    for stream in (False, True)
    if "tokens" not in path
]

_CHAT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
_CHUNK = {**_CHAT, "choices": [CHOICE], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
_EVENT = {"type": "response.output_text.delta", "delta": "a", "sequence_number": 1, "response": {"output": []}}

_FRAMES = st.one_of(
    st.sampled_from([_CHAT, _CHUNK, _EVENT, [], 1, None, {"error": {}}, {"error": {"message": 1, "code": []}}]),
    mutated(_CHUNK),
    mutated(_EVENT),
).map(lambda value: b"data: " + compact(value) + b"\n\n")

_PIECES = st.one_of(
    _FRAMES,
    _FRAMES,
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"data: [DONE]\n\n",
            b"data: [DONE]\r\n\r\n",
            b"data: ",
            b"\n\n",
            b"\r",
            b"\n",
            b": comment\n\n",
            b"event: error\n",
            b"event: message_stop\ndata: {}\n\n",
            b"id: 1\nretry: 1\n",
            b"data: \xff\xfe\n\n",
            b'data: "\\ud800"\n\n',
            b'data: {"error": ' + b"[" * 500 + b"\n\n",
            b"data: " + b"[" * 500 + b"]" * 500 + b"\n\n",
            b'data: {"usage":{"prompt_tokens":' + b"9" * 5_000 + b"}}\n\n",
            b'data: {"choices":[{"index":' + b"9" * 400 + b"}]}\n\n",
            b"x" * 100_000,
            b"",
        ]
    ),
)


def test_no_stream_of_a_deployment_breaks_the_router(hostile: HostileRig) -> None:
    def check(case: tuple[tuple[str, set[str], dict[str, Any]], Sequence[bytes], str]) -> None:
        (path, dialects, body), pieces, hostile.engine.media_type = case
        hostile.engine.pieces = pieces
        reply = hostile.client.request("POST", path, compact(body))
        assert not hostile.defects.found, hostile.defects.found.pop()
        assert reply.complete or (dialects & BREAKS_OFF and reply.status == 200), (reply, dialects)
        if reply.complete and reply.headers["content-type"].startswith("text/event-stream"):
            assert reply.body[-2:] in (b"", b"\n\n"), "half an event"
        assert reply.status in (200, 400, 404, 422, 424, 500, 502, 503), reply

    media_types = st.sampled_from(["text/event-stream", "application/json", "text/plain"])
    attempt(st.tuples(st.sampled_from(POSTS), st.lists(_PIECES, max_size=6), media_types), SHARE, check)


def test_an_answer_that_is_no_json_is_the_deployments_fault(hostile: HostileRig) -> None:
    """A lookup's answer too, which the client does not know about."""
    hostile.engine.pieces, hostile.engine.media_type = [b"garbage"], "application/json"
    for path, body in (
        ("/completions?api-version=2024-05-01-preview", {"prompt": "hi"}),
        ("/serving-endpoints/chat/invocations", {"prompt": "hi"}),
        ("/chat_tokenize", {"messages": HI}),
    ):
        assert hostile.client.request("POST", path, compact(body)).status in (424, 500, 502), path


_STRANGE: Sequence[Any] = [None, 1, [], "x", {"choices": [None]}, {"choices": [{**CHOICE, "index": []}]}]


@pytest.mark.parametrize("chunk", _STRANGE, ids=repr)
def test_a_chunk_of_another_kind_is_a_broken_answer(hostile: HostileRig, chunk: Any) -> None:
    """Found by nightly cases: an unexpected type deep inside a chunk must not end a stream without an error."""
    hostile.engine.pieces, hostile.engine.media_type = [b"data: " + compact(chunk) + b"\n\n"], "text/event-stream"
    for path, dialects, body in POSTS:
        if body.get("stream"):
            reply = hostile.client.request("POST", path, compact(body))
            assert not hostile.defects.found, hostile.defects.found.pop()
            assert reply.complete or dialects & BREAKS_OFF, path
