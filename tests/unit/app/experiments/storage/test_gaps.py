"""A file of the ledger that is gone is noticed."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.config.experiments import LedgerSettings
from app.experiments.contract.journal import READ
from app.experiments.controller import Controller
from app.experiments.storage import segments
from app.experiments.storage.columns import Tables
from app.experiments.storage.directory import contents, history
from app.experiments.storage.gaps import ACCEPTED, EXPIRED, Gaps
from app.experiments.storage.journal import JOURNAL, SNAPSHOTS
from app.experiments.storage.segments import EXPOSURES
from app.experiments.storage.store import LocalStore
from app.exposures.wire import Lost, decode_acknowledgement, encode
from tests.conftest import NIGHTLY
from tests.support.experiments.exposures import batch, late, row, start
from tests.support.experiments.life import declared

DAY_S = 86400.0
BEGAN = 20_000 * DAY_S + 80_000.0
"""In the evening, so that runs pass midnight."""

ACCEPTED_FILE = f"ledger/{ACCEPTED}"

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # to shrink a case takes minutes

ROUTERS = ("router-a", "router-b", "router-c")

Step = tuple[str, float]
"""A router that sends a batch, none (""), or the next of which all drop ("dropped"), and the seconds until the next
step; before it, negative: the controller starts again."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("", "dropped", *ROUTERS)),
        st.sampled_from((1.0, 61.0, 61.0, 61.0, 3700.0, 30_000.0, -61.0)),
    ),
    min_size=1,
    max_size=14,
)
SENT = STEPS.map(lambda steps: [step for step in steps if step[0] != "dropped"])


@dataclass
class Sender:
    """A router: the number of its last batch, that of the last one that it no longer keeps, and its lost rows."""

    number: int = 0
    gone: int = 0
    lost: int = 0


class World:
    """The routers, and the time (Unix seconds) at which the next controller starts."""

    def __init__(self, began: float = BEGAN) -> None:
        self.now = began
        self.routers = {name: Sender() for name in ROUTERS}


def recorded(base: Path, steps: Sequence[Step], *, world: World | None = None, retention_days: int = 30) -> None:
    """A ledger with an experiment from its start. Each batch has one row, one start and one late request."""
    world = World() if world is None else world

    def started() -> Controller:
        ledger = LedgerSettings(url="ledger", retention_days=retention_days)
        controller = Controller(ledger, base=base, clock=lambda: world.now)
        controller.configure(declared().model_copy(update={"ledger": ledger}))
        controller.tick()
        return controller

    controller = started()
    for router, seconds in steps:
        for sender in world.routers.values() if router == "dropped" else ():
            sender.number, sender.lost = sender.number + 1, sender.lost + 1
            sender.gone = sender.number
        if router in ROUTERS:
            _send(controller, router, world.routers[router], world.now)
        if seconds < 0:
            controller.close()
            controller = started()
        for _ in range(3):  # a segment, then what is to be merged, then what another controller has written
            world.now += abs(seconds) / 3
            controller.tick()
    controller.close()
    for sender in world.routers.values():  # as the next acknowledgement says
        sender.gone = sender.number


def _send(controller: Controller, name: str, sender: Sender, now: float) -> None:
    """Sends the router's next batch."""
    sender.number += 1
    records = {"starts": [start(sender.number, at=now)], "rows": [row(sender.number, at=now)]}
    records |= {"late": [late(sender.number, at=now)], "lost": [Lost("chat", "green", sender.lost)] * (sender.lost > 0)}
    made = batch(sender.number, router=name, oldest=sender.gone + 1, sent_at=now, **records)
    sender.gone = max(sender.gone, decode_acknowledgement(controller.ingest(encode(made))).durable)


def gaps_of(base: Path, since: float = BEGAN) -> list[str]:
    store = LocalStore(base / "ledger")
    gaps = contents(store).gaps
    for _ in history(store, since, Tables(), {}, gaps):
        pass
    return gaps.since(since)


def files_of(base: Path) -> list[Path]:
    return sorted((base / "ledger" / EXPOSURES).rglob("*.parquet"))


def days_of(world: World) -> list[float]:
    """The beginnings of all days until the present one, in Unix seconds."""
    return [day * DAY_S for day in range(int(BEGAN // DAY_S), int(world.now // DAY_S) + 1)]


@settings(deadline=None, max_examples=100 if NIGHTLY else 10, phases=PHASES)
@given(steps=STEPS)
def test_every_file_that_is_gone_is_noticed(steps: list[Step]) -> None:
    """At every time, after restarts and merges, the last one and a whole day's too; and nothing else is."""
    with TemporaryDirectory() as name:
        base, world = Path(name), World()
        recorded(base, steps, world=world)
        assert [gap for day in days_of(world) for gap in gaps_of(base, day)] == []
        journal = (base / "ledger" / JOURNAL).rglob("*.jsonl")
        files = [*files_of(base), *(file for file in journal if EXPIRED not in file.name)]
        for gone in [*files, *sorted({file.parent for file in files})]:
            aside = base / "aside"
            gone.rename(aside)
            assert gaps_of(base), gone
            aside.rename(gone)
        assert gaps_of(base) == []


@settings(deadline=None, max_examples=100 if NIGHTLY else 10, phases=PHASES)
@given(before=STEPS, between=SENT, after=SENT)
def test_routers_that_have_gone_on_show_that_a_ledger_is_an_older_backup(
    before: list[Step], between: list[Step], after: list[Step]
) -> None:
    with TemporaryDirectory() as name:
        base, world = Path(name), World()
        told = [(router, 61.0) for router in ROUTERS]  # of what they have dropped
        recorded(base, [*before, *told], world=world)
        shutil.copytree(base / "ledger", base / "backup")
        recorded(base, between, world=world)
        shutil.rmtree(base / "ledger")
        (base / "backup").rename(base / "ledger")
        recorded(base, after, world=world)
        lost, later = ({router for router, _ in steps if router in ROUTERS} for steps in (between, after))
        assert bool(gaps_of(base)) == bool(lost & later)


@settings(deadline=None, max_examples=100 if NIGHTLY else 10, phases=PHASES)
@given(steps=STEPS)
def test_what_a_clean_stop_stored_is_witnessed_by_the_journal_alone(steps: list[Step]) -> None:
    with TemporaryDirectory() as name:
        base = Path(name)
        recorded(base, [*steps, ("router-a", 1.0)])
        shutil.rmtree(base / "ledger" / SNAPSHOTS)
        assert gaps_of(base) == []
        max(files_of(base), key=lambda file: file.stat().st_mtime).unlink()
        assert len(gaps_of(base)) == 1


def test_the_last_segment_of_a_day_may_be_older_than_its_name(tmp_path: Path) -> None:
    """The hour before was merged after it was written."""
    world = World()
    recorded(tmp_path, [("router-a", 61.0), ("router-a", 61.0), ("", 2608.0), ("router-a", 85.0)], world=world)
    recorded(tmp_path, [("", DAY_S), ("router-b", 61.0)], world=world)
    assert [gap for day in days_of(world) for gap in gaps_of(tmp_path, day)] == []


def test_versions_that_numbered_no_entries_and_noted_no_oldest_batch_raise_no_alarm(tmp_path: Path) -> None:
    world = World()
    recorded(tmp_path, [("router-a", 61.0), ("dropped", -61.0), ("router-a", 61.0), ("router-b", 61.0)], world=world)
    store, tables = LocalStore(tmp_path / "ledger"), Tables()
    for segment in segments.committed(store):
        content = segments.read(store, segment, tables)
        routers = {name: replace(router, oldest=0) for name, router in content.footer.routers.items()}
        segments.write(store, segment, content.exposures, tables, replace(content.footer, routers=routers))
    for file in (tmp_path / "ledger" / JOURNAL).rglob("*.jsonl"):
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        own = [entry for entry in entries if entry["kind"] != READ]
        lines = [json.dumps({name: value for name, value in entry.items() if name != "number"}) for entry in own]
        file.write_text("\n".join(lines))
    shutil.rmtree(tmp_path / "ledger" / SNAPSHOTS)
    assert gaps_of(tmp_path) == []
    recorded(tmp_path, [("router-c", 61.0), ("router-a", 61.0), ("router-b", 61.0)], world=world)
    assert gaps_of(tmp_path) == []


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
    recorded(tmp_path, [("router-b", 61.0)] * 2, world=World(BEGAN + 600))
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
    assert told.startswith("1 batch of records, stored by ")
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
    assert told.endswith(f": its {kind}: not what was written")


def test_an_owner_may_accept_what_the_journal_lacks(tmp_path: Path) -> None:
    recorded(tmp_path, [("router-a", 61.0)] * 3)
    (second,) = (tmp_path / "ledger" / JOURNAL).rglob("*-000003.jsonl")
    second.unlink()
    (told,) = gaps_of(tmp_path)
    assert "1 entry of the journal, stored by" in told
    (tmp_path / ACCEPTED_FILE).write_text(f"{told}\n")
    assert gaps_of(tmp_path) == []
    assert contents(LocalStore(tmp_path / "ledger")).gaps.known_since(BEGAN, BEGAN) == [told]


def test_a_damaged_state_of_another_experiment_makes_nothing_incomplete() -> None:
    gaps = Gaps(damaged={f"{SNAPSHOTS}/trial/writer.json": "it is not what was written"})
    assert gaps.since(0.0, experiment="other") == []
    assert len(gaps.since(0.0, experiment="trial")) == len(gaps.since(0.0)) == 1
