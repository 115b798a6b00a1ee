"""Exposures as plain data, for answers in JSON."""

import math
from typing import Any

from app.experiments.columns import NAMES, RowColumns, Tables
from app.ledger.wire import Failure, Finish, Flag, Reason

_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": Finish, "error": Failure}


def exposures_of(rows: RowColumns, tables: Tables) -> list[dict[str, Any]]:
    """One object for each row, by time of arrival. Codes are words there, hashes 16 hexadecimal digits."""
    found = [
        {name: _plain(name, getattr(rows, name)[index].item(), tables) for name in rows.names()}
        for index in range(len(rows))
    ]
    return sorted(found, key=lambda row: float(row["at"]))


def _plain(name: str, value: Any, tables: Tables) -> Any:
    if name == "plan":
        plan = tables.plans[value]
        return {"endpoint": plan.endpoint, "id": plan.id, "weights": plan.weights}
    if name in NAMES:
        return tables.names[value] if value >= 0 else None
    if name in _HASHES:
        return f"{value:016x}"
    if name in _ENUMS:
        return _ENUMS[name](value).name.lower()
    if name == "flags":
        return [flag.name.lower() for flag in Flag if flag & value and flag.name]
    return None if isinstance(value, float) and math.isnan(value) else value
