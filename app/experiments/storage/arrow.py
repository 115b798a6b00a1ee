"""Columns as Arrow tables and back. In files, names are written out, and a missing value is null.

A plan is three columns there: `endpoint`, `plan` (its id) and `weights` (JSON).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.experiments.columns import DTYPES, NAMES, Columns, Tables
from app.exposures.wire import Plan

C = TypeVar("C", bound=Columns)

COUNTS = ("max_tokens", "prompt_tokens", "completion_tokens", "tokens")
"""Floats with NaN in memory, unsigned integers or null in files."""

_ESSENTIAL = frozenset(
    {
        *("router", "batch", "seq", "at", "unit", "caller", "request", "plan", "assigned", "flags"),
        *("stream", "status", "error", "kind", "above_s", "metric", "value", "primary", "shadow"),
    }
)
"""Columns without which a record says nothing. A file of another version may lack the others."""

_PLAN: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("endpoint", lambda plan: plan.endpoint),
    ("plan", lambda plan: plan.id),
    ("weights", lambda plan: msgspec.json.encode(plan.weights, order="sorted").decode()),
)


def to_arrow(columns: Columns, tables: Tables) -> pa.Table:
    """The table that is written, with the columns' order."""
    found: dict[str, pa.Array] = {}
    for name in columns.names():
        values = getattr(columns, name)
        if name == "plan":
            found |= {part: _dictionary(values, [text(plan) for plan in tables.plans]) for part, text in _PLAN}
        elif name in NAMES:
            found[name] = _dictionary(values, tables.names)
        elif name in COUNTS:
            missing = np.isnan(values)
            found[name] = pa.array(np.where(missing, 0, values).astype(np.uint32), mask=missing)
        else:
            found[name] = pa.array(values, from_pandas=True)
    return pa.table(found)


def lacking(table: pa.Table, kind: type[Columns]) -> list[str]:
    """The columns that a table of another version does not have.

    Raises KeyError for one without which a record says nothing.
    """
    found = {name for name, _ in _PLAN if "plan" in kind.names()} | {*kind.names()}
    missing = sorted(found - {*table.column_names})
    if essential := [name for name in missing if name in _ESSENTIAL or name in dict(_PLAN)]:
        raise KeyError(f"it lacks {', '.join(essential)}")
    return missing


def from_arrow(table: pa.Table, kind: type[C], tables: Tables) -> C:
    """The columns of a table that `to_arrow` made, now or in another version: a column that it lacks has no values.

    No value is NaN, -1 among names, and otherwise 0. Raises KeyError as `lacking`.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    missing = lacking(table, kind)
    for name in kind.names():
        if name in missing:
            arrays[name] = np.full(len(table), _no_value(name), DTYPES[name])
        elif name == "plan":
            arrays[name] = _plans(table, tables)
        elif name in NAMES:
            codes, texts = _codes(table.column(name))
            arrays[name] = np.append(_interned(texts, tables.name), np.int32(-1))[codes]
        else:
            arrays[name] = table.column(name).to_numpy().astype(DTYPES[name], copy=False)
    return kind(**arrays)


def has_null(name: str) -> bool:
    """Whether the column can tell that there is no value."""
    return name in NAMES or issubclass(DTYPES[name], np.floating)


def _no_value(name: str) -> float:
    if name in NAMES:
        return -1
    return math.nan if issubclass(DTYPES[name], np.floating) else 0


def _dictionary(codes: npt.NDArray[np.int32], texts: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary of only the texts that occur; -1 is null."""
    used, indexes = np.unique(codes, return_inverse=True)
    missing = int(len(used) > 0 and used[0] < 0)
    dictionary = pa.array([texts[code] for code in used[missing:].tolist()], pa.string())
    indices = pa.array(np.maximum(indexes - missing, 0).astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A dictionary column as indexes into its texts; null is -1."""
    combined = column.unify_dictionaries().combine_chunks() if column.num_chunks else pa.array([], column.type)
    codes = combined.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return codes, combined.dictionary.to_pylist()


def _interned(texts: Sequence[Any], intern: Callable[[Any], int]) -> npt.NDArray[np.int32]:
    return np.array([intern(text) for text in texts], np.int32)


def _plans(table: pa.Table, tables: Tables) -> npt.NDArray[np.int32]:
    parts = [_codes(table.column(name)) for name, _ in _PLAN]
    triples, indexes = np.unique(np.stack([codes for codes, _ in parts]), axis=1, return_inverse=True)
    plans = []
    for triple in triples.T.tolist():
        endpoint, plan, weights = (texts[code] for code, (_, texts) in zip(triple, parts, strict=True))
        plans.append(Plan(endpoint, plan, msgspec.json.decode(weights)))
    return _interned(plans, tables.plan)[indexes.reshape(-1)]
