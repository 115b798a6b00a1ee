"""Batches as columns: equally long numpy arrays, one for each field of `app.exposures.wire.Start`, `Row`,
`OverdueRequest`, `FeedbackItem` and `Pair`.

Names and plans are interned over the whole life of a controller (`Tables`), so that columns of different batches and
segments share their codes. Values that may be missing are floats with NaN. A count above its column's range is stored
as the largest value that fits.

Columns as Arrow tables and back. In files, names are written out, and a missing value is null.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.exposures.wire import Batch, FeedbackItem, OverdueRequest, Pair, Plan, Row, Start

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

DTYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(("router", "seq", "request", "answer", "unit", "caller"), np.uint64),
    **dict.fromkeys(
        ("plan", "assigned", "served", "dialect", "task", "metric", "primary", "shadow", "group"), np.int32
    ),
    **dict.fromkeys(("arrived", "at", "above_s", "value"), np.float64),
    **dict.fromkeys(("max_tokens", "prompt_tokens", "completion_tokens", "tokens"), np.float64),
    **dict.fromkeys(
        ("ttft_s", "duration_s", "itl_mean_s", "itl_max_s", "pause_s", "tokens_per_s", "cosine"), np.float32
    ),
    **dict.fromkeys(("equal", "equal_words", "same_finish", "same_tools", "length_ratio"), np.float32),
    **dict.fromkeys(("valid", "primary_valid", "visible", "primary_visible"), np.float32),
    **dict.fromkeys(("batch", "prompt_bytes"), np.uint32),
    **dict.fromkeys(("status", "turn", "in_flight", "flags"), np.uint16),
    **dict.fromkeys(("kind", "reason", "error", "attempts", "moves", "finish", "primary_finish", "skipped"), np.uint8),
    **dict.fromkeys(("stream", "cold"), np.bool_),
}
"""The type of each column by name: the same in every table."""

NAMES = ("assigned", "served", "dialect", "task", "metric", "primary", "shadow", "group")
"""The columns that hold codes into `Tables.names`; `plan` holds codes into `Tables.plans`."""


class Tables:
    """Names and plans with a code each, in the order in which they were first seen. They only grow."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.plans: list[Plan] = []
        self._name_codes: dict[str, int] = {}
        self._plan_codes: dict[tuple[str, str], int] = {}

    def name(self, name: str) -> int:
        """The code of `name`, which is new if need be."""
        code = self._name_codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def plan(self, plan: Plan) -> int:
        """The code of `plan`, known by its endpoint and id."""
        code = self._plan_codes.setdefault((plan.endpoint, plan.id), len(self.plans))
        if code == len(self.plans):
            self.plans.append(plan)
        return code


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of all kinds of records. `router` is the hash of the router's id, `batch` the number of its batch,
    `arrived` the time at which the controller took that, in Unix seconds; NaN if that was not recorded.
    """

    router: U64
    batch: U32
    arrived: F64
    at: F64

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Bool | slice | npt.NDArray[np.intp]) -> Self:
        """These rows only: a mask, a slice or indexes."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.names()})

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def empty(cls) -> Self:
        """A table without rows."""
        return cls(**{name: np.empty(0, DTYPES[name]) for name in cls.names()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        if not parts:
            return cls.empty()
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.names()})


@dataclass(frozen=True, slots=True)
class _Requests(Columns):
    """Columns of starts, rows and late records."""

    seq: U64
    unit: U64
    plan: I32
    assigned: I32
    flags: U16


@dataclass(frozen=True, slots=True)
class StartColumns(_Requests):
    """`Start` records."""

    reason: U8


@dataclass(frozen=True, slots=True)
class RowColumns(_Requests):
    """`Row` records. `served` is -1 where no deployment answered, `group` where the caller is in none."""

    request: U64
    answer: U64
    caller: U64
    served: I32
    reason: U8
    dialect: I32
    task: I32
    stream: Bool
    status: U16
    error: U8
    attempts: U8
    prompt_bytes: U32
    max_tokens: F64
    prompt_tokens: F64
    completion_tokens: F64
    ttft_s: F32
    duration_s: F32
    itl_mean_s: F32
    itl_max_s: F32
    finish: U8
    turn: U16
    in_flight: U16
    cold: Bool
    group: I32
    moves: U8
    pause_s: F32


@dataclass(frozen=True, slots=True)
class OverdueColumns(_Requests):
    """`OverdueRequest` records. `caller` is 0 in those of earlier versions."""

    kind: U8
    above_s: F64
    caller: U64


@dataclass(frozen=True, slots=True)
class FeedbackColumns(Columns):
    """`FeedbackItem` records."""

    request: U64
    caller: U64
    metric: I32
    value: F64

    def items(self, tables: Tables) -> list[FeedbackItem]:
        """The items as they were sent."""
        metrics = [tables.names[code] for code in self.metric.tolist()]
        columns = zip(
            self.at.tolist(), self.request.tolist(), self.caller.tolist(), metrics, self.value.tolist(), strict=True
        )
        return [FeedbackItem(*values) for values in columns]


@dataclass(frozen=True, slots=True)
class PairColumns(Columns):
    """`Pair` records."""

    seq: U64
    unit: U64
    plan: I32
    primary: I32
    shadow: I32
    status: U16
    error: U8
    tokens: F64
    equal: F32
    equal_words: F32
    length_ratio: F32
    same_finish: F32
    valid: F32
    same_tools: F32
    cosine: F32
    ttft_s: F32
    duration_s: F32
    tokens_per_s: F32
    primary_valid: F32
    finish: U8
    primary_finish: U8
    visible: F32
    primary_visible: F32
    skipped: U8


class Exposures(NamedTuple):
    """All records of one batch, or of one segment."""

    starts: StartColumns
    rows: RowColumns
    late: OverdueColumns
    feedback: FeedbackColumns
    pairs: PairColumns

    @classmethod
    def concat(cls, parts: Sequence["Exposures"]) -> "Exposures":
        """One after the other."""
        return cls(
            StartColumns.concat([part.starts for part in parts]),
            RowColumns.concat([part.rows for part in parts]),
            OverdueColumns.concat([part.late for part in parts]),
            FeedbackColumns.concat([part.feedback for part in parts]),
            PairColumns.concat([part.pairs for part in parts]),
        )

    def until(self, at: float) -> "Exposures":
        """The records that had arrived by the Unix time `at`; those without that time, if their router had them."""
        ended = (
            self.starts.at,
            self.rows.at + self.rows.duration_s,
            self.late.at + self.late.above_s,
            self.feedback.at,
            self.pairs.at,
        )
        parts: list[Any] = [
            columns.take(np.where(np.isnan(columns.arrived), sent, columns.arrived) <= at)
            for columns, sent in zip(self, ended, strict=True)
        ]
        return Exposures(*parts)

    def in_order(
        self, *, also: Sequence[float] = (), each_since: float = math.inf
    ) -> Iterator[tuple[float, "Exposures"]]:
        """The same in pieces in the order of arrival, each with the arrival of its last record; NaN for a piece of
        unknown times.

        A piece ends with each late record, since detectors of late regressions take events as they come, at each time
        of `also` (Unix seconds), and from `each_since` on with each arrival.
        """
        columns = [columns.take(np.argsort(columns.arrived, kind="stable")) for columns in self]
        arrived = [
            columns.arrived if columns is self.late else columns.arrived[columns.arrived >= each_since]
            for columns in self
        ]
        known = np.concatenate([columns.arrived for columns in self])
        last = known[~np.isnan(known)].max(initial=-math.inf)
        cuts = np.unique(np.concatenate([*arrived, also]))
        cuts = np.unique(np.append(cuts[~np.isnan(cuts)], last))
        ends = [(cut, [int(part.arrived.searchsorted(cut, "right")) for part in columns]) for cut in cuts.tolist()]
        begins = [0] * len(columns)
        for at, end in [*ends, (math.nan, [len(part) for part in columns])]:
            if begins == end:
                continue
            spans = zip(columns, begins, end, strict=True)
            parts: list[Any] = [part.take(slice(first, last)) for part, first, last in spans]
            yield at, Exposures(*parts)
            begins = end

    @property
    def size(self) -> int:
        """Records of all kinds."""
        return sum(len(columns) for columns in self)


def router_hash(router: str) -> int:
    """The 64 bits by which columns name a router process."""
    return int.from_bytes(hashlib.blake2b(router.encode(), digest_size=8).digest(), "big")


def from_batch(batch: Batch, tables: Tables, arrived: float = math.nan) -> Exposures:
    """The batch's records as columns, with the controller's codes. `arrived` as in `Columns`.

    Raises ValueError for an index outside the batch's names and plans, or a value that no column can hold.
    """
    try:
        names = np.array([tables.name(name) for name in batch.names], np.int32)
        plans = np.array([tables.plan(plan) for plan in batch.plans], np.int32)
        source = {"router": router_hash(batch.router), "batch": batch.number, "arrived": arrived}
        return Exposures(
            StartColumns(**_arrays(batch.starts, Start._fields, names, plans, source)),
            RowColumns(**_arrays(batch.rows, Row._fields, names, plans, source)),
            OverdueColumns(**_arrays(batch.late, OverdueRequest._fields, names, plans, source)),
            FeedbackColumns(**_feedback(batch.feedback, tables), **_source(source, len(batch.feedback))),
            PairColumns(**_arrays(batch.pairs, Pair._fields, names, plans, source)),
        )
    except OverflowError as error:
        raise ValueError(f"a value is out of range: {error}") from error


def _arrays(
    records: Sequence[tuple[Any, ...]], names: Sequence[str], name_codes: I32, plan_codes: I32, source: dict[str, float]
) -> dict[str, npt.NDArray[Any]]:
    columns = zip(*records, strict=True) if records else ((),) * len(names)
    arrays = {name: _array(column, DTYPES[name]) for name, column in zip(names, columns, strict=True)}
    for name in NAMES:
        if name in arrays:
            arrays[name] = _code_column(arrays[name], name_codes, missing=name in ("served", "group"))
    arrays["plan"] = _code_column(arrays["plan"], plan_codes)
    return arrays | _source(source, len(records))


def _feedback(items: Sequence[FeedbackItem], tables: Tables) -> dict[str, npt.NDArray[Any]]:
    values: dict[str, Sequence[Any]] = {
        "at": [item.at for item in items],
        "request": [item.request for item in items],
        "caller": [item.caller for item in items],
        "metric": [tables.name(item.metric) for item in items],
        "value": [item.value for item in items],
    }
    return {name: _array(column, DTYPES[name]) for name, column in values.items()}


def _source(source: dict[str, float], length: int) -> dict[str, npt.NDArray[Any]]:
    return {name: np.full(length, value, DTYPES[name]) for name, value in source.items()}


def _array(values: Sequence[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """A column of `values`: None becomes NaN. Small unsigned integers saturate: a count that is too large must not stop
    the others.
    """
    if issubclass(dtype, np.unsignedinteger) and dtype is not np.uint64:
        return np.array(values, np.int64).clip(0, np.iinfo(dtype).max).astype(dtype)
    return np.array(values, dtype)


def _code_column(indexes: I32, codes: I32, *, missing: bool = False) -> I32:
    """The codes at `indexes`; with `missing`, -1 stays -1."""
    if len(indexes) and not (-1 if missing else 0) <= indexes.min() <= indexes.max() < len(codes):
        raise ValueError("an index is outside the batch's names or plans")
    return np.append(codes, np.int32(-1))[indexes] if missing else codes[indexes]


# A plan is three columns there: `endpoint`, `plan` (its id) and `weights` (JSON).

C = TypeVar("C", bound=Columns)

COUNTS = ("max_tokens", "prompt_tokens", "completion_tokens", "tokens")
"""Floats with NaN in memory, unsigned integers or null in files."""

_ESSENTIAL = frozenset(
    {
        *("router", "batch", "seq", "at", "unit", "caller", "request", "plan", "assigned", "flags"),
        *("stream", "status", "error", "kind", "above_s", "metric", "value", "primary", "shadow"),
    }
)
"""Columns without which a record says nothing, but for the caller of a late one. A file of another version may lack the
others.
"""

_PLAN: tuple[tuple[str, Callable[[Plan], str]], ...] = (
    ("endpoint", lambda plan: plan.endpoint),
    ("plan", lambda plan: plan.id),
    ("weights", lambda plan: msgspec.json.encode(plan.weights, order="sorted").decode()),
)


def to_arrow(columns: Columns, tables: Tables) -> pa.Table:
    """The table that is written, with the columns' order."""
    arrays: dict[str, pa.Array] = {}
    for name in columns.names():
        values = getattr(columns, name)
        if name == "plan":
            arrays |= {part: _dictionary(values, [text(plan) for plan in tables.plans]) for part, text in _PLAN}
        elif name in NAMES:
            arrays[name] = _dictionary(values, tables.names)
        elif name in COUNTS:
            missing = np.isnan(values)
            arrays[name] = pa.array(np.where(missing, 0, values).astype(np.uint32), mask=missing)
        else:
            arrays[name] = pa.array(values, from_pandas=True)
    return pa.table(arrays)


def lacking(table: pa.Table, kind: type[Columns]) -> list[str]:
    """The columns that a table of another version does not have.

    Raises KeyError for one without which a record says nothing.
    """
    columns = {name for name, _ in _PLAN if "plan" in kind.names()} | {*kind.names()}
    missing = sorted(columns - {*table.column_names})
    needed = _ESSENTIAL - ({"caller"} if kind is OverdueColumns else set())
    if essential := [name for name in missing if name in needed or name in dict(_PLAN)]:
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
