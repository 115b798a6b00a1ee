"""The memory of long bodies goes back to the system."""

import psutil
import pytest

from app.limits.bodies import Bodies, Room
from tests.support.waiting import wait_until

MIB = 1024 * 1024


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / MIB


@pytest.mark.parametrize("bodies", [1, 400], ids=["one of 80 MiB", "400 of 200 KiB"])
def test_what_lies_between_pieces_that_live_on_is_given_back_after_long_bodies(bodies: int) -> None:
    """As with texts of thousands of messages: no single buffer is large enough to be given back by itself."""
    of_all = Bodies()
    rooms = [Room(of_all, 1024 * MIB) for _ in range(bodies)]
    pieces = [b"x" * 8000 for _ in range(10_000)]
    for room in rooms:
        room.take(80 * MIB // bodies)
    kept = pieces[::200]
    del pieces
    held = resident_mib()
    for room in rooms:
        room.give_back()
    assert of_all.held == 0
    wait_until(lambda: resident_mib() < held - 40, resident_mib, within_s=10)
    assert len(kept) == 50
