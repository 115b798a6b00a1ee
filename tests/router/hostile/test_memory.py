"""Hostile requests leave nothing behind: repeating the same ones takes no more memory."""

import gc
import tracemalloc
from itertools import pairwise

from tests.router.hostile.engine import compact
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import VALID

ROUNDS = 4
REQUESTS = 150
LARGEST_LEAK = 150
"""Bytes per request: half of what a request leaves that leaves its headers. pytest itself keeps some log records."""


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


def test_memory_does_not_grow(hostile: HostileRig) -> None:
    one_round(hostile, 0)  # created once: connections, compiled patterns, metrics' labels
    one_round(hostile, 1)
    tracemalloc.start()
    try:
        one_round(hostile, 2)
        sizes = []
        for number in range(3, 3 + ROUNDS):
            one_round(hostile, number)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # The smallest growth: a leak grows in every round, a cache only in some.
    grown = min(after - before for before, after in pairwise(sizes))
    assert grown < LARGEST_LEAK * REQUESTS, sizes


def test_no_metric_label_comes_from_a_client(hostile: HostileRig) -> None:
    """Every new value of a label is a time series that is never removed."""
    one_round(hostile, 99)
    assert b"r99-" not in hostile.client.request("GET", "/metrics").body
