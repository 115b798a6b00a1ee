"""A file of the ledger that is gone is noticed."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.experiments import LedgerSettings
from app.experiments.controller import Controller
from app.experiments.storage.columns import Tables
from app.experiments.storage.directory import history
from app.experiments.storage.gaps import ACCEPTED, Gaps
from app.experiments.storage.segments import EXPOSURES
from app.experiments.storage.store import LocalStore
from app.exposures.wire import encode
from tests.support.experiments.exposures import batch, late, row, start
from tests.support.experiments.life import declared

DAY_S = 86400.0
BEGAN = 20_000 * DAY_S + 80_000.0
"""In the evening, so that runs pass midnight."""

ACCEPTED_FILE = f"ledger/{ACCEPTED}"

ROUTERS = ("router-a", "router-b", "router-c")

Step = tuple[str, float]
"""A router that sends a batch, or none (""), and the seconds until the next step; before it, negative: the controller
starts again."""

STEPS = st.lists(
    st.tuples(st.sampled_from(("", *ROUTERS)), st.sampled_from((1.0, 61.0, 61.0, 61.0, 3700.0, 30_000.0, -61.0))),
    min_size=1,
    max_size=14,
)


def recorded(base: Path, steps: Sequence[Step], *, began: float = BEGAN, retention_days: int = 30) -> None:
    """A ledger with an experiment from its start. Each batch has one row, one start and one late request."""
    now, numbers = began, dict.fromkeys(ROUTERS, 0)

    def started() -> Controller:
        ledger = LedgerSettings(url="ledger", retention_days=retention_days)
        controller = Controller(ledger, base=base, clock=lambda: now)
        controller.configure(declared().model_copy(update={"ledger": ledger}))
        controller.tick()
        return controller

    controller = started()
    for router, seconds in steps:
        if router:
            numbers[router] += 1
            number = numbers[router]
            records = {"starts": [start(number, at=now)], "rows": [row(number, at=now)], "late": [late(number, at=now)]}
            controller.ingest(encode(batch(number, router=router, oldest=1, sent_at=now, **records)))
        if seconds < 0:
            controller.close()
            controller = started()
        for _ in range(3):  # a segment, then what is to be merged, then what another controller has written
            now += abs(seconds) / 3
            controller.tick()
    controller.close()


def gaps_of(base: Path, since: float = BEGAN) -> list[str]:
    gaps = Gaps()
    for _ in history(LocalStore(base / "ledger"), since, Tables(), {}, gaps):
        pass
    return gaps.since(since)


def files_of(base: Path) -> list[Path]:
    return sorted((base / "ledger" / EXPOSURES).rglob("*.parquet"))


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_every_file_that_is_gone_is_noticed(steps: list[Step]) -> None:
    """At every time, after restarts and merges, the last one and a whole day's too; and nothing else is."""
    with TemporaryDirectory() as name:
        base = Path(name)
        recorded(base, steps)
        assert gaps_of(base) == []
        folders = sorted({file.parent for file in files_of(base)})
        for gone in [*files_of(base), *folders]:
            aside = base / "aside"
            gone.rename(aside)
            assert gaps_of(base), gone
            aside.rename(gone)
        assert gaps_of(base) == []


def test_what_retention_deletes_is_told_and_makes_nothing_incomplete(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0), ("router-b", 61.0), ("", 3 * DAY_S), ("router-a", 61.0)], retention_days=1)
    ledger = LocalStore(tmp_path / "ledger")
    assert len(files_of(tmp_path)) == 1
    for since in (0.0, BEGAN, BEGAN + 2 * DAY_S):
        gaps = Gaps()
        assert sum(len(exposures.rows) for exposures in history(ledger, since, Tables(), {}, gaps)) == 1
        assert gaps.since(since) == []
        assert len(gaps.known_since(since, BEGAN)) == (since < BEGAN + 2 * DAY_S)
    files_of(tmp_path)[0].unlink()
    assert len(gaps_of(tmp_path)) == 1


def test_an_earlier_version_deleted_without_a_note(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0), ("", 3 * DAY_S), ("router-a", 61.0)], retention_days=1)
    for note in (tmp_path / "ledger").rglob("*-expired-*"):
        note.unlink()
    assert gaps_of(tmp_path) == []


def test_a_loss_is_told_after_more_was_recorded(tmp_path: Path) -> None:
    """The last segment is what a disk loses in a crash: no other one had counted it."""
    recorded(tmp_path, [("router-a", 61.0)] * 3)
    files_of(tmp_path)[-1].unlink()
    assert len(gaps_of(tmp_path)) == 1
    recorded(tmp_path, [("router-b", 61.0)] * 2, began=BEGAN + 600)
    assert len(gaps_of(tmp_path)) == 1


def test_a_loss_concerns_no_report_of_before_and_none_of_a_later_run(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0), ("router-a", DAY_S), ("router-a", DAY_S), ("router-a", DAY_S)])
    first, second, *_ = files_of(tmp_path)
    second.unlink()
    gaps = Gaps()
    assert [*history(LocalStore(tmp_path / "ledger"), BEGAN, Tables(), {}, gaps)]
    assert gaps.since(BEGAN, until=BEGAN + 30) == []
    assert len(gaps.since(BEGAN, until=BEGAN + DAY_S)) == len(gaps.since(BEGAN)) == 1
    assert gaps.since(BEGAN + 2.5 * DAY_S) == []
    assert len(gaps.known_since(BEGAN, run_began_at=BEGAN + 2.5 * DAY_S)) == 1, "it may have held what units did before"
    assert first.exists()


def test_an_owner_may_accept_a_loss_and_no_other_one_with_it(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0)] * 5)
    _, second, third, *_ = files_of(tmp_path)
    second.unlink()
    (told,) = gaps_of(tmp_path)
    assert told.startswith("1 batches of records, stored by ")
    (tmp_path / ACCEPTED_FILE).write_text(f"{told}\n")
    gaps = Gaps()
    rows = sum(len(exposures.rows) for exposures in history(LocalStore(tmp_path / "ledger"), BEGAN, Tables(), {}, gaps))
    assert (rows, gaps.since(BEGAN), gaps.known_since(BEGAN, BEGAN)) == (4, [], [told])
    third.unlink()
    assert len(gaps_of(tmp_path)) == 1


@pytest.mark.parametrize("kind", ["starts", "late"])
def test_another_segments_part_is_named(kind: str, tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0), ("router-b", 61.0), ("router-a", 61.0)])
    one, other = sorted((tmp_path / "ledger" / kind).rglob("*.parquet"))[:2]
    one.write_bytes(other.read_bytes())
    (told,) = gaps_of(tmp_path)
    assert told.endswith(f": its {kind} are not those that were written with it")
