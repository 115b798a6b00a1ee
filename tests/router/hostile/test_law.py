"""For every body of at most `max_body_bytes`, on every route, whoever sends it: the event loop is held for 50 ms at
most, memory grows by eight times the body at most, and the answer takes 1 s of CPU and 0.2 s for each MiB.
"""

import gzip
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.conftest import NIGHTLY
from tests.router.hostile.bombs import SIZES, Bomb, array, bombs, text, wide
from tests.router.hostile.engine import HostileEngine, compact
from tests.router.hostile.measured import MeasuredRouter, measured_router
from tests.support.processes.servers import serve

HELD_S = 0.05
MEMORY_FACTOR, MEMORY_BYTES = 8, 32 * 1024**2
"""The memory: a multiple of the decoded body, and what the most values in a body take."""

ANSWER_S, ANSWER_S_PER_MIB = 1.0, 0.2
MAX_BODY_BYTES = 4 * 1024**2


@pytest.fixture(scope="module")
def router() -> Iterator[MeasuredRouter]:
    with (
        serve(Starlette(routes=[Mount("/e", HostileEngine().app)])) as engine_url,
        measured_router(f"{engine_url}/e", MAX_BODY_BYTES) as router,
    ):
        router.client.request("POST", "/v1/chat/completions", compact({"model": "chat", "messages": []}))
        yield router


def keeps_the_law(router: MeasuredRouter, bomb: Bomb) -> None:
    reply, cost = router.measured(bomb.method, bomb.path, bomb.body, list(bomb.headers))
    told = (bomb, cost, reply.status, reply.body[:300])
    assert reply.complete, told
    assert reply.status < 500 or (reply.status == 503 and bomb.path.startswith("/api/")), told
    assert cost.held_s <= HELD_S, told
    assert cost.cpu_s <= ANSWER_S + ANSWER_S_PER_MIB * bomb.size / 1024**2, told
    assert cost.memory <= MEMORY_FACTOR * bomb.size + MEMORY_BYTES, told


@settings(max_examples=800 if NIGHTLY else 40, suppress_health_check=list(HealthCheck), print_blob=True)
@given(bomb=bombs())
def test_no_body_costs_more(router: MeasuredRouter, bomb: Bomb) -> None:
    keeps_the_law(router, bomb)


_LARGEST = SIZES[-1]
_CHAT, _EMBEDDINGS, _TGI = "/v1/chat/completions", "/v1/embeddings", "/generate"

KNOWN: dict[str, tuple[str, bytes]] = {
    "empty messages": (_CHAT, b'{"model":"chat","messages":%b}' % array(b"{}", _LARGEST)),
    "empty inputs": (_EMBEDDINGS, b'{"model":"embed","input":%b}' % array(b"{}", _LARGEST)),
    "token ids": ("/v1/completions", b'{"model":"chat","prompt":%b}' % array(b"5", _LARGEST)),
    "stops": (_CHAT, b'{"model":"chat","messages":[],"stop":%b}' % array(b'""', _LARGEST)),
    "unclosed quotes": (
        _CHAT,
        b'{"model":"chat","messages":[{"role":"user","content":"a"}],"structured_outputs":{"grammar":%b}}'
        % text(b'\\"\\\\', 1024**2, b"root ::= "),
    ),
    "a long expression": (
        _CHAT,
        b'{"model":"chat","messages":[{"role":"user","content":"a"}],"structured_outputs":{"regex":%b}}'
        % text(b"(a|b)", 1024**2),
    ),
    "undocumented fields, dropped": ("/chat/completions?api-version=2024-05-01-preview", wide(b"1", _LARGEST)),
    "fields of extra_params": (
        "/serving-endpoints/chat/invocations",
        b'{"extra_params":{"messages":%b}}' % text(b"[],", _LARGEST, b"["),
    ),
    "a long text": (_TGI, b'{"inputs":%b}' % text(b"a", _LARGEST, "😀".encode())),
}
"""What a review has found, and what is worst."""


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_known_bombs(router: MeasuredRouter, name: str, coding: str) -> None:
    path, body = KNOWN[name]
    headers = ((b"content-encoding", coding.encode()), (b"extra-parameters", b"drop"))
    sent = gzip.compress(body, 1) if coding == "gzip" else body
    keeps_the_law(router, Bomb("POST", path, sent, headers, len(body), name))


def test_a_file_of_many_members(router: MeasuredRouter) -> None:
    body = gzip.compress(b"") * (MAX_BODY_BYTES // 20)
    keeps_the_law(router, Bomb("POST", _CHAT, body, ((b"content-encoding", b"gzip"),), len(body), "gzip members"))
