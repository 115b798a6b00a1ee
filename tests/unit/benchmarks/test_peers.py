"""The results of the benchmark against peers, and how its load generator reads answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.gateways import (
    CHAT,
    EMBEDDINGS,
    ENGINE,
    FLOOR,
    LITELLM,
    SERVED,
    SERVED_BY_THREE,
    SERVED_CHATS,
    SWITCHYARD,
    VLLM_ROUTER,
)
from benchmarks.load import HOST, burst, post
from benchmarks.peers import Turn, comparison, summary, tables

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"


def a_turn(per_s: float, first_ms: Sequence[float]) -> Turn:
    return Turn(per_s, 0, list(first_ms), [2.0, 4.0], 0.05, 0.7, 0.02, 0.1, 0, 0.5)


def test_a_row_has_medians_of_turns_and_percentiles_of_all_answers() -> None:
    turns = [a_turn(100, [1, 2, 3]), a_turn(300, [9, 10, 500]), replace(a_turn(200, [4, 5]), failed=2)]
    row = summary(turns)
    assert (row.per_s, row.first_p50_ms, row.first_p99_ms, row.failed) == (200, 4.5, 500, 2)
    assert (row.between_p50_ms, row.between_p99_ms) == (3.0, 4.0)


def test_a_comparison_takes_its_ratios_within_each_round() -> None:
    """The machine becomes three times slower between two rounds, which affects both sides alike."""
    mine, theirs = [a_turn(300, [5]), a_turn(100, [15])], [a_turn(200, [6]), a_turn(80, [18])]
    compared = comparison(mine, theirs)
    assert compared.ratio == pytest.approx(1.375)
    assert compared.later_ms == -2.0


@pytest.mark.parametrize(
    ("per_s", "first_ms", "standing"),
    [
        (110, 5, "ahead"),
        (90, 5, "behind in throughput"),
        (110, 7, "behind at the first"),
        (90, 7, "behind in throughput and at the first"),
    ],
)
def test_the_table_shows_how_the_router_compares(per_s: float, first_ms: float, standing: str) -> None:
    given = {ENGINE: (120, 4), SWITCHYARD: (per_s, first_ms), VLLM_ROUTER: (100, 6), LITELLM: (20, 90), FLOOR: (999, 1)}
    measured = {name: {n: [a_turn(rate, [ms])] for n in CHAT.requests} for name, (rate, ms) in given.items()}
    lines = list(tables(CHAT, measured))
    rows = [line for line in lines if line.startswith("| vllm-router | 16 |")]
    assert rows == [f"| vllm-router | 16 | {per_s / 100:.2f} | {first_ms - 6:+.1f} ms | 1.00 | {standing} |"]
    assert f"| **{SWITCHYARD}** | {per_s} | {per_s / 120:.2f} | {first_ms:.1f} / {first_ms:.1f} ms |" in "".join(lines)
    _have_as_many_cells_as_their_heads(lines)


def test_embeddings_have_no_time_between_tokens() -> None:
    turns = [replace(a_turn(100, [6]), between_ms=[], failed=3)]
    names = (ENGINE, SWITCHYARD, VLLM_ROUTER, LITELLM)
    lines = list(tables(EMBEDDINGS, {name: {n: turns for n in EMBEDDINGS.requests} for name in names}))
    assert not any("between" in line for line in lines)
    assert sum("(9 failed)" in line or "(3 failed)" in line for line in lines) == len(names) * len(EMBEDDINGS.requests)
    _have_as_many_cells_as_their_heads(lines)


def test_what_is_served_is_compared_with_gateways_and_their_engine() -> None:
    """Its own engine is among its processes: only the sum compares with others."""
    workload = SERVED_CHATS[0]
    whole = replace(a_turn(120, [5]), gateway_cpu_s=0.6, engine_cpu_s=0.0)
    turns = {name: a_turn(100, [6]) for name in (ENGINE, SWITCHYARD, VLLM_ROUTER, LITELLM)}
    turns |= {SERVED: whole, SERVED_BY_THREE: whole}
    lines = list(tables(workload, {name: {n: [turn] for n in workload.requests} for name, turn in turns.items()}))
    assert any(line.startswith(f"| **{SERVED}** | 120 | 1.20 |") and "|  |  | 0.600 |" in line for line in lines)
    assert "| vllm-router | 150 | 1.20 | -1.0 ms | 0.80 | ahead |" in lines
    _have_as_many_cells_as_their_heads(lines)


def _have_as_many_cells_as_their_heads(lines: Sequence[str]) -> None:
    for table in "\n".join(lines).strip().split("\n\n"):
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.asyncio
async def test_a_burst_counts_events_and_keeps_failures_apart() -> None:
    answered = iter(
        [
            HEAD + EVENT * 3 + b"data: [DONE]\n\n",
            b"HTTP/1.1 503 Busy\r\n\r\nno room",
            HEAD + EVENT,
            HEAD + b'{"a": 1} [DONE]',
        ]
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"}")).startswith(b"POST /v1/x HTTP/1.1\r\n")
        writer.write(next(answered))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        given = await burst(post("/v1/x", {"n": 1}), port, streams=1, requests=4)
    assert [len(times) for times in given.answers] == [3, 1]
    assert len(given.first_ms()) == 2
    assert len(given.between_ms()) == 2
    assert "no room" in str(given.failures[0])
    assert "did not end" in str(given.failures[1])
