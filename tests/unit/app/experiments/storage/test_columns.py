"""Batches become columns, with one code per name for the whole controller."""

import math

import numpy as np
import pytest

from app.experiments.storage.columns import DTYPES, Exposures, RowColumns, StartColumns, Tables, from_batch, router_hash
from app.exposures.wire import FeedbackItem, Plan, decode_batch, encode
from tests.support.experiments.exposures import NAMES, PLAN, batch, late, pair, row, start


def test_every_field_of_a_record_is_a_column() -> None:
    item = FeedbackItem(1000.0, 10_001, 7, "thumbs", 1.0)
    tables = Tables()
    found = from_batch(
        batch(
            3,
            starts=[start(1)],
            rows=[row(1), row(2, served=-1)],
            late=[late(9)],
            feedback=[item],
            pairs=[pair(1, skipped=3)],
        ),
        tables,
    )
    records = (
        (start(1), found.starts),
        (row(1), found.rows),
        (late(9), found.late),
        (pair(1, skipped=3), found.pairs),
    )
    for record, columns in records:
        for name, value in record._asdict().items():
            column = getattr(columns, name)[0]
            assert math.isnan(column) if value is None else column == value, name
        assert columns.router[0] == router_hash("router-a")
        assert columns.batch[0] == 3
        assert {name: getattr(columns, name).dtype for name in columns.names()} == {
            name: np.dtype(DTYPES[name]) for name in columns.names()
        }
    assert found.rows.served.tolist() == [0, -1]
    assert found.feedback.items(tables) == [item]
    assert found.size == 6


def test_a_decoded_batch_has_the_recorded_columns() -> None:
    sent = batch(rows=[row(seq, unit=2**64 - seq) for seq in range(1, 50)])
    direct, decoded = (from_batch(batch, Tables()).rows for batch in (sent, decode_batch(encode(sent))))
    assert all(np.array_equal(getattr(direct, n), getattr(decoded, n), equal_nan=True) for n in ("unit", "max_tokens"))


def test_names_and_plans_keep_their_codes_from_batch_to_batch() -> None:
    tables = Tables()
    other = Plan("chat", "0-bbbbbbbb", {"blue": 90, "green": 10})
    first = from_batch(batch(1, rows=[row(1, assigned=1)]), tables).rows
    second = from_batch(
        batch(
            2,
            names=["chat", "openai", "green", "blue"],
            plans=[other, PLAN],
            rows=[row(2, assigned=2, served=2, plan=1)],
        ),
        tables,
    ).rows
    assert tables.names == NAMES
    assert tables.plans == [PLAN, other]
    both = RowColumns.concat([first, second])
    assert both.assigned.tolist() == [1, 1]
    assert both.plan.tolist() == [0, 0]
    assert both.take(both.seq == 2).served.tolist() == [1]


def test_a_count_above_its_columns_range_is_the_largest_that_fits() -> None:
    tables = from_batch(batch(rows=[row(1, turn=70_000, attempts=300, prompt_bytes=2**40)]), Tables()).rows
    assert (tables.turn[0], tables.attempts[0], tables.prompt_bytes[0]) == (2**16 - 1, 255, 2**32 - 1)


@pytest.mark.parametrize("wrong", [{"assigned": 4}, {"plan": 1}, {"plan": -1}, {"served": -2}, {"unit": 2**64}])
def test_a_record_with_an_invalid_reference_is_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"outside|range"):
        from_batch(batch(rows=[row(1, **wrong)]), Tables())


def test_an_empty_batch_is_valid() -> None:
    nothing = from_batch(batch(names=[], plans=[]), Tables())
    assert nothing.size == Exposures.concat([]).size == len(StartColumns.concat([])) == 0
