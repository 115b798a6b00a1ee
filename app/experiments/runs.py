"""Runs: the time from which an experiment's evidence counts, and its interruptions. The journal is their only store.

A configuration of one experiment alone, where the real one is not available: as much of it as an analysis needs.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from app.config.experiments import Experiment, is_active
from app.config.schema import TASKS, Config, parse
from app.experiments.contract.journal import HASHED, LOAD, LOOKS, JournalEntry, divided_since
from app.experiments.storage.columns import F64, Bool

BEGUN, CHANGED, STATE = "run_begun", "run_changed", "run_state"

HISTORY_S = 7 * 86400.0
"""The time before a run whose requests may adjust its results."""

SameRun = Callable[[Experiment, Experiment], bool]
"""Whether a change of an experiment's section keeps the evidence."""


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One run of an experiment."""

    name: str
    experiment: Experiment
    """The section by which the evidence was last judged."""
    unit: str
    """The endpoint's `sticky`: another unit is another run."""
    started_at: float
    """Unix seconds; earlier requests do not count."""
    lost_before: dict[str, int]
    """Rows that routers had lost before it, by deployment."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Times in which it was stopped."""
    stopped_at: float | None = None

    @property
    def evidence_since(self) -> float:
        """Unix seconds from which records count: also those of units' history, if that adjusts the results."""
        return self.started_at - (HISTORY_S if "history" in self.experiment.covariates and self.unit else 0.0)

    def covers(self, at: F64) -> Bool | None:
        """The mask of the arrival times that belong to it; None: all from its start on, which the analysis checks."""
        if not self.pauses and self.stopped_at is None:
            return None
        inside: Bool = np.ones(len(at), np.bool_) if self.stopped_at is None else at < self.stopped_at
        for begin, end in self.pauses:
            inside &= (at < begin) | (at >= end)
        return inside


def looks_of(entries: Sequence[JournalEntry], run: ExperimentRun, at: float) -> dict[str, float]:
    """The looks on which a report of a Unix time rested, by `Comparison.key`, as far as the journal has them. Looks
    that are not in it had counted all records of the time.
    """
    looks = (entry.detail for entry in reversed(entries) if (entry.kind, entry.experiment) == (LOOKS, run.name))
    mine = (look["looks"] for look in looks if look["started_at"] == run.started_at and look["at"] <= at)
    return dict(next(mine, {}))


def rehashed(entries: Iterable[JournalEntry], run: ExperimentRun) -> list[str]:
    """The warning that is due if units were hashed with another secret during a run than before."""
    since = [entry.at for entry in entries if entry.kind == HASHED][1:]
    if not any(run.started_at < at and (run.stopped_at is None or at < run.stopped_at) for at in since):
        return []
    return [
        "During this run, routers began to hash units with another secret (`unit-secret` in the ledger, or "
        "SWITCHYARD_UNIT_SECRET): whoever had come before counts as new from then on. Start a new run"
    ]


def loads_of(entries: Iterable[JournalEntry]) -> list[tuple[float, Mapping[str, Any]]]:
    """The routers and replicas that were observed, each with the Unix time."""
    return [(entry.at, entry.detail) for entry in entries if entry.kind == LOAD]


def history_until(entries: Iterable[JournalEntry], run: ExperimentRun) -> float:
    """The Unix time from which a unit's requests hold what an arm may have left behind.

    A unit whose arm an earlier plan drew, of this run or another, is likely to have the same one again, and goes on as
    that arm has left it (with longer conversations, say) while one deployment has all of the traffic. Labels of mode
    `aa` are no arms that a unit could have met.
    """
    return math.inf if run.experiment.mode == "aa" else divided_since(entries, run.experiment.endpoint)


def unit_of(experiment: Experiment, config: Config) -> str:
    """The `sticky` of the experiment's endpoint, as text."""
    endpoint = config.endpoints.get(experiment.endpoint)
    return endpoint.sticky.model_dump_json() if endpoint is not None and endpoint.sticky is not None else ""


def next_run(
    name: str, config: Config, run: ExperimentRun | None, *, now: float, lost: dict[str, int], same_run: SameRun
) -> tuple[ExperimentRun | None, list[JournalEntry]]:
    """The experiment's run from now on, and its new entries for the journal.

    `run`: the one so far, if any. `lost`: rows lost until now, by deployment.
    """
    experiment = config.experiments.get(name)
    if experiment is None or not is_active(experiment):
        return _stopped(run, now) if run is not None else (None, [])
    unit = unit_of(experiment, config)
    if run is None or run.unit != unit or not same_run(run.experiment, experiment):
        started_at = experiment.starts_at if experiment.starts_at is not None else now
        new = ExperimentRun(name, experiment, unit, started_at, dict(lost))
        detail = {"section": _plain(experiment), "unit": unit, "started_at": started_at, "lost_before": dict(lost)}
        return new, [JournalEntry(now, BEGUN, name, detail)]
    entries: list[JournalEntry] = []
    if run.stopped_at is not None:
        run = replace(run, pauses=(*run.pauses, (run.stopped_at, now)), stopped_at=None)
        entries.append(JournalEntry(now, STATE, name, {"state": "resumed"}))
    if run.experiment != experiment:
        run = replace(run, experiment=experiment)
        entries.append(JournalEntry(now, CHANGED, name, {"section": _plain(experiment)}))
    return run, entries


def runs_of(entries: Iterable[JournalEntry]) -> dict[str, ExperimentRun]:
    """The last run of each experiment, by the journal. Sections that are no longer valid are left out."""
    runs: dict[str, ExperimentRun] = {}
    for entry in entries:
        name, detail = entry.experiment, entry.detail
        if name is None:
            continue
        try:
            if entry.kind == BEGUN:
                section = _section(detail)
                runs[name] = ExperimentRun(name, section, detail["unit"], detail["started_at"], detail["lost_before"])
            elif entry.kind == CHANGED and name in runs:
                runs[name] = replace(runs[name], experiment=_section(detail))
            elif entry.kind == STATE and name in runs:
                runs[name] = _with_state(runs[name], detail["state"], entry.at)
        except (ValidationError, KeyError):
            runs.pop(name, None)
    return runs


def _stopped(run: ExperimentRun, now: float) -> tuple[ExperimentRun, list[JournalEntry]]:
    if run.stopped_at is not None:
        return run, []
    return replace(run, stopped_at=now), [JournalEntry(now, STATE, run.name, {"state": "stopped"})]


def _with_state(run: ExperimentRun, state: str, at: float) -> ExperimentRun:
    if state == "stopped":
        return replace(run, stopped_at=at)
    if run.stopped_at is None:
        return run
    return replace(run, pauses=(*run.pauses, (run.stopped_at, at)), stopped_at=None)


def _section(detail: dict[str, Any]) -> Experiment:
    """The section of an entry. Versions that did not know covariates judged without."""
    return Experiment.model_validate({"covariates": [], **detail["section"]})


def _plain(experiment: Experiment) -> dict[str, Any]:
    return experiment.model_dump(mode="json")


def synthetic_config(
    name: str,
    experiment: Experiment,
    *,
    traffic: Mapping[str, int],
    sticky: Mapping[str, Any] | None,
    prices: Mapping[str, Any] | None = None,
    ledger: str | None = None,
    total_s: float | None = None,
    plan: Mapping[str, Any] | None = None,
) -> Config:
    """`prices` by deployment, `ledger`: a directory, `total_s`: the timeout of requests, `plan`: the endpoint's.

    Raises ConfigError.
    """
    arms = experiment.arms if experiment.mode == "ab" else (experiment.control,)
    deployments = {
        # `url` and `space_id` are placeholders: the analysis does not need them.
        name: {"url": "http://recorded", "model": name, "tasks": list(TASKS), "space_id": "recorded"}
        | ({"price": prices[name]} if prices and name in prices else {})
        for name in {**traffic, **dict.fromkeys(arms)}
    }
    return parse(
        {
            "endpoints": {
                experiment.endpoint: {"tasks": ["chat"], "traffic": dict(traffic), "sticky": sticky, "plan": plan or {}}
            },
            "deployments": deployments,
            "experiments": {name: experiment},
            **({"ledger": {"url": ledger}} if ledger is not None else {}),
            **({"timeouts": {"total_s": total_s}} if total_s is not None else {}),
        }
    )


def of_run(
    run: ExperimentRun,
    *,
    traffic: Mapping[str, int] | None,
    prices: Mapping[str, Any],
    total_s: float | None,
    plan: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration by which a run is judged: its section and its units, as they were when it ended if it has.

    `traffic`: its endpoint's, None if that has none any more. Raises ConfigError.
    """
    section = run.experiment
    if run.stopped_at is not None:
        section = section.model_copy(update={"state": "stopped"})
    names = section.arms if section.mode == "ab" else (section.control,)
    return synthetic_config(
        run.name,
        section,
        traffic=traffic or evenly(list(dict.fromkeys(names))),
        sticky=json.loads(run.unit) if run.unit else None,
        prices=prices,
        total_s=total_s,
        plan=plan,
    )


def evenly(names: Sequence[str]) -> dict[str, int]:
    """Equal shares in percent; the first has the remainder."""
    shares = dict.fromkeys(names, 100 // len(names))
    shares[names[0]] += 100 - sum(shares.values())
    return shares
