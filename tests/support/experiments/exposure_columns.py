"""Single exposures as columns, from the fields that matter to a test; the exposures are those of `exposures.py`."""

from typing import Any

from app.experiments.storage.columns import (
    Exposures,
    OverdueColumns,
    PairColumns,
    RowColumns,
    StartColumns,
    Tables,
    from_batch,
)
from tests.support.experiments.exposures import NAMES, batch, late, pair, row, start

Fields = dict[str, Any]


class Recorder:
    """Columns that share their codes. Blue is 0, green 1."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._sequence = 0
        for name in NAMES:
            self.tables.name(name)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def rows(self, *fields: Fields, **batch_fields: Any) -> RowColumns:
        """One row for each."""
        return self._columns(rows=[row(self._next(), **values) for values in fields], **batch_fields).rows

    def starts(self, *fields: Fields, **batch_fields: Any) -> StartColumns:
        """One start for each."""
        return self._columns(starts=[start(self._next(), **values) for values in fields], **batch_fields).starts

    def late(self, *fields: Fields, **batch_fields: Any) -> OverdueColumns:
        """One late record for each."""
        return self._columns(late=[late(self._next(), **values) for values in fields], **batch_fields).late

    def pairs(self, *fields: Fields, **batch_fields: Any) -> PairColumns:
        """One mirrored request for each."""
        return self._columns(pairs=[pair(self._next(), **values) for values in fields], **batch_fields).pairs

    def _columns(self, **fields: Any) -> Exposures:
        return from_batch(batch(**fields), self.tables)
