"""What the controller has of routers' reports outlives it, and them, within bounds."""

import json
from contextlib import suppress
from typing import Any

import pytest

from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    ListedRequest,
    PeriodCounts,
    Taken,
    decode_taken,
    encode,
)
from app.activity.request_list import MOST_REQUESTS
from app.experiments.activity import REPORTS, REPORTS_S, SAVE_S, ActivityKeeper
from tests.support.experiments.failing_store import Death, Disk

NOW = 1_800_000_000.0


class World:
    """A controller on a disk, and routers that report one request in each period to it, and end with it."""

    def __init__(self) -> None:
        self.disk, self.now, self.reports, self.router, self.in_life = Disk(), NOW, 0, "", 0
        self.restart()

    def restart(self) -> None:
        """Everything is killed, and starts again."""
        self.keeper = ActivityKeeper(lambda: self.disk, lambda: self.now)
        self.router, self.in_life = f"{self.router}+", 0
        self.report([], [])

    def report(self, requests: list[ListedRequest], periods: list[PeriodCounts]) -> Taken:
        """Hands over a report, and periods once it is known for whom."""
        first = self.in_life
        self.in_life += len(requests)
        taken = self.keeper.take(encode(ActivityReport(self.router, first, requests, [], served_s=1.0)))
        keeper = decode_taken(taken.body).keeper
        report = ActivityReport(self.router, self.in_life, [], periods, keeper=keeper, served_s=1.0)
        return decode_taken(self.keeper.take(encode(report)).body)

    def period(self, **fields: Any) -> None:
        """A request in the next period, and what the controller does each second."""
        self.now, at = self.now + PERIOD_S, self.now
        self.disk.now = self.now
        one = ListedRequest(f"r{self.reports}", at, "openai", "chat", 200, 0.0, **fields)
        self.reports += 1
        self.report([one], [PeriodCounts(at, [], [ArmCounts("chat", "blue", 1)], [])])
        self.keeper.save_if_due()

    @property
    def listed(self) -> list[str]:
        document = json.loads(self.keeper.requests(b"{}").body)
        return [one["id"] for one in document["requests"]]

    @property
    def counted(self) -> float:
        (series,) = self.keeper.board.history("1h", self.now + 60, None)["series"] or [{"requests_per_s": []}]
        return float(round(60 * sum(series["requests_per_s"])))


@pytest.mark.parametrize("periods", [1, 7, 40])
def test_what_was_reported_outlives_all_processes(periods: int) -> None:
    world = World()
    for _ in range(3):
        for _ in range(periods):
            world.period()
        world.restart()
    assert world.listed == [f"r{number}" for number in reversed(range(3 * periods))]
    assert world.counted == 3 * periods


@pytest.mark.parametrize("operations", range(14))
def test_nothing_is_counted_twice_wherever_a_save_is_killed(operations: int) -> None:
    world = World()
    for _ in range(3):
        world.period()
    world.disk.dies_after = operations
    with suppress(Death):
        world.keeper.save()
    world.disk.dies_after = None
    world.restart()
    assert (world.listed, world.counted) == (["r2", "r1", "r0"], 3)


def test_files_of_reports_are_few_and_end_with_a_save() -> None:
    world, most = World(), 0
    for number in range(100):
        world.period()
        most = max(most, len(world.disk.list(REPORTS)))
        if number == 50:
            world.restart()
    assert 10 < most <= SAVE_S / REPORTS_S
    world.keeper.save()
    assert world.disk.list(REPORTS) == []


def test_a_flood_writes_no_more_requests_than_the_list_has() -> None:
    world = World()
    world.period()
    most = 3 * MOST_REQUESTS
    times = [world.now + number / most for number in range(most)]
    world.report([ListedRequest(f"f{at}", at, "openai", "chat", 200, 0.0) for at in times], [])
    world.period()
    (file,) = (data for path, data in world.disk.files.items() if path.startswith(REPORTS))
    assert len(file) < 200 * MOST_REQUESTS
    before = world.listed
    world.restart()
    assert world.listed == before


def test_after_a_file_that_could_not_be_written_routers_are_asked_for_what_it_lacks() -> None:
    world = World()
    world.period()
    world.disk.fails = True
    world.period()
    world.disk.fails = False
    world.period()
    world.restart()
    assert world.listed == ["r0"]
    first_router = encode(ActivityReport("+", 0, [], []))
    assert decode_taken(world.keeper.take(first_router).body).saved == NOW


def test_an_engines_words_are_in_no_file() -> None:
    world = World()
    world.period()
    world.period(message="a secret prompt is too long", is_engines=True)
    world.period(message="The deployment failed", engine_message="a secret prompt")
    assert any(path.startswith(REPORTS) for path in world.disk.files)
    world.keeper.save()
    assert b"secret" not in b"".join(world.disk.files.values())
    assert "secret" in world.keeper.requests(b"{}").body.decode()
