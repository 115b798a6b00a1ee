"""The audit log on disk: append-only, bounded by age and size, each record once."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from app.experiments.audit import FILES_AT_ONCE, AuditTrail
from app.experiments.storage.store import LocalStore
from app.exposures.audit import AuditRecord, new_id

DAY = 86400.0
START = 1_795_000_000.0


class CountingStore(LocalStore):
    """Counts how often each file is read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened = Counter[str]()

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        self.opened[path] += 1
        with super().open(path) as file:
            yield file


class Disk:
    def __init__(self, directory: Path, *, file_bytes: int = 1000, max_files: int = 1000, days: int = 10) -> None:
        self.now, self.directory, self.store = START, directory, CountingStore(directory)
        self._days, self._bounds = days, {"file_bytes": file_bytes, "max_files": max_files}
        self.trail = self.another()

    def another(self) -> AuditTrail:
        """A controller's, as of now."""
        return AuditTrail(lambda: self.store, lambda: self._days, lambda: self.now, **self._bounds)

    def record(self, action: str = "put_traffic", **fields: Any) -> AuditRecord:
        self.now += 1
        return AuditRecord(id=new_id(self.now), at=self.now, action=action, outcome="accepted", status=200, **fields)

    def found(self, trail: AuditTrail, **query: str) -> list[str]:
        return [record["id"] for record in json.loads(trail.answer({"limit": "10000", **query}).body)["records"]]

    @property
    def files(self) -> list[Path]:
        return sorted(self.directory.glob("audit/date=*/*.jsonl"))


def test_every_record_is_found_once_by_every_controller(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    records = [disk.record() for _ in range(50)]
    for record in records:
        disk.trail.keep([record])
        disk.trail.keep([record])  # delivered again: the router saw no answer
    other = disk.another()
    other.keep([late := disk.record()])
    ids = [record.id for record in reversed([*records, late])]
    assert disk.found(disk.trail) == disk.found(other) == ids
    assert len(disk.files) > 2


def test_what_is_written_is_not_changed_but_for_more_lines(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    seen: dict[Path, str] = {}
    for _ in range(30):
        disk.trail.keep([disk.record()])
        now = {file: file.read_text() for file in disk.files}
        assert all(now[file].startswith(text) for file, text in seen.items())
        seen = now
    assert all(len(text) < 1000 + 600 for text in seen.values())


def test_a_line_that_is_not_what_was_written_is_counted_and_no_record(tmp_path: Path) -> None:
    """Earlier versions wrote no checksum: their lines count."""
    disk = Disk(tmp_path)
    records = [disk.record() for _ in range(3)]
    disk.trail.keep(records)
    [file] = disk.files
    first, second, third = file.read_bytes().splitlines(keepends=True)
    path = str(file.relative_to(tmp_path))
    for changed, left in (
        (second.replace(b'"accepted"', b'"refused"'), [2, 0]),
        (second[:-9] + b"\n", [2, 0]),
        (msgspec.json.encode(records[1]) + b"\n", [2, 1, 0]),
    ):
        file.write_bytes(first + changed + third)
        answer = json.loads(disk.another().answer({}).body)
        assert [record["id"] for record in answer["records"]] == [records[number].id for number in left]
        assert answer["damaged"] == ({path: 1} if len(left) == 2 else {})


def test_old_records_and_those_above_the_size_are_deleted(tmp_path: Path) -> None:
    disk = Disk(tmp_path, days=10)
    old = disk.record()
    disk.trail.keep([old])
    disk.now += 9 * DAY
    disk.trail.keep([kept := disk.record()])
    assert disk.found(disk.trail) == [kept.id, old.id]
    disk.now += 3 * DAY
    disk.trail.keep([new := disk.record()])
    assert disk.found(disk.trail) == [new.id, kept.id]
    small = Disk(tmp_path / "small", max_files=3)
    records = [small.record() for _ in range(60)]
    for record in records:
        small.trail.keep([record])
    assert len(small.files) == 3
    ids = [record.id for record in reversed(records)]
    found = small.found(small.trail)
    assert found == ids[: len(found)]


def test_a_line_that_is_no_record_hides_no_other(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.trail.keep([record := disk.record()])
    (file,) = disk.files
    file.with_name("other.jsonl").write_text("half a li")
    assert disk.found(disk.trail) == [record.id]


def test_a_first_page_names_all_by_which_records_can_be_found(tmp_path: Path) -> None:
    """Also those of records that the page does not show, or that its filters leave out."""
    disk = Disk(tmp_path)

    def names(**query: str) -> dict[str, list[str]]:
        named: dict[str, list[str]] = json.loads(disk.trail.answer({"limit": "1", **query}).body)["names"]
        return named

    assert names() == {"caller": [], "endpoint": [], "action": []}
    disk.trail.keep([disk.record("create_key", caller="ann")])
    disk.now += DAY
    disk.trail.keep([disk.record(caller="boss", endpoint="chat")])
    disk.now += DAY
    disk.trail.keep([latest := disk.record(caller="boss", endpoint="embed")])
    every = {"caller": ["ann", "boss"], "endpoint": ["chat", "embed"], "action": ["create_key", "put_traffic"]}
    assert names() == names(caller="nobody") == every
    disk.trail.keep([disk.record("deploy", caller="")])
    assert names()["caller"] == ["-", "ann", "boss"]
    assert len(json.loads(disk.trail.answer({"caller": "-"}).body)["records"]) == 1
    disk.trail.keep([disk.record(caller="carl")])
    disk.store.opened.clear()
    assert names()["caller"] == ["-", "ann", "boss", "carl"]
    assert list(disk.store.opened.values()) == [1], "today's file is read once for both"
    assert "names" not in json.loads(disk.trail.answer({"before": latest.id}).body)
    disk.now += 9.5 * DAY
    disk.trail.keep([disk.record(caller="carl")])
    assert names()["caller"] == ["-", "boss", "carl"], "the oldest are deleted"


def test_names_of_many_old_files_come_with_later_answers(tmp_path: Path) -> None:
    disk = Disk(tmp_path, days=1000)
    for number in range(FILES_AT_ONCE + 10):
        disk.trail.keep([disk.record(caller=f"caller-{number}")])
        disk.now += DAY

    def known() -> int:
        return len(json.loads(disk.trail.answer({}).body)["names"]["caller"])

    assert known() == FILES_AT_ONCE
    assert known() == known() == FILES_AT_ONCE + 10
