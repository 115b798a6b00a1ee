"""Old evidence counts: segments of every version since the first are read, and nothing is left out silently.

`versions/1` … hold the same four requests, each written by the code of its time: 1 the first segments, 2 batches as
ranges of numbers in the footer, 3 mirrored pairs, 4 the times of arrival, 5 callers' groups, 6 continued streams, 7
callers of late records. A change of what is written needs a new folder here.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.experiments.storage import segments
from app.experiments.storage.columns import Columns, Exposures, PairColumns, RowColumns, Tables, from_batch
from app.experiments.storage.directory import history, merge
from app.experiments.storage.gaps import Gaps
from app.experiments.storage.segments import Footer, Numbers, RouterRecord, Segment
from app.experiments.storage.store import Damaged, LocalStore, Missing
from app.exposures.wire import Lost
from tests.support.experiments.exposures import batch, late, pair, row, start

VERSIONS = Path(__file__).parent / "versions"
SEGMENT = Segment("1970-01-01", "w-000001")
NEEDED = {
    *("router", "batch", "seq", "at", "unit", "caller", "request", "endpoint", "plan", "weights", "assigned", "flags"),
    *("stream", "status", "error"),
}
"""The columns of a row without which it says nothing."""


SINCE = {"arrived": 4, "group": 5, "moves": 6, "pause_s": 6, "caller": 7}
"""The versions that brought columns which older ones lack."""


def kept(version: str) -> segments.SegmentContent:
    return segments.read(LocalStore(VERSIONS / version), SEGMENT, Tables())


def written(directory: Path, *numbers: int) -> Segment:
    """Writes a segment of two requests for each batch."""
    tables, segment = Tables(), Segment("1970-01-01", f"w-{numbers[0]:06d}")
    parts = [
        from_batch(
            batch(
                number,
                starts=[start(number), start(number + 50)],
                rows=[row(number, cold=True), row(number + 50, assigned=1, served=1)],
                late=[late(number)],
                pairs=[pair(number)],
            ),
            tables,
        )
        for number in numbers
    ]
    state = RouterRecord(Numbers(numbers).dump(), [], 1000.0)
    footer = Footer(
        written_at=1000.0, batches={"router-a": Numbers(numbers).dump()}, routers={"router-a": state}, merged=False
    )
    segments.write(LocalStore(directory), segment, Exposures.concat(parts), tables, footer)
    return segment


def rewrite(file: Path, table: pa.Table) -> None:
    pq.write_table(table.replace_schema_metadata(pq.read_schema(file).metadata), file)


def without_checksums(exposures: Path) -> None:
    """As earlier versions wrote a segment."""
    table = pq.read_table(exposures, partitioning=None)
    [(name, footer)] = [(name, value) for name, value in table.schema.metadata.items() if b'"checksums"' in value]
    older = {key: value for key, value in json.loads(footer).items() if key != "checksums"}
    pq.write_table(table.replace_schema_metadata({name: json.dumps(older).encode()}), exposures)


def rows_of(directory: Path, gaps: Gaps) -> list[int]:
    exposures = Exposures.concat(list(history(LocalStore(directory), 0.0, Tables(), {}, gaps)))
    return sorted(exposures.rows.seq.tolist())


@pytest.mark.parametrize("version", sorted(path.name for path in VERSIONS.iterdir()))
def test_a_segment_of_every_version_is_read(version: str) -> None:
    content = kept(version)
    footer, exposures = content.footer, content.exposures
    assert footer.batches == {"router-a": [[1, 2]]}
    assert footer.routers["router-a"] == RouterRecord([[1, 2]], [Lost("chat", "blue", 5)], 1100.0)
    assert [len(columns) for columns in exposures] == [4, 4, 2, 1, 1 if int(version) >= 3 else 0]
    rows = exposures.rows
    assert rows.seq.tolist() == [1, 2, 3, 4]
    assert rows.cold.tolist() == [False, False, True, False]
    assert np.array_equal(rows.ttft_s, np.array([0.25, 0.5, 0.75, np.nan], np.float32), equal_nan=True)
    assert {*content.lacking} == {name for name, since in SINCE.items() if int(version) < since}


def test_the_newest_kept_version_is_the_one_that_is_written(tmp_path: Path) -> None:
    newest = VERSIONS / max((path.name for path in VERSIONS.iterdir()), key=int)
    segment = written(tmp_path, 1)
    for kind in segments.KINDS:
        if kind != "feedback":
            now = pq.read_schema(tmp_path / segment.path(kind)).remove_metadata()
            assert pq.read_schema(newest / SEGMENT.path(kind)).remove_metadata().equals(now), kind


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(data=st.data())
def test_a_column_that_a_file_lacks_is_null_and_every_row_counts(tmp_path: Path, data: st.DataObject) -> None:
    shutil.rmtree(tmp_path / "exposures", ignore_errors=True)
    segment, tables = written(tmp_path, 1, 2), Tables()
    before = segments.read(LocalStore(tmp_path), segment, tables).exposures.rows
    file = tmp_path / segment.path("exposures")
    table = pq.read_table(file, partitioning=None)
    absent = data.draw(st.sets(st.sampled_from(sorted({*table.column_names} - NEEDED))))
    rewrite(file, table.drop_columns(sorted(absent)))
    gaps = Gaps()
    (exposures,) = history(LocalStore(tmp_path), 0.0, tables, {}, gaps)
    assert gaps.damaged == {}
    assert gaps.lacking_since(0.0) == dict.fromkeys(absent, 4)
    for name in RowColumns.names():
        values = getattr(exposures.rows, name)
        if name not in absent:
            assert np.array_equal(values, getattr(before, name), equal_nan=values.dtype.kind == "f"), name
        elif values.dtype.kind == "f":
            assert np.isnan(values).all(), name
        else:
            assert set(values.tolist()) <= {-1, 0}, name


@pytest.mark.parametrize("column", sorted(NEEDED))
def test_a_file_without_a_column_that_rows_need_is_named(tmp_path: Path, column: str) -> None:
    segment = written(tmp_path, 1)
    file = tmp_path / segment.path("exposures")
    rewrite(file, pq.read_table(file, partitioning=None).drop_columns([column]))
    gaps = Gaps()
    assert rows_of(tmp_path, gaps) == []
    assert gaps.damaged == {segment.path("exposures"): f"it lacks {column}"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_damage_of_any_kind_is_named_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Files that end early, or with a byte changed: of each the rows are read as they were, or it is named."""
    shutil.rmtree(tmp_path, ignore_errors=True)
    segment, _ = written(tmp_path, 1), written(tmp_path, 2)
    kind = data.draw(st.sampled_from(["exposures", "starts", "late", "pairs"]))
    file = tmp_path / segment.path(kind)
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    file.write_bytes(content[:at] if cut else content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
    gaps = Gaps()
    rows = rows_of(tmp_path, gaps)
    assert (rows, [*gaps.damaged]) in [([1, 2, 51, 52], []), ([2, 52], [segment.path("exposures")])]
    assert gaps.damaged or not cut


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(data=st.data())
def test_a_bit_that_has_changed_changes_no_value_unless_it_is_named(tmp_path: Path, data: st.DataObject) -> None:
    shutil.rmtree(tmp_path, ignore_errors=True)
    segment, store = written(tmp_path, 1), LocalStore(tmp_path)
    before = segments.read(store, segment, Tables())
    file = tmp_path / segment.path(data.draw(st.sampled_from(["exposures", "starts", "late", "pairs"])))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    try:
        after = segments.read(store, segment, Tables())
    except (Missing, Damaged):
        return
    for one, other in zip(before.exposures, after.exposures, strict=True):
        for name in one.names():
            assert after.lacking != before.lacking or np.array_equal(
                getattr(one, name), getattr(other, name), equal_nan=getattr(one, name).dtype.kind == "f"
            ), name


def test_a_part_that_was_deleted_alone_is_named(tmp_path: Path) -> None:
    segment = written(tmp_path, 1)
    (tmp_path / segment.path("starts")).unlink()
    gaps = Gaps()
    assert rows_of(tmp_path, gaps) == []
    assert [*gaps.damaged] == [segment.path("exposures")]


def test_a_damaged_segment_whose_batches_are_in_another_is_no_gap(tmp_path: Path) -> None:
    segment, _ = written(tmp_path, 1), written(tmp_path, 2, 1)
    (tmp_path / segment.path("starts")).write_bytes(b"PAR1")
    gaps = Gaps()
    assert rows_of(tmp_path, gaps) == [1, 2, 51, 52]
    assert gaps.damaged == {}


def test_merging_leaves_what_it_cannot_keep_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    damaged, older, *whole = (written(tmp_path, number) for number in (1, 2, 3, 4))
    (tmp_path / damaged.path("exposures")).write_bytes(b"PAR1")
    file = tmp_path / older.path("exposures")
    rewrite(file, pq.read_table(file, partitioning=None).drop_columns(["cold"]))
    merged = Segment("1970-01-01", "w-000009")
    assert merge(store, [damaged, older, *whole], merged) is not None
    assert segments.committed(store) == [damaged, older, merged]
    gaps = Gaps()
    assert rows_of(tmp_path, gaps) == [2, 3, 4, 52, 53, 54]
    assert gaps.lacking_since(0.0) == {"cold": 2}


def test_pairs_of_another_version_may_lack_columns(tmp_path: Path) -> None:
    segment = written(tmp_path, 1)
    file = tmp_path / segment.path("pairs")
    rewrite(file, pq.read_table(file, partitioning=None).drop_columns(["cosine", "skipped"]))
    without_checksums(tmp_path / segment.path("exposures"))
    content = segments.read(LocalStore(tmp_path), segment, Tables())
    pairs: Columns = content.exposures.pairs
    assert isinstance(pairs, PairColumns)
    assert np.isnan(pairs.cosine).all()
    assert content.lacking == {"cosine": 1, "skipped": 1}


def test_a_segment_of_another_program_is_damaged(tmp_path: Path) -> None:
    segment = written(tmp_path, 1)
    file = tmp_path / segment.path("exposures")
    pq.write_table(pq.read_table(file, partitioning=None).replace_schema_metadata(None), file)
    with pytest.raises(Damaged, match="not a segment of this application"):
        segments.read_footer(LocalStore(tmp_path), segment)
