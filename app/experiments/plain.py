"""Exposures as plain data, for answers in JSON."""

import math
from collections.abc import Iterable
from typing import Any

from app.experiments.columns import NAMES, RowColumns, Tables
from app.exposures.wire import Failure, FeedbackItem, Finish, Flag, Reason

_MANAGER = f"{0:016x}"
_HASHES = ("router", "request", "answer", "unit", "caller")
_ENUMS = {"reason": Reason, "finish": Finish, "error": Failure}


def exposures_of(rows: RowColumns, tables: Tables) -> list[dict[str, Any]]:
    """One object for each row, by time of arrival. Codes are words there, hashes 16 hexadecimal digits."""
    found = [
        {name: _plain(name, getattr(rows, name)[index].item(), tables) for name in rows.names()}
        for index in range(len(rows))
    ]
    return sorted(found, key=lambda row: float(row["at"]))


def scored(exposures: list[dict[str, Any]], items: Iterable[FeedbackItem] | None) -> list[dict[str, Any]]:
    """The exposures with `feedback`: the last score of each metric, of those by its caller or a manager.

    `items` are in the order in which they came, None if they could not be read; `feedback` is then None, too.
    """
    if items is None:
        return [{**row, "feedback": None} for row in exposures]
    scores = [(f"{it.request:016x}", f"{it.caller:016x}", it.metric, it.value) for it in items]
    return [
        {
            **row,
            "feedback": {
                metric: value
                for request, caller, metric, value in scores
                if request in (row["request"], row["answer"]) and caller in (_MANAGER, row["caller"])
            },
        }
        for row in exposures
    ]


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
