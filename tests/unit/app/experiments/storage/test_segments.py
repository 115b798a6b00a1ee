"""Segments: reading returns what was written; uncommitted parts do not count.

A set of numbers as ranges is a set of numbers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiments.storage import directory, segments
from app.experiments.storage.columns import Exposures, Tables, from_batch, router_hash
from app.experiments.storage.gaps import Gaps
from app.experiments.storage.segments import Footer, Numbers, RouterRecord, Segment
from app.experiments.storage.store import Damaged, LocalStore, Missing
from app.exposures.wire import FeedbackItem, Lost, Plan
from tests.support.experiments.exposures import PLAN, batch, late, pair, row, start

SEGMENT = Segment("2026-11-12", "w-000001")
OTHER = Plan("chat", "0-bbbbbbbb", {"blue": 90, "green": 10})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def footer(*numbers: int, at: float = 1000.0, **fields: Any) -> Footer:
    state = RouterRecord([[1, 3]], [Lost("chat", "blue", 5)], at)
    batches = {"router-a": Numbers(numbers).dump()}
    return Footer(written_at=at, batches=batches, routers={"router-a": state}, **fields)


def exposures(tables: Tables, number: int = 1) -> Exposures:
    seq = 10 * number
    return from_batch(
        batch(
            number,
            plans=[PLAN, OTHER],
            starts=[start(seq, unit=2**64 - 1), start(seq + 1, plan=1, assigned=1)],
            rows=[
                row(seq, served=-1, ttft_s=None, completion_tokens=None, cold=True, flags=9),
                row(seq + 1, plan=1, assigned=1, served=1, max_tokens=2**31),
            ],
            late=[late(seq)],
            feedback=[FeedbackItem(1000.5, 2**63 + seq, 7, "thumbs", -1.5)],
            pairs=[pair(seq, valid=0, tokens=None), pair(seq + 1, skipped=1, status=0)],
        ),
        tables,
    )


def same(one: Exposures, other: Exposures) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=getattr(a, name).dtype.kind == "f")
        for a, b in zip(one, other, strict=True)
        for name in a.names()
    )


def test_a_segment_comes_back_as_it_was_written(store: LocalStore) -> None:
    tables = Tables()
    written = Exposures.concat([exposures(tables, number) for number in (1, 2, 3)])
    segments.write(store, SEGMENT, written, tables, footer(1, 2, 3))
    starts, read, _ = segments.read(store, SEGMENT, tables)
    assert same(read, written)
    assert read.feedback.items(tables)[0] == FeedbackItem(1000.5, 2**63 + 10, 7, "thumbs", -1.5)
    assert starts.records == {"exposures": 6, "starts": 6, "late": 3, "feedback": 3, "pairs": 6}
    assert starts == segments.read_footer(store, SEGMENT)
    assert starts.routers["router-a"].lost == [Lost("chat", "blue", 5)]


def test_another_controller_gives_names_codes_of_its_own(store: LocalStore) -> None:
    tables = Tables()
    written = exposures(tables)
    segments.write(store, SEGMENT, written, tables, footer(1))
    other = Tables()
    other.name("something else")
    other.plan(OTHER)
    rows = segments.read(store, SEGMENT, other)[1].rows
    assert [other.names[code] for code in rows.assigned.tolist()] == ["blue", "green"]
    assert [other.plans[code] for code in rows.plan.tolist()] == [PLAN, OTHER]
    assert [other.names[code] if code >= 0 else None for code in rows.served.tolist()] == [None, "green"]


def test_any_reader_of_parquet_sees_names_and_nulls(store: LocalStore, tmp_path: Path) -> None:
    tables = Tables()
    segments.write(store, SEGMENT, exposures(tables), tables, footer(1))
    table = pq.read_table(tmp_path / "exposures")
    assert table.column("date").to_pylist() == ["2026-11-12"] * 2
    assert table.column("served").to_pylist() == [None, "green"]
    assert table.column("ttft_s").to_pylist() == [None, 0.25]
    assert table.column("max_tokens").to_pylist() == [None, 2**31]
    assert table.column("plan").to_pylist() == ["0-aaaaaaaa", "0-bbbbbbbb"]
    assert table.column("weights").to_pylist()[1] == '{"blue":90,"green":10}'


def test_an_empty_segment_is_one_file(store: LocalStore) -> None:
    nothing = Exposures.concat([])
    segments.write(store, SEGMENT, nothing, Tables(), footer())
    assert same(segments.read(store, SEGMENT, Tables())[1], nothing)
    assert [store.list(kind) != [] for kind in segments.KINDS] == [True, False, False, False, False]


def test_parts_without_their_commit_do_not_count_and_are_deleted_after_an_hour(store: LocalStore) -> None:
    tables = Tables()
    segments.write(store, SEGMENT, exposures(tables), tables, footer(1))
    (written,) = store.list("starts")
    store.delete(SEGMENT.path("exposures"))
    assert segments.committed(store) == []
    with pytest.raises(Missing):
        segments.read(store, SEGMENT, tables)
    now = written.modified_at
    directory.tidy(store, now=now + 3000, retention_days=3650, writer="w")
    assert store.list("starts") != []
    directory.tidy(store, now=now + 4000, retention_days=3650, writer="w")
    assert [store.list(kind) for kind in segments.KINDS] == [[], [], [], [], []]


def test_a_file_that_is_no_segment_is_left_out_and_left_alone(store: LocalStore) -> None:
    foreign = Segment("2026-11-12", "foreign")
    store.write(foreign.path("exposures"), b"no parquet")
    store.write("exposures/date=2026-11-12/README", b"hello")
    store.write("exposures/date=2026-11-12/.w-1.parquet.tmp", b"")
    assert segments.committed(store) == [foreign]
    with pytest.raises(Damaged):
        segments.read_footer(store, foreign)
    assert list(directory.history(store, 0.0, Tables(), {}, Gaps())) == []
    assert directory.merge(store, [foreign], SEGMENT) is None
    assert store.list("exposures")[-1].path.endswith("foreign.parquet")


def test_merging_holds_every_batch_once(store: LocalStore) -> None:
    tables = Tables()
    sources = [Segment("2026-11-12", f"w-{number}") for number in (1, 2, 3)]
    for source, numbers in zip(sources, [(1, 2), (2, 3), (5,)], strict=True):
        part = Exposures.concat([exposures(tables, number) for number in numbers])
        segments.write(store, source, part, tables, footer(*numbers, at=1000.0 + numbers[0]))
    merged = directory.merge(store, sources, Segment("2026-11-12", "w-4"))
    assert merged is not None
    assert (merged.batches, merged.merged) == ({"router-a": [[1, 3], [5, 5]]}, True)
    (found,) = directory.history(store, 0.0, Tables(), {}, Gaps())
    assert sorted(found.rows.batch.tolist()) == [1, 1, 2, 2, 3, 3, 5, 5]
    assert [len(store.list(kind)) for kind in segments.KINDS] == [1, 1, 1, 1, 1]


def test_a_merged_segment_whose_sources_remain_changes_nothing(store: LocalStore) -> None:
    """The state after a crash before the sources were deleted."""
    tables = Tables()
    for name, numbers in (("w-1", (1,)), ("w-2", (2,)), ("w-3", (1, 2))):
        part = Exposures.concat([exposures(tables, number) for number in numbers])
        segments.write(store, Segment("2026-11-12", name), part, tables, footer(*numbers, at=float(numbers[-1])))
    known: dict[int, Numbers] = {}
    found = Exposures.concat(list(directory.history(store, 0.0, Tables(), known, Gaps())))
    assert sorted(found.starts.seq.tolist()) == [10, 11, 20, 21]
    assert list(known[router_hash("router-a")]) == [1, 2]


def test_only_hours_that_are_over_are_merged_and_not_too_much_at_once() -> None:
    def small(hour: int, number: int, records: int = 10) -> tuple[Segment, Footer]:
        made = footer(number, at=hour * 3600.0 + number, records={"exposures": records})
        return Segment("1970-01-01", f"w-{hour}-{number}"), made

    footers = dict([small(1, 1), small(2, 1), small(2, 2), small(3, 1), small(3, 2)])
    assert [segment.name for segment in directory.due_for_merging(footers, now=3.5 * 3600)] == ["w-2-1", "w-2-2"]
    assert directory.due_for_merging(dict([small(1, 1), small(2, 1)]), now=9 * 3600) == []
    large = [small(1, number, records=300_000) for number in (1, 2)]
    assert directory.due_for_merging(dict(large), now=9 * 3600) == []
    assert [segment.name for segment in directory.due_for_merging(dict([*large, small(1, 3)]), now=9 * 3600)] == [
        "w-1-1",
        "w-1-3",
    ]


SETS = st.sets(st.integers(1, 30))


@given(SETS, SETS, st.integers(1, 30), st.integers(0, 31))
def test_numbers_behave_like_a_set(one: set[int], other: set[int], added: int, floor: int) -> None:
    a, b = Numbers(one), Numbers(other)
    assert set(a) == one
    assert set(a.union(b)) == one | other
    assert a.is_within(b) == (one <= other)
    assert set(Numbers(ranges=a.dump())) == one
    reached = floor
    while reached + 1 in one:
        reached += 1
    assert a.reach(floor) == reached
    a.add(added)
    a.update(b)
    assert set(a) == one | other | {added}
    assert all((number in a) == (number in one | other | {added}) for number in range(32))


def test_numbers_in_order_are_one_range() -> None:
    numbers = Numbers()
    for number in range(1, 1000):
        numbers.add(number)
    assert numbers.dump() == [[1, 999]]
