"""Exposures as routers record them."""

from typing import Any

from app.exposures.wire import VERSION, Batch, OverdueRequest, Pair, Plan, Row, Start

PLAN = Plan("chat", "0-aaaaaaaa", {"blue": 50, "green": 50})
NAMES = ["blue", "green", "openai", "chat"]


def start(seq: int, **fields: Any) -> Start:
    """The draw of blue (index 0)."""
    base = Start(seq=seq, at=1000.0 + seq, unit=seq % 5, plan=0, assigned=0, reason=0, flags=0)
    return base._replace(**fields)


def row(seq: int, **fields: Any) -> Row:
    """A successful stream by blue (index 0)."""
    base = Row(
        seq=seq,
        at=1000.0 + seq,
        request=10_000 + seq,
        answer=20_000 + seq,
        unit=seq % 5,
        caller=7,
        plan=0,
        assigned=0,
        served=0,
        reason=0,
        dialect=2,
        task=3,
        stream=True,
        status=200,
        error=0,
        attempts=1,
        prompt_bytes=100,
        max_tokens=None,
        prompt_tokens=20,
        completion_tokens=30,
        ttft_s=0.25,
        duration_s=1.5,
        itl_mean_s=0.0625,
        itl_max_s=0.125,
        finish=1,
        turn=0,
        in_flight=1,
        cold=False,
        flags=0,
    )
    return base._replace(**fields)


def late(seq: int, **fields: Any) -> OverdueRequest:
    """A slow request on blue (index 0)."""
    base = OverdueRequest(kind=0, above_s=10.0, seq=seq, at=1000.0 + seq, unit=seq % 5, plan=0, assigned=0, flags=0)
    return base._replace(**fields)


def pair(seq: int, **fields: Any) -> Pair:
    """A copy of a request that blue (index 0) answered, sent to green, whose answer was the same, 10 ms later."""
    base = Pair(
        seq=seq,
        at=1000.0 + seq,
        unit=seq % 5,
        plan=0,
        primary=0,
        shadow=1,
        status=200,
        error=0,
        tokens=50,
        equal=1,
        equal_words=1,
        length_ratio=1.0,
        same_finish=1,
        valid=None,
        same_tools=None,
        cosine=None,
        ttft_s=0.0078125,
        duration_s=0.015625,
        tokens_per_s=-0.5,
        finish=1,
        primary_finish=1,
        visible=1,
        primary_visible=1,
    )
    return base._replace(**fields)


def batch(number: int = 1, router: str = "router-a", **fields: Any) -> Batch:
    """A batch of `router`, empty but for `fields`."""
    values: dict[str, Any] = {
        "version": VERSION,
        "router": router,
        "number": number,
        "oldest": number,
        "sent_at": 1000.0,
        "names": NAMES,
        "plans": [PLAN],
        "starts": [],
        "rows": [],
        "late": [],
        "feedback": [],
        "lost": [],
        "pairs": [],
    }
    return Batch(**(values | fields))
