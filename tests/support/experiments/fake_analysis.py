"""An analysis that only records its input."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from app.config.experiments import Experiment
from app.config.schema import Config
from app.experiments.analysis.feedback import Match
from app.experiments.automation.state import Interventions
from app.experiments.contract.report import FalseVerdicts, HistoryPoint, Occurrence, Planned, Report, SampleRatio
from app.experiments.storage.columns import Columns, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.wire import FeedbackItem


class FakeAnalysis:
    """Counts every record that it gets, by router hash and sequence number."""

    def __init__(self, name: str, experiment: Experiment, config: Config, tables: Tables, started_at: float) -> None:
        self.name, self.experiment, self.tables, self.started_at = name, experiment, tables, started_at
        self.starts, self.rows, self.late = Counter[Any](), Counter[Any](), Counter[Any]()
        self.feedback: list[FeedbackItem] = []
        self.lost: dict[str, int] = {}
        self.damaged: list[str] = []
        self.lacking: dict[str, int] = {}
        self.restored: Mapping[str, Any] | None = None
        self.occurrences: list[Occurrence] = []
        self.load: tuple[int, Mapping[str, int] | None] = (0, None)
        self.gone: list[str] = []
        self.largest = 0.0
        self.alarmed = False
        self.done = Interventions()

    def add_starts(self, starts: StartColumns) -> None:
        self._add(self.starts, starts)

    def add_rows(self, rows: RowColumns) -> None:
        self._add(self.rows, rows)

    def add_late(self, late: OverdueColumns) -> None:
        self._add(self.late, late)

    def add_feedback(self, items: Sequence[FeedbackItem], arrived: Sequence[float] | None = None) -> None:
        self.feedback += items

    def settle(self, now: float) -> None:
        pass

    def look(self, keys: Container[str], now: float) -> None:
        self.looked_at = now

    def latest_looks(self) -> dict[str, float]:
        return {}

    def report_again(self, now: float, older: Container[str]) -> Report:
        return self.report(now)

    def matches(self, items: Sequence[FeedbackItem]) -> Sequence[Match]:
        return ["unknown"] * len(items)

    def is_alarmed(self) -> bool:
        return self.alarmed

    def intervene(self, done: Interventions) -> None:
        self.done = done

    def set_lost(self, rows: Mapping[str, int]) -> None:
        self.lost = dict(rows)

    def set_gaps(self, damaged: Sequence[str], lacking: Mapping[str, int], gone: Sequence[str] = ()) -> None:
        self.damaged, self.lacking = list(damaged), dict(lacking)

    def observe_load(self, routers: int, replicas: Mapping[str, int] | None, gone: Sequence[str] = ()) -> None:
        self.load, self.gone = (routers, replicas), list(gone)

    def tick(self, now: float) -> Sequence[Occurrence]:
        answer, self.occurrences = self.occurrences, []
        return answer

    def update(self, config: Config) -> None:
        self.experiment = config.experiments[self.name]

    def report(self, now: float) -> Report:
        return Report(
            experiment=self.name,
            endpoint=self.experiment.endpoint,
            mode=self.experiment.mode,
            state=self.experiment.state,
            control=self.experiment.control,
            treatments=list(self.experiment.treatments),
            at=now,
            started_at=self.started_at,
            decision="keep_going",
            headline="",
            details=[],
            next="",
            weights={},
            units={},
            requests={self.experiment.control: sum(self.rows.values())},
            served={},
            forced={},
            carried={},
            rows_lost=self.lost,
            in_flight={},
            primary=[],
            secondary=[],
            guardrails=[],
            sample_ratio=SampleRatio(log_e_value=0.0, alarm=False, plans=[]),
            alarms=[],
            warnings=[],
            strata=1,
        )

    def standing(self, now: float) -> Report:
        return self.report(now)

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]:
        return []

    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned:
        raise NotImplementedError

    def false_verdicts(self) -> Callable[[int], Sequence[FalseVerdicts]]:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def landmarks(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.restored, self.largest = state, state["largest"]

    def _add(self, counts: "Counter[Any]", columns: StartColumns | RowColumns | OverdueColumns) -> None:
        inside: Columns = columns.take(columns.at >= self.started_at)
        assert isinstance(inside, type(columns))
        counts.update(zip(inside.router.tolist(), inside.seq.tolist(), strict=True))


def same_run(old: Experiment, new: Experiment) -> bool:
    """As the specification says."""
    return (old.control, old.treatments, old.primary, old.alpha, old.mode) == (
        new.control,
        new.treatments,
        new.primary,
        new.alpha,
        new.mode,
    )
