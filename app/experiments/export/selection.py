"""Selects the exposures to export, and finds them in the ledger's directory."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from app.errors import BadRequest, NotFound
from app.experiments.columns import Bool, RowColumns, Tables
from app.experiments.questions import unix_seconds
from app.experiments.runs import Run, runs_of
from app.experiments.storage import journal, reading
from app.experiments.storage.store import Store
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")


class Selection(NamedTuple):
    """`since` and `until`, which is not included, are Unix seconds of a request's arrival."""

    experiment: str | None = None
    """The experiment of whose last run exposures are exported: its endpoint's, by its arms, since its start, without
    pauses.
    """
    endpoint: str | None = None
    since: float | None = None
    until: float | None = None

    def query(self) -> dict[str, str]:
        """The parameters that `selection` reads this from."""
        given = {"experiment": self.experiment, "endpoint": self.endpoint}
        times = {"since": self.since, "until": self.until}
        return {name: it for name, it in given.items() if it is not None} | {
            name: repr(it) for name, it in times.items() if it is not None
        }


def selection(query: Mapping[str, str]) -> Selection:
    """The selection that a query asks for. Raises BadRequest with the parameter's name."""
    return Selection(query.get("experiment"), query.get("endpoint"), _time(query, "since"), _time(query, "until"))


def selected(store: Store, wanted: Selection) -> Iterator[tuple[RowColumns, Tables]]:
    """The rows, piece by piece, in the order of writing. Raises StoreError; NotFound if the experiment never ran."""
    tables = Tables()
    run = _run(store, wanted.experiment) if wanted.experiment is not None else None
    since = max(wanted.since or 0.0, run.started_at if run is not None else 0.0)
    gaps = reading.Gaps()
    for exposures in reading.history(store, since, tables, {}, gaps):
        rows = exposures.rows.take(_is_selected(exposures.rows, tables, wanted._replace(since=since), run))
        if len(rows):
            yield rows, tables
    if damaged := gaps.since(since):
        _log.warning(
            "Files of the ledger cannot be read, and are missing in the export: %s",
            "; ".join(damaged),
            extra=event("export_incomplete", files=len(damaged)),
        )


def _time(query: Mapping[str, str], name: str) -> float | None:
    if (text := query.get(name)) is None:
        return None
    try:
        value = unix_seconds(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name}: '{text}' is not a valid time: Unix seconds, or ISO 8601 (UTC)", param=name)
    return value


def _run(store: Store, experiment: str) -> Run:
    runs = runs_of(journal.read(store))
    if experiment not in runs:
        known = ", ".join(runs) or "none"
        raise NotFound(f"The ledger has no run of '{experiment}'; it has {known}", param="experiment")
    return runs[experiment]


def _is_selected(rows: RowColumns, tables: Tables, wanted: Selection, run: Run | None) -> Bool:
    chosen = rows.at >= (wanted.since or 0.0)
    if wanted.until is not None:
        chosen &= rows.at < wanted.until
    endpoints = np.array([plan.endpoint for plan in tables.plans], np.str_)
    for endpoint in (wanted.endpoint, run.experiment.endpoint if run is not None else None):
        if endpoint is not None:
            chosen &= (endpoints == endpoint)[rows.plan]
    if run is not None:
        arms = run.experiment.arms if run.experiment.mode == "ab" else (run.experiment.control,)
        chosen &= np.isin(rows.assigned, [tables.name(arm) for arm in arms])
        if (covered := run.covers(rows.at)) is not None:
            chosen &= covered
    return chosen
