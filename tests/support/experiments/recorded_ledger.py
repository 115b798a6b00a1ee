"""The batches that the routers of a simulated world would send, and the ledger's directory that a controller makes from
them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.config.experiments import LedgerSettings
from app.config.schema import Config
from app.experiments.analysis.analysis import Analysis, same_run
from app.experiments.controller import Controller
from app.experiments.judging import AnalysisFactory
from app.experiments.storage.columns import Columns, Tables
from app.experiments.storage.write_ahead import WriteAhead
from app.exposures.wire import VERSION, Batch, FeedbackItem, OverdueRequest, Row, Start, encode
from tests.support.experiments.world import START, Recorded, Unpaced, World


def batches(tables: Tables, recorded: Recorded, size: int = 4096, *, scored: str | None = None) -> Iterator[Batch]:
    """Everything, in the order of arrival, in batches of one router. `scored`: a metric by which every second answer
    gets a score."""
    rows = list(_tuples(recorded.rows, Row))
    starts, late = list(_tuples(recorded.starts, Start)), list(_tuples(recorded.late, OverdueRequest))
    for number, first in enumerate(range(0, max(len(rows), len(starts)), size), 1):
        part = slice(first, first + size)
        yield Batch(
            version=VERSION,
            router="router-a",
            number=number,
            oldest=1,
            sent_at=START,
            names=list(tables.names),
            plans=list(tables.plans),
            starts=starts[part],
            rows=rows[part],
            late=late if first == 0 else [],
            feedback=[_score(row, scored) for row in rows[part][::2]] if scored is not None else [],
            lost=[],
        )


def _score(row: Row, metric: str) -> FeedbackItem:
    return FeedbackItem(row.at + row.duration_s, row.request, row.caller, metric, float(row.seq % 3 > 0))


def _tuples(columns: Columns, kind: Any) -> Iterator[Any]:
    values = [[_plain(name, value) for value in getattr(columns, name).tolist()] for name in kind._fields]
    for fields in zip(*values, strict=True):
        yield kind(*fields)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return int(value) if name in _COUNTS else value


_COUNTS = ("max_tokens", "prompt_tokens", "completion_tokens")


class Clock:
    """A clock that stands still until it is moved. In Unix seconds."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def unpaced(*arguments: Any) -> Analysis:
    """An analysis that looks whenever there is something new."""
    return Analysis(*arguments, pace=Unpaced())


def controller_of(
    directory: Path,
    config: Config,
    clock: Clock,
    analysis_factory: AnalysisFactory = unpaced,
    write_ahead: WriteAhead | None = None,
) -> Controller:
    """A controller on a local directory."""
    controller = Controller(
        LedgerSettings(url="ledger"),
        base=directory,
        analysis_factory=analysis_factory,
        same_run=same_run,
        clock=clock,
        write_ahead=write_ahead,
    )
    controller.configure(config)
    return controller


def recorded_ledger(directory: Path, world: World, config: Config, requests: int, hours: float = 24.0) -> str:
    """Lets a controller live through the world, and close; returns the directory."""
    clock = Clock()
    controller = controller_of(directory, config, clock)
    scored = next(iter(config.experiments["green-float32"].feedback), None)
    for batch in batches(world.tables, world.requests(requests, hours), 250, scored=scored):
        clock.now = max(clock.now, *(row.at + row.duration_s for row in batch.rows))
        controller.ingest(encode(batch))
        controller.tick()
    clock.now = START + hours * 3600 + 60
    controller.tick()
    controller.close()
    return str(directory / "ledger")
