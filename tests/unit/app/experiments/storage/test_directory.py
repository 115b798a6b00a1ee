"""A file of the ledger that is gone is noticed."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.experiments import LedgerSettings
from app.experiments.controller import Controller
from app.experiments.storage.columns import Tables
from app.experiments.storage.directory import Gaps, history
from app.experiments.storage.segments import EXPOSURES
from app.experiments.storage.store import LocalStore
from app.exposures.wire import encode
from tests.support.experiments.exposures import batch, row
from tests.support.experiments.life import declared

DAY_S = 86400.0
BEGAN = 20_000 * DAY_S + 80_000.0
"""In the evening, so that runs pass midnight."""

ROUTERS = ("router-a", "router-b", "router-c")

Step = tuple[str, float]
"""A router that sends a batch, or none (""), and the seconds until the next step; before it, negative: the controller
starts again."""

STEPS = st.lists(
    st.tuples(st.sampled_from(("", *ROUTERS)), st.sampled_from((1.0, 61.0, 61.0, 61.0, 3700.0, 30_000.0, -61.0))),
    min_size=1,
    max_size=14,
)


def recorded(base: Path, steps: Sequence[Step]) -> None:
    """A ledger with an experiment from its start."""
    now, numbers = BEGAN, dict.fromkeys(ROUTERS, 0)

    def started() -> Controller:
        controller = Controller(LedgerSettings(url="ledger"), base=base, clock=lambda: now)
        controller.configure(declared())
        controller.tick()
        return controller

    controller = started()
    for router, seconds in steps:
        if router:
            numbers[router] += 1
            rows = [row(numbers[router], at=now)]
            controller.ingest(encode(batch(numbers[router], router=router, rows=rows, oldest=1, sent_at=now)))
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
    assert not gaps.accepted_since(since) or not gaps.since(since)
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


def test_what_retention_has_deleted_is_not_missed(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0), ("router-b", 61.0), ("", 2 * DAY_S), ("router-a", 61.0), ("", 61.0)])
    first, _ = sorted({file.parent for file in files_of(tmp_path)})
    shutil.rmtree(first)
    assert gaps_of(tmp_path, since=0.0) == []
    assert gaps_of(tmp_path, since=BEGAN + DAY_S) == []
    assert len(gaps_of(tmp_path)) == 1


def test_an_owner_may_accept_that_files_are_gone(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0)] * 3)
    gone = files_of(tmp_path)[1]
    gone.unlink()
    (told,) = gaps_of(tmp_path)
    assert told.startswith(
        f"exposures/{gone.parent.name}: 1 of routers' batches are in no file, which were stored from "
    )
    (gone.parent / "known.lost").touch()
    gaps = Gaps()
    rows = sum(len(exposures.rows) for exposures in history(LocalStore(tmp_path / "ledger"), BEGAN, Tables(), {}, gaps))
    assert (rows, gaps.since(BEGAN), gaps.accepted_since(BEGAN)) == (2, [], [told])
