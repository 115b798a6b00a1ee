"""The journal and the snapshots: reading returns what was written, and a broken entry does not affect the others."""

from pathlib import Path

import msgspec

from app.experiments.contract.journal import JournalEntry
from app.experiments.storage import journal
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.store import LocalStore


def test_entries_come_back_in_the_order_of_their_times(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, second = (
        JournalEntry(10.0, "alarm", "trial", {"text": "slow"}, "a"),
        JournalEntry(20.0, "controller_started"),
    )
    journal.append_entries(store, "b-1", [second])
    journal.append_entries(store, "a-1", [first])
    assert journal.read_entries(store) == [first, second]


def test_a_line_that_is_no_entry_is_left_out(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    journal.append_entries(store, "a-1", [JournalEntry(10.0, "alarm")])
    file = tmp_path / "journal/date=1970-01-01/a-1.jsonl"
    file.write_bytes(file.read_bytes() + b'{"at": 1')
    (file.parent / "README").write_text("hello")
    assert journal.read_entries(store) == [JournalEntry(10.0, "alarm")]


def test_whichever_bit_is_flipped_no_entry_says_something_else(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    entries = [JournalEntry(10.0, "alarm", "trial", {"text": "slow"}, "a", 1), JournalEntry(20.0, "verdict", number=2)]
    journal.append_entries(store, "a-1", entries)
    file = tmp_path / "journal/date=1970-01-01/a-1.jsonl"
    whole = file.read_bytes()
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        damaged: dict[str, str] = {}
        read = journal.read_entries(store, damaged)
        assert all(entry in entries for entry in read), place
        assert damaged or read == entries, place


def test_a_changed_snapshot_is_named_and_does_not_count_and_one_of_an_earlier_version_does(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    snapshot = AnalysisSnapshot(10.0, "trial", 1.0, {"log_e": 2.0})
    journal.write_snapshot(store, "writer-a", snapshot)
    file = tmp_path / "state/trial/writer-a.json"
    file.write_bytes(file.read_bytes().replace(b"2.0", b"9.0"))
    damaged: dict[str, str] = {}
    assert journal.latest_snapshots(store, damaged) == {}
    assert damaged.keys() == {"state/trial/writer-a.json"}
    file.write_bytes(msgspec.json.encode(snapshot))
    assert journal.latest_snapshots(store) == {"trial": snapshot}


def test_the_newest_snapshot_counts_and_old_ones_of_others_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    old, new = AnalysisSnapshot(10.0, "trial", 1.0, {"e": 1}), AnalysisSnapshot(20.0, "trial", 1.0, {"e": 2})
    journal.write_snapshot(store, "writer-b", new)
    journal.write_snapshot(store, "writer-a", old)
    store.write("state/trial/broken.json", b"{")
    assert journal.latest_snapshots(store) == {"trial": new}
    journal.discard_snapshots(store, "writer-b", before=0.0)
    assert len(store.list("state")) == 3
    journal.discard_snapshots(store, "writer-b", before=1e12)
    assert [file.path for file in store.list("state")] == ["state/trial/writer-b.json"]
