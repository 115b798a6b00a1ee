"""The law for bodies holds for the default of 4 MiB, and for the 32 MiB of a router whose deployments take images.

Every run tries what a review has found, each kind of long text in both sizes, on each route that tokenizes, some lists
of requests, and some random bodies. Nightly runs try all combinations, every list, and new random bodies.
"""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, product
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.vendor.pretty import pretty

from app.dialects.registry import DIALECTS
from app.engine.pieces import MOST_CHARACTERS
from app.internal_api import MAX_BAD_WORDS
from app.server.openapi import document, operations
from tests.conftest import NIGHTLY
from tests.router.hostile.bombs import (
    EXPERIMENT,
    LARGE_SIZES,
    LEGITIMATE,
    PLAN,
    SIZES,
    Bomb,
    array,
    bombs,
    chat,
    colliding,
    text_of,
    wide,
)
from tests.router.hostile.engine import compact
from tests.router.hostile.law import keeps_the_law, serving
from tests.router.hostile.lists import UNDOCUMENTED, Requests
from tests.router.hostile.measured import MeasuredRouter

Other = TypeVar("Other")

MAX_BODY_BYTES, WITH_IMAGES = 4 * 1024**2, 32 * 1024**2


@pytest.fixture(scope="module")
def router() -> Iterator[MeasuredRouter]:
    with serving(MAX_BODY_BYTES) as router:
        yield router


@pytest.fixture(scope="module")
def router_for_images() -> Iterator[MeasuredRouter]:
    with serving(WITH_IMAGES) as router:
        yield router


@settings(max_examples=800 if NIGHTLY else 12, suppress_health_check=list(HealthCheck), print_blob=True)
@given(bomb=bombs())
def test_no_body_costs_more(router: MeasuredRouter, bomb: Bomb) -> None:
    keeps_the_law(router, bomb)


@settings(max_examples=200 if NIGHTLY else 4, suppress_health_check=list(HealthCheck), print_blob=True)
@given(bomb=bombs(LARGE_SIZES))
def test_no_body_costs_more_where_images_are_taken(router_for_images: MeasuredRouter, bomb: Bomb) -> None:
    keeps_the_law(router_for_images, bomb)


def by_turns(names: Iterable[str], others: Sequence[Other]) -> list[tuple[str, Other]]:
    """All pairs in nightly runs; else each name with one of the others, in turn. The others may repeat."""
    turns = zip(names, cycle(others), strict=False)
    return list(product(names, dict.fromkeys(others))) if NIGHTLY else list(turns)


def _legitimate(name: str, largest: int) -> Bomb:
    path, body = LEGITIMATE[name]
    sent = body(largest - 4096)
    return Bomb("POST", path, sent, ((b"content-type", b"application/json"),), len(sent), name)


@pytest.mark.parametrize(("name", "with_images"), by_turns(LEGITIMATE, (True, False, False)))
def test_large_bodies_of_honest_clients_are_served(
    router: MeasuredRouter, router_for_images: MeasuredRouter, name: str, with_images: bool
) -> None:
    largest, its_router = (WITH_IMAGES, router_for_images) if with_images else (MAX_BODY_BYTES, router)
    keeps_the_law(its_router, _legitimate(name, largest), is_served=True)


_LARGEST = SIZES[-1]
_CHAT, _EMBEDDINGS, _TGI = "/v1/chat/completions", "/v1/embeddings", "/generate"

_REPEATED = {
    "words": b"a b ",
    "signs": b"!?",
    "spaces": b" ",
    "letters": b"a",
    "digits": b"7",
    "Chinese": "漢".encode(),
}
_TOKENIZED = {
    "/tokenize": b'{"inputs":%b}',
    _TGI: b'{"inputs":%b}',
    "/generate_stream": b'{"inputs":%b,"parameters":{"truncate":9}}',
    "/serverless/v1/tokenize": b'{"model":"chat","prompt":%b}',
    "/serverless/v1/completions": b'{"model":"chat","prompt":%b}',
}
"""The routes that tokenize here, with a text to fill in."""

_MISSPELT = {
    _CHAT: b'{"model":"chat","messages":[{"role":"user","content":"a"}],"',
    "/v1/messages": b'{"model":"chat","max_tokens":3,"messages":[{"role":"user","content":"a"}],"',
    "/v1/responses": b'{"model":"chat","input":"a","text":{"',
}

KNOWN: dict[str, tuple[str, bytes]] = {
    "empty messages": (_CHAT, b'{"model":"chat","messages":%b}' % array(b"{}", _LARGEST)),
    "empty inputs": (_EMBEDDINGS, b'{"model":"embed","input":%b}' % array(b"{}", _LARGEST)),
    "token ids": ("/v1/completions", b'{"model":"chat","prompt":%b}' % array(b"5", _LARGEST)),
    "token ids of more than 64 bits": (_EMBEDDINGS, b'{"model":"embed","input":%b}' % array(b"9" * 19, _LARGEST)),
    **{
        f"short texts in {name} for {path}": (path, b'{"model":"%b","%b":[%b]}' % (model, name.encode(), texts))
        for path, model, name in (
            ("/v1/completions", b"chat", "prompt"),
            ("/serverless/v1/completions", b"chat", "prompt"),
            (_EMBEDDINGS, b"embed", "input"),
            ("/embed", b"embed", "inputs"),
        )
        for texts in [b",".join(b'"a%d"' % number for number in range(390_000))]
    },
    "answers of many vectors": ("/embed", b'{"dimensions":384,"inputs":%b}' % array(b'"a"', 4 * 4090)),
    "answers of many vectors, Cohere's": (
        "/v2/embed",
        b'{"model":"embed","input_type":"search_query","output_dimension":384,"texts":%b}' % array(b'"a"', 4 * 4090),
    ),
    "stops": (_CHAT, b'{"model":"chat","messages":[],"stop":%b}' % array(b'""', _LARGEST)),
    "unclosed quotes": (
        _CHAT,
        chat(b'"a"', b',"structured_outputs":{"grammar":%b}' % text_of(b'\\"\\\\', 1024**2, b"root ::= ")),
    ),
    "a long expression": (
        _CHAT,
        chat(b'"a"', b',"structured_outputs":{"regex":%b}' % text_of(b"(a|b)", 1024**2)),
    ),
    "undocumented fields, dropped": ("/chat/completions?api-version=2024-05-01-preview", wide(b"1", _LARGEST)),
    "fields of extra_params": (
        "/serving-endpoints/chat/invocations",
        b'{"extra_params":{"messages":%b}}' % text_of(b"[],", _LARGEST, b"["),
    ),
    "a long text": (_TGI, b'{"inputs":%b}' % text_of(b"a", _LARGEST, "😀".encode())),
    **{
        f"{kind} of {size} bytes for {path}": (path, before % text_of(repeated, size))
        for number, (kind, repeated) in enumerate(_REPEATED.items())
        for turn, size in enumerate((MOST_CHARACTERS, _LARGEST))
        for place, (path, before) in enumerate(_TOKENIZED.items())
        # By turns, so that each kind and size meets a route, and each route most kinds.
        if NIGHTLY or place == (number + 2 * turn) % len(_TOKENIZED)
    },
    **{
        f"a long name of a field for {path}": (
            path,
            before + b"temperatur" * (_LARGEST // 10) + b'":1}' + b"}" * before.endswith(b':{"'),
        )
        for path, before in _MISSPELT.items()
    },
    "indices of one hash": (
        "/serverless/v1/completions",
        b'{"model":"chat","prompt":"a","embedding_to_replace":[1],"token_index_to_replace":%b}' % colliding(250 * 1024),
    ),
    "many words for Friendli": (
        "/serverless/v1/completions",
        b'{"model":"chat","prompt":"a","bad_words":[%b]}' % b",".join(b'"abc%d"' % at for at in range(100_000)),
    ),
    "a namespace's name and functions": (
        "/v1/responses",
        b'{"model":"chat","input":"a","tool_choice":{"type":"function","name":"g"},"tools":[{"type":"namespace",'
        b'"description":"a","name":%b,"tools":[%b]}]}'
        % (
            text_of(b"n", 64 * 1024),
            b",".join(b'{"type":"function","name":"f%d"}' % number for number in range(9000)),
        ),
    ),
    "an instruction and inputs": (
        "/serving-endpoints/embed/invocations",
        b'{"instruction":%b,"input":%b}' % (text_of(b"i", 1024**2), array(b'"a"', 4 * 4090)),
    ),
    "spellings of a reference": (
        "/serverless/v1/chat/completions",
        chat(
            b'"a"',
            b',"response_format":{"type":"json_object","schema":{"anyOf":[%b],"$defs":{"a":{"anyOf":%b}}}}'
            % (
                b",".join(b'{"$ref":"#%b$defs/a"}' % (b"/" * (number + 1)) for number in range(1000)),
                array(b"{}", 3 * 6000),
            ),
        ),
    ),
    "a long schema for Friendli": (
        "/dedicated/v1/chat/completions",
        chat(
            b'"a"',
            b',"response_format":{"type":"json_object","schema":{"properties":%b}}'
            % wide(text_of(b"a", 400), 3 * 1024**2),
        ),
    ),
    "instances with grammars": (
        "/vertex",
        b'{"instances":%b}'
        % array(
            b'{"inputs":"a","parameters":{"grammar":{"type":"regex","value":%b}}}' % text_of(b"(a|b)", 8192), 127 * 8260
        ),
    ),
    "instances with schemas": (
        "/vertex",
        b'{"instances":%b}'
        % array(
            b'{"inputs":"a","parameters":{"grammar":{"type":"json","value":{"properties":%b}}}}'
            % wide(text_of(b"a", 100), 24 * 1024),
            120 * 25_000,
        ),
    ),
    "indices of one hash for an engine": (
        _CHAT,
        chat(b'"a"', b',"allowed_token_ids":%b' % colliding(400 * 1024)),
    ),
    "as many long words for Friendli as it may have": (
        "/serverless/v1/completions",
        b'{"model":"chat","prompt":"a","bad_words":%b}' % array(b'"%b"' % (b"a1" * 16), MAX_BAD_WORDS * 35),
    ),
}
"""What a review has found, and what is worst."""

_ALLOWED_VALUES = 49_000
"""Of the body of a management call: more are refused before they are parsed."""

_PROBLEMS = {
    "items": ("treatments", array(b"1", 2 * _ALLOWED_VALUES)),
    "words": ("strata", array(b'"a"', 4 * 4500)),
    "metrics": ("primary", array(b'{"metric":"m","x":1}', 21 * 120)),
    "guardrails": ("guardrails", array(b'{"metric":"m","evemt":1}', 25 * 200)),
    "names": ("feedback", wide(b"1", 18 * 250)),
    "steps": ("ramp", b'{"steps":%b}' % array(b'"a"', 4 * 4500)),
}
KNOWN_DOCUMENTS: dict[str, tuple[str, str, bytes]] = {
    **{
        f"an experiment's {kind}": (
            "POST",
            "/api/experiments/check",
            b'{"name":"e","experiment":%b,"%b":%b}}' % (compact(EXPERIMENT)[:-1], name.encode(), value),
        )
        for kind, (name, value) in _PROBLEMS.items()
    },
    "an experiment's unknown keys": (
        "POST",
        "/api/experiments/check",
        b'{"name":"e","experiment":%b}' % wide(b"1", 18 * 500),
    ),
    **{
        f"a plan's {kind}": (
            "PUT",
            "/api/endpoints/chat/traffic?dry_run=true",
            b'%b,"%b":%b}' % (compact(PLAN)[:-1], name.encode(), value),
        )
        for kind, name, value in (
            ("numbers as overrides", "overrides", array(b"1", 2 * _ALLOWED_VALUES)),
            ("overrides", "overrides", array(b'{"unut":1}', 11 * 900)),
            ("weights", "weights", wide(b'"x"', 14 * 5000)),
            ("unknown keys", "x", b"1," + wide(b"1", 12 * 5000)[1:-1]),
            ("override of unknown keys", "overrides", b"[%b]" % wide(b"1", 12 * 4500)),
            ("overrides of unknown keys", "overrides", array(wide(b"1", 12 * 45), 12 * 4500)),
        )
    },
}
"""Documents of management calls with many problems. The last of two members of one name counts."""

_HUGE = LARGE_SIZES[-1]
_WIDE_TEXT = text_of(b"a", _HUGE, "😀".encode())

KNOWN_WITH_IMAGES: dict[str, bytes] = {
    "a word": chat(b'"a"', b',"tool_choice":%b' % _WIDE_TEXT),
    "a model": chat(b'"a"', b',"model":%b' % _WIDE_TEXT),
    "the name of a field": chat(b'"a"', b",%b:1" % _WIDE_TEXT),
    "a description": chat(
        b'"a"',
        b',"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"description":%b}}}'
        % text_of(b"{9}", _HUGE),
    ),
    "long numbers": b'{"model":"chat","messages":%b}' % array(b"9" * 300, _HUGE),
    "spaces": b" " * _HUGE + b"1",
    "a text without an end": _WIDE_TEXT[:-1],
    "a text of other bytes": chat(_WIDE_TEXT[:-1] + b'\xff"'),
}
"""What held the event loop for longer at 32 MiB."""


@pytest.mark.parametrize(("name", "coding"), by_turns(KNOWN, ("identity", "gzip")))
def test_known_bombs(router: MeasuredRouter, name: str, coding: str) -> None:
    path, body = KNOWN[name]
    headers = ((b"content-encoding", coding.encode()), (b"extra-parameters", b"drop"))
    sent = gzip.compress(body, 1) if coding == "gzip" else body
    keeps_the_law(router, Bomb("POST", path, sent, headers, len(body), name))


@pytest.mark.parametrize("name", KNOWN_DOCUMENTS)
def test_documents_with_many_problems(router: MeasuredRouter, name: str) -> None:
    method, path, body = KNOWN_DOCUMENTS[name]
    headers = ((b"content-type", b"application/json"),)
    keeps_the_law(router, Bomb(method, path, body, headers, len(body), name))


@pytest.mark.parametrize("name", KNOWN_WITH_IMAGES)
def test_known_bombs_where_images_are_taken(router_for_images: MeasuredRouter, name: str) -> None:
    body = KNOWN_WITH_IMAGES[name]
    keeps_the_law(router_for_images, Bomb("POST", _CHAT, body, (), len(body), name))


_EMPTY_BLOCK = b"\0\0\0\xff\xff"
_NOTHING = {
    "members": ("gzip", b"", gzip.compress(b"")),
    "blocks": ("deflate", b"\x78\x9c", _EMPTY_BLOCK),
    "blocks without a header": ("deflate", b"", _EMPTY_BLOCK),
}


@pytest.mark.parametrize("name", _NOTHING)
def test_a_compressed_body_with_nothing_in_it(router_for_images: MeasuredRouter, name: str) -> None:
    coding, begin, unit = _NOTHING[name]
    body = begin + unit * ((WITH_IMAGES - 4096) // len(unit))
    headers = ((b"content-encoding", coding.encode()),)
    keeps_the_law(router_for_images, Bomb("POST", _CHAT, body, headers, len(body), name))


def test_a_failure_of_the_law_is_told_without_the_body() -> None:
    bomb = Bomb("POST", _CHAT, b"x" * 10_000, (), 10_000, "a text")
    assert "10000" in pretty(bomb)
    assert "xx" not in pretty(bomb)


LISTS = [*Requests(document(operations(DIALECTS))).lists(), *UNDOCUMENTED]
_TRIED = range(len(LISTS)) if NIGHTLY else range(4, len(LISTS), 20)


@pytest.mark.parametrize("number", _TRIED)
def test_no_list_of_a_request_costs_more(router: MeasuredRouter, number: int) -> None:
    listed = LISTS[number]
    headers = ((b"content-type", b"application/json"), (b"extra-parameters", b"allow"))
    for what, body in listed.bodies(_LARGEST):
        name = f"{'.'.join(listed.place)}: {what}"
        keeps_the_law(router, Bomb(listed.method, listed.path, body, headers, len(body), name))
