"""Malicious and malformed bodies and headers."""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from tests.router.hostile.engine import compact

HI = [{"role": "user", "content": "hi"}]
CHOICE = {
    "index": 0,
    "delta": {"content": "a"},
    "text": "a",
    "token_ids": [5],
    "prompt_token_ids": [6],
    "logprobs": None,
    "finish_reason": None,
}
"""A valid choice in a chunk of any of the deployment's streams."""

VALID: list[tuple[str, set[str], dict[str, Any]]] = [
    ("/v1/chat/completions", {"openai", "tgi", "friendli"}, {"model": "chat", "messages": HI}),
    ("/v1/chat/completions", {"openai", "tgi", "friendli"}, {"model": "chat", "messages": HI, "stream": True}),
    ("/v1/completions", {"openai", "friendli"}, {"model": "chat", "prompt": "hi", "max_tokens": 3, "logprobs": 2}),
    ("/v1/completions", {"openai", "friendli"}, {"model": "chat", "tokens": [5, 6], "seed": [7, 42], "n": 2}),
    ("/v1/embeddings", {"openai"}, {"model": "embed", "input": ["a", "b"]}),
    ("/v1/responses", {"openai"}, {"model": "chat", "input": HI, "metadata": {"a": "b"}, "stream": True}),
    ("/tokenize", {"openai", "tgi"}, {"model": "chat", "prompt": "hi"}),
    ("/v1/messages", {"anthropic"}, {"model": "chat", "max_tokens": 3, "messages": HI, "metadata": {"user_id": "u"}}),
    (
        "/chat/completions?api-version=2024-05-01-preview",
        {"azure"},
        {"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ),
    (
        "/embeddings?api-version=2024-05-01-preview",
        {"azure"},
        {"model": "embed", "input": ["a"], "encoding_format": "int8"},
    ),
    ("/completions?api-version=2024-05-01-preview", {"azure"}, {"prompt": "hi"}),
    ("/serving-endpoints/chat/invocations", {"databricks"}, {"messages": HI, "extra_params": {"top_p": "0.5"}}),
    ("/serving-endpoints/chat/invocations", {"databricks"}, {"prompt": ["a", "b"], "error_behavior": "truncate"}),
    (
        "/serving-endpoints/responses",
        {"databricks"},
        {"model": "chat", "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": [1]}}]},
    ),
    ("/serving-endpoints/embed/invocations", {"databricks"}, {"input": "a", "instruction": "i"}),
    (
        "/generate",
        {"tgi"},
        {"inputs": "hi", "parameters": {"top_n_tokens": 2, "details": True, "stop": ["x"], "truncate": 3}},
    ),
    ("/generate_stream", {"tgi"}, {"inputs": "hi", "parameters": {"grammar": {"type": "regex", "value": "a+"}}}),
    ("/vertex", {"tgi"}, {"instances": [{"inputs": "hi"}, {"messages": HI}]}),
    ("/tgi/chat/v1/completions", {"tgi"}, {"prompt": ["a"], "stream": True}),
    ("/serverless/v1/completions", {"friendli"}, {"model": "chat", "prompt": "hi", "num_beams": 2}),
    ("/dedicated/v1/completions", {"friendli"}, {"model": "chat", "prompt": "hi", "bad_words": ["x"], "stream": True}),
    ("/dedicated/v1/chat/completions", {"friendli"}, {"model": "chat", "messages": HI, "seed": [9, 3], "n": 2}),
    ("/dedicated/v1/chat/render", {"friendli"}, {"model": "chat", "messages": HI}),
    ("/serverless/v1/tokenize", {"friendli"}, {"model": "chat", "prompt": "hi"}),
    ("/serverless/v1/detokenize", {"friendli"}, {"model": "chat", "tokens": [5, 6]}),
]
"""A path, the dialects whose error forms it may answer in, and a body that it accepts."""

Place = tuple[str, set[str], dict[str, Any]]

_NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, -(10**400), 1e308, -1e308, 5e-324, -0.0, 0.5]
)
_TEXTS = st.sampled_from(
    ["", "\0", "a\r\nb: c", "é", "😀", "\ufeff", "\u202e", "{}", "null", "NaN", "[DONE]", "data: x\n\n", "a" * 70_000]
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all values inside `value`: keys and indices."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in parts for place in [(*path, key), *places(inner, (*path, key))]]


@st.composite
def mutated(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """A valid body with one to three values changed, added, or removed."""
    body = deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        if not (found := places(body)):
            break
        *way, last = draw(st.sampled_from(found))
        holder: Any = body
        for key in way:
            holder = holder[key]
        match draw(st.integers(0, 3)):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[draw(st.sampled_from([*_FIELDS, "x", "\ud83d\ude00"]))] = draw(_ANYTHING)
            case _:
                holder[last] = draw(_ANYTHING)
    return body


_FIELDS = (
    "model user n best_of stop stream stream_options seed logit_bias top_k top_p temperature max_tokens tools "
    "tool_choice response_format metadata timeout_microseconds num_beams echo logprobs top_logprobs messages input "
    "prompt inputs parameters"
).split()

DEPTHS = (10, 150, 199, 201, 1_000, 60_000)


def _nested(body: bytes, depth: int, opening: bytes, closing: bytes) -> bytes:
    """The body with a field that is nested that deep."""
    return body[:-1] + b',"metadata":' + opening * depth + b"1" + closing * depth + b"}"


_SPOILED: list[Callable[[bytes], bytes]] = [
    lambda body: body[: len(body) // 2],
    lambda body: body[:-1],
    lambda body: body + body,
    lambda body: body + b"\0",
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: b"\xff\xfe" + body,
    lambda body: body.decode().encode("utf-16"),
    lambda body: body.decode().encode("utf-32-le"),
    lambda body: body.replace(b'"hi"', b'"\xff\xfe"'),
    lambda body: body.replace(b'"hi"', b'"\\ud800"'),
    lambda body: body.replace(b'"hi"', b'"\\udfff\\ud800"'),
    lambda body: body.replace(b'"hi"', b'"\xed\xa0\x80"'),
    lambda body: body.replace(b'"hi"', b'"\\u0000"'),
    lambda body: body.replace(b'"chat"', b'"\\ud800"'),
    lambda body: body.replace(b'"chat"', b'"chat","model":"unknown"'),
    lambda body: body[:-1] + b',"n":NaN}',
    lambda body: body[:-1] + b',"temperature":Infinity}',
    lambda body: body[:-1] + b',"temperature":1e999}',
    lambda body: body[:-1] + b',"temperature":-0}',
    lambda body: body[:-1] + b',"seed":' + b"9" * 5_000 + b"}",
    lambda body: body[:-1] + b',"max_tokens":' + b"9" * 400 + b"}",
    lambda body: body[:-1] + b',"n":1.0}',
    lambda body: body[:-1] + b',"stream":true,"stream":"yes"}',
    lambda body: body[:-1] + b',"model":null}',
    lambda body: body[:-1] + b"".join(b',"x%d":1' % n for n in range(2_000)) + b"}",
    lambda body: b"[" + body + b"]",
    lambda body: b'"' + body.replace(b'"', b'\\"') + b'"',
    lambda body: b"",
    lambda body: b"null",
    lambda body: b" " * 100_000 + body,
    lambda body: body + b" " * 300_000,
]


@st.composite
def spoiled(draw: st.DrawFn, valid: dict[str, Any]) -> bytes:
    """A valid body turned into an invalid one, or one with duplicate keys."""
    body = compact(valid)
    if draw(st.booleans()):
        return draw(st.sampled_from(_SPOILED))(body)
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"json":', b"}]"), (b"[", b"")]))
    return _nested(body, draw(st.sampled_from(DEPTHS)), opening, closing)


def _encoded(body: Any) -> bytes:
    """JSON as Python's own writes it, NaN and lone surrogates too. Numbers of 400 digits are written out."""
    return json.dumps(body, ensure_ascii=True).encode()


@st.composite
def posts(draw: st.DrawFn) -> tuple[str, set[str], bytes]:
    """A path, the dialects whose errors may come, and a body for it."""
    path, dialects, valid = draw(st.sampled_from(VALID))
    body = draw(
        st.one_of(
            mutated(valid).map(_encoded),
            mutated(valid).map(_encoded),
            spoiled(valid),
            st.binary(max_size=50),
            _ANYTHING.map(_encoded),
            st.sampled_from([math.nan, -math.inf]).map(lambda odd: _encoded({**valid, "temperature": odd})),
        )
    )
    return path, dialects, body


_NAMES = st.sampled_from(
    [
        b"authorization",
        b"api-key",
        b"x-api-key",
        b"x-request-id",
        b"x-request-timeout-s",
        b"azureml-model-deployment",
        b"extra-parameters",
        b"user-agent",
        b"content-type",
        b"accept",
        b"content-encoding",
        b"expect",
        b"host",
        b"x-switchyard-key",
        b"x-friendli-team",
        b"x-stainless-lang",
        b"x-forwarded-for",
        b"cookie",
        b"upgrade",
    ]
)
_VISIBLE = st.binary(max_size=20).map(lambda raw: bytes(byte for byte in raw if byte >= 32 and byte != 127))
_VALUES = st.one_of(
    st.sampled_from(
        [
            b"",
            b"0",
            b"-1",
            b"1e999",
            b"nan",
            b"0.5",
            b"9" * 400,
            b"chat",
            b"blue",
            b"green, blue",
            b"Bearer a",
            b"Bearer " + b"\xff" * 9,
            b"Bearer a.b.c",
            b"\xc3\xa9\xff",
            b"[",
            b"[::1",
            b"a b/..",
            b"100-continue",
            b"gzip",
            b"drop",
            b"websocket",
            b"h2c",
            b"text/html; charset=utf-16",
            b"azsdk-python",
            b"x" * 9_000,
            b"y" * 40_000,
        ]
    ),
    _VISIBLE,
)

headers = st.lists(st.tuples(_NAMES, _VALUES), min_size=1, max_size=6).flatmap(
    # Repeated headers have the same value, or different ones.
    lambda given: st.lists(st.sampled_from(given), max_size=3).map(lambda again: given + again)
)

TARGETS = [
    ("GET", "/health"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/%ff%00"),
    ("GET", "/metrics?x=%"),
    ("GET", "/api/2.0/serving-endpoints"),
    ("GET", "/api/2.0/serving-endpoints/chat/openapi"),
    ("GET", "/info?api-version=%ff&api-version=2"),
    ("GET", "/nowhere/%2e%2e/%2e%2e"),
    ("DELETE", "/v1/chat/completions"),
    ("TRACE", "/"),
    ("OPTIONS", "/v1/models"),
    ("PUT", "/api/2.0/serving-endpoints/chat/config"),
]
