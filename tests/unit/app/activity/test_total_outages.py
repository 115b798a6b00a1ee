"""From when to when no router answered: as controllers know it that hear from routers, against their lives."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.activity.board import RANGES, Board
from app.activity.outages import KEPT_S, MOST_SPANS, NEXT_REPORT_S, Served, Span
from app.activity.report import ActivityReport, encode
from app.experiments.activity import ROUTERS, ActivityKeeper
from app.experiments.storage.store import File

NOW = 1_800_000_000.0
LATE_S = round(NEXT_REPORT_S)
NEAR_S = 2
"""How true the beginning of an outage is: it is the last report, and a router may have died until the next one."""


class Life(NamedTuple):
    """In seconds; it lives at `begin`, and not any more at `end`. `is_killed`: or it ends by itself. `stopping`: for
    how long a router is there after its end, finishes its requests and gets no others."""

    begin: int
    end: int
    is_killed: bool = True
    stopping: int = 0

    def has(self, second: int) -> bool:
        return self.begin <= second < self.end


@dataclass
class Memory:
    """A directory."""

    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        yield io.BytesIO(self.files[path])

    def list(self, folder: str) -> list[File]:
        return [File(path, number) for number, path in enumerate(self.files) if path.startswith(f"{folder}/")]

    def delete(self, path: str) -> None:
        self.files.pop(path, None)


def report(router: str, served_s: float | None) -> bytes:
    return encode(ActivityReport(router, 0, [], [], served_s=served_s))


class World:
    """Routers that report every two seconds to the controller, if there is one."""

    def __init__(self, routers: list[Life], controllers: list[Life]) -> None:
        self.routers, self.controllers = routers, controllers
        self.heard: set[Life] = set()
        self.now, store, keeper = NOW, Memory(), None
        for second in range(max(life.end for life in (*routers, *controllers)) + 1):
            self.now = NOW + second
            for life in controllers:
                if life.end == second and keeper is not None:
                    if not life.is_killed:
                        keeper.save()
                    keeper = None
                if life.begin == second:
                    keeper = ActivityKeeper(lambda: store, lambda: self.now)
            if keeper is None:
                continue
            for number, router in enumerate(routers):
                if router.begin <= second < router.end + router.stopping and (second - router.begin) % LATE_S == 1:
                    oldest = min(one.begin for one in (router, *self.elders(router)))
                    keeper.take(report(str(number), second - oldest if router.has(second) else None))
                    self.heard.add(router)
            keeper.save_if_due()
        last = ActivityKeeper(lambda: store, lambda: self.now) if keeper is None else keeper
        last.history({}, b"null")
        self.claimed = [(round(begin - NOW), round(end - NOW)) for begin, end in last.board.served.outages(0, 2 * NOW)]

    def elders(self, router: Life) -> list[Life]:
        """The routers that run when it begins."""
        return [one for one in self.routers if one is not router and one.has(router.begin)]

    def lives(self, second: int) -> list[Life]:
        return [router for router in self.routers if router.has(second)]

    def hears(self, second: int) -> bool:
        """Whether a router that lives would have been heard by now."""
        return any(life.has(second) and life.has(second - LATE_S) for life in self.controllers)

    def outages(self) -> list[tuple[int, int]]:
        """The true ones."""
        ends = sorted(router.end for router in self.routers)
        begins = sorted(router.begin for router in self.routers)
        found = []
        for end in dict.fromkeys(ends):
            after = next((begin for begin in begins if begin >= end), None)
            if not self.lives(end) and after is not None:
                found.append((end, after))
        return found


ROUTER_LIVES = st.builds(lambda begin, length: Life(begin, begin + length), st.integers(0, 200), st.integers(3, 60))


@st.composite
def controller_lives(draw: st.DrawFn) -> list[Life]:
    """One after another, with pauses between them."""
    lives, begin = [], draw(st.integers(0, 20))
    for _ in range(draw(st.integers(1, 4))):
        end = begin + draw(st.integers(1, 120))
        lives.append(Life(begin, end, draw(st.booleans())))
        begin = end + draw(st.integers(0, 60))
    return lives


@given(st.lists(ROUTER_LIVES, min_size=1, max_size=6), controller_lives())
@example([Life(0, 100), Life(90, 150)], [Life(0, 80), Life(120, 200)])  # a rolling update while the controller is away
@example([Life(0, 100)], [Life(0, 30), Life(60, 150)])  # the controller alone is away
def test_no_outage_is_claimed_that_was_none(routers: list[Life], controllers: list[Life]) -> None:
    world = World(routers, controllers)
    for begin, end in world.claimed:
        for second in range(begin + NEAR_S, end):
            assert not world.lives(second) or not world.hears(second)
        known = world.heard.union(*(world.elders(router) for router in world.heard))
        assert not known.intersection(world.lives(end - 1))


@given(st.lists(ROUTER_LIVES, min_size=1, max_size=6))
def test_every_outage_is_found_that_a_controller_lives_through(routers: list[Life]) -> None:
    world = World(routers, [Life(0, 300)])
    begins, true = {end: begin for begin, end in world.claimed}, {end: begin for begin, end in world.outages()}
    assert begins.keys() <= true.keys()
    for end, began in true.items():
        assert end - began <= NEAR_S or abs(begins[end] - began) <= NEAR_S


@pytest.mark.parametrize("is_killed", [True, False])
@given(
    ended=st.integers(20, 100),
    away=st.integers(NEAR_S + 1, 90),
    routers=st.integers(1, 3),
    late=st.integers(0, 9),
    stopping=st.integers(0, 9),
)
def test_a_restart_of_everything_is_an_outage(
    *, is_killed: bool, ended: int, away: int, routers: int, late: int, stopping: int
) -> None:
    back = ended + away
    lives = [Life(begin, begin + 50) for begin in range(back, back + routers)]
    stopping = 0 if is_killed else min(stopping, away - 1)
    controller_end, next_begin = ended + stopping, max(back + late - 5, ended + stopping)
    world = World(
        [Life(0, ended, is_killed, stopping), *lives],
        [Life(0, controller_end, is_killed), Life(next_begin, back + 60)],
    )
    ((begin, end),) = world.claimed
    assert end == back
    assert abs(begin - ended) <= NEAR_S


def test_a_first_start_is_no_outage_and_history_says_both_ends() -> None:
    board, at = Board(), NOW - NOW % 60 - 600
    for seconds, name, served_s in ((0, "a", 0.0), (2, "a", 2.0), (4, "a", None), (34, "b", 2.0)):
        board.take(ActivityReport(name, 0, [], [], served_s=served_s), at + seconds)
    for name in RANGES:
        document = board.history(name, at + 60, [])
        assert document["no_router"] == [{"from": at + 2, "to": at + 32}]
        assert document["series"] == []
        assert document["since"] == at
    assert board.history("15m", at + 10, None)["no_router"] == []


def test_a_clock_that_is_set_makes_no_outage() -> None:
    board = Board()
    for seconds, served_s in ((0, 5.0), (3600, 7.0), (-50, 9.0)):
        board.take(ActivityReport("a", 0, [], [], served_s=served_s), NOW + seconds)
    assert board.served.outages(0, 2 * NOW) == []


def test_the_last_outages_of_a_week_are_kept() -> None:
    served = Served()
    for number in range(MOST_SPANS + 50):
        served.add([(NOW + 60 * number, NOW + 60 * number + 50)], NOW + 60 * number + 50)
    assert len(served.outages(0, 2 * NOW)) == MOST_SPANS
    later = NOW + KEPT_S + 60 * (MOST_SPANS + 50)
    served.add([(later, later + 1)], later + 1)
    (outage,) = served.outages(0, 2 * NOW)
    assert outage == (served.spans[0][1], later)


@pytest.mark.parametrize("mark", [b"", b"\xc1", b"\x01"])
def test_a_damaged_mark_takes_nothing_else_with_it(mark: bytes) -> None:
    store = Memory()
    keeper = ActivityKeeper(lambda: store, lambda: NOW)
    keeper.take(report("a", 1.0))
    keeper.board.used["key"] = NOW
    keeper.save()
    for path in [path for path in store.files if path.startswith(ROUTERS)]:
        store.files[path] = mark
    again = ActivityKeeper(lambda: store, lambda: NOW + 60)
    again.take(report("b", 1.0))
    assert again.board.used == {"key": NOW}
    spans: list[Span] = [(NOW + 59, NOW + 60)]
    assert again.board.served.spans == spans
