"""A/A runs in the background: the controller's thread starts them, another one works."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Literal

import msgspec

from app.experiments.contract.report import FalseVerdicts
from app.telemetry.logs import event, where

_log = logging.getLogger("switchyard")

Work = Callable[[int], Sequence[FalseVerdicts]]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """A/A runs that were started. `took_s` and `results` are set once they are done."""

    experiment: str
    runs: int
    state: Literal["running", "done", "failed"]
    took_s: float | None = None
    results: list[FalseVerdicts] = []


class FalseVerdictRuns:
    """At most one set of runs for each experiment at a time; the last is kept."""

    def __init__(self) -> None:
        self._last: dict[str, Runs] = {}

    def start(self, name: str, runs: int, prepare: Callable[[], Work]) -> bool:
        """Starts `runs` runs, unless some are under way (then False).

        `prepare` copies the evidence in the calling thread; the work that it returns runs in its own.
        """
        if (last := self._last.get(name)) is not None and last.state == "running":
            return False
        work = prepare()
        self._last[name] = Runs(experiment=name, runs=runs, state="running")
        Thread(target=self._run, args=(name, runs, work), name=f"aa-{name}", daemon=True).start()
        return True

    def of(self, name: str) -> Runs | None:
        """The last runs of the experiment."""
        return self._last.get(name)

    def _run(self, name: str, runs: int, work: Work) -> None:
        started = time.monotonic()
        try:
            results = list(work(runs))
        except Exception as error:  # noqa: BLE001  a bug is reported as the runs' state, with its traceback
            self._last[name] = Runs(experiment=name, runs=runs, state="failed")
            _log.error("A/A runs failed", extra=event("aa_runs_failed", experiment=name, traceback=where(error)))
            return
        took = round(time.monotonic() - started, 3)
        self._last[name] = Runs(experiment=name, runs=runs, state="done", took_s=took, results=results)
