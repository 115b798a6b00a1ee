"""The memory of long bodies goes back to the system."""

import psutil

from app.limits.bodies import Bodies, Room
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / MIB


def test_what_lies_between_pieces_that_live_on_is_given_back_after_a_long_body() -> None:
    """As with texts of thousands of messages: no single buffer is large enough to be given back by itself."""
    room = Room(Bodies(), 1024 * MIB)
    pieces = [b"x" * 8000 for _ in range(10_000)]
    room.take(80 * MIB)
    kept = pieces[::200]
    del pieces
    held = resident_mib()
    room.give_back()
    wait_until(lambda: resident_mib() < held - 40, resident_mib, within_s=10)
    assert len(kept) == 50
