"""Hostile requests leave nothing behind: repeating the same ones takes no more memory. Many at once take a bounded
amount."""

import asyncio
import gc
import gzip
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from statistics import mean

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.router.hostile.bombs import array, chat, text_of
from tests.router.hostile.engine import HostileEngine, compact
from tests.router.hostile.measured import MeasuredRouter, measured_router
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import VALID
from tests.support.processes.servers import serve

UNTIL_FULL, ROUNDS = 6, 12
"""Rounds until the lists of the last requests are full, and those that are compared."""
REQUESTS = 150
LARGEST_LEAK = 200
"""Bytes per request. One that leaves its headers leaves 300 more than those that the lists of failures still gain: they
are not full for a long time."""


def one_round(hostile: HostileRig, number: int) -> None:
    """Names, ids, paths, headers and streams that never recur, in requests that fail at every step."""
    client = hostile.client
    for n in range(REQUESTS // 5):
        new = f"r{number}-{n}"
        path, _, body = VALID[n % len(VALID)]
        client.request("POST", path, compact({**body, "user": new}), [(b"x-request-id", new.encode())])
        client.request("POST", "/v1/chat/completions", compact({"model": new, "messages": [{"role": new}]}))
        client.request("GET", f"/nowhere/{new}", b"", [(b"api-key", new.encode()), (b"cookie", new.encode())])
        client.request("PUT", f"/api/2.0/serving-endpoints/{new}/config", b"{" * 1_000)
        hostile.engine.pieces = [b"data: " + new.encode() * 50]
        client.request("POST", "/v1/chat/completions", compact({**VALID[1][2], "metadata": {new: new}}))
        hostile.engine.pieces = None


def test_memory_does_not_grow(hostile: HostileRig, caplog: pytest.LogCaptureFixture) -> None:
    one_round(hostile, 0)  # created once: connections, compiled patterns, metrics' labels
    one_round(hostile, 1)
    sizes = []
    tracemalloc.start()
    try:
        for number in range(UNTIL_FULL + ROUNDS):
            one_round(hostile, 2 + number)
            caplog.clear()  # pytest keeps what is logged
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # Means: requests are moved from one list to the next all at once.
    earlier, later = sizes[UNTIL_FULL : -ROUNDS // 2], sizes[-ROUNDS // 2 :]
    grown = (mean(later) - mean(earlier)) / (ROUNDS / 2)
    assert grown < LARGEST_LEAK * REQUESTS, (grown, sizes)


def test_no_metric_label_comes_from_a_client(hostile: HostileRig) -> None:
    """Every new value of a label is a time series that is never removed."""
    one_round(hostile, 99)
    assert b"r99-" not in hostile.client.request("GET", "/metrics").body


MAX_BODY, MAX_BODIES = 4 * 1024**2, 64 * 1024**2
FACTOR, OTHERS = 8, 32 * 1024**2
"""The memory of bodies, as a multiple of `max_bodies_bytes`: as received, as Python's objects, and as sent. Text with
an emoji has four bytes for each character. And bytes for the connections."""
AT_ONCE = 40
_SIZE = MAX_BODY - 4096

BODIES = {
    "a text with an emoji": chat(text_of(b"a", _SIZE, "😀".encode())),
    "messages": b'{"model":"chat","messages":%b}'
    % array(b'{"role":"user","content":%b}' % text_of(b"ab", 2000), _SIZE),
}


@pytest.fixture(scope="module")
def crowded() -> Iterator[MeasuredRouter]:
    """A router whose engine takes its time, so that all bodies that fit are there at once."""
    with (
        serve(Starlette(routes=[Mount("/e", HostileEngine(pause_s=1).app)])) as engine_url,
        measured_router(f"{engine_url}/e", MAX_BODY, MAX_BODIES) as router,
    ):
        router.client.request("POST", "/v1/chat/completions", chat(b'"a"'))
        yield router


@pytest.mark.parametrize("name", BODIES)
def test_many_compressed_bodies_at_once_take_bounded_memory(crowded: MeasuredRouter, name: str) -> None:
    """They count as what they are decompressed to: a few kilobytes each would otherwise take all memory."""
    sent = gzip.compress(BODIES[name], 1)

    async def post_all() -> Counter[int]:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
            posts = (
                client.post(f"{crowded.url}/v1/chat/completions", content=sent, headers=headers) for _ in range(AT_ONCE)
            )
            return Counter(answer.status_code for answer in await asyncio.gather(*posts))

    crowded.cost()
    statuses, cost = asyncio.run(post_all()), crowded.cost()
    assert statuses.keys() == {200, 503}, statuses
    assert statuses[200] >= MAX_BODIES // MAX_BODY // 2, "it serves as many as fit"
    assert cost.memory <= FACTOR * MAX_BODIES + OTHERS
    assert crowded.client.request("POST", "/v1/chat/completions", chat(b'"a"')).status == 200, "it is given back"
