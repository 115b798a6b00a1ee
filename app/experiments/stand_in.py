"""A configuration of one experiment alone, where the real one is not available: as much of it as an analysis needs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.config.experiments import Experiment
from app.config.schema import TASKS, Config, parse
from app.experiments.runs import Run


def stand_in(
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
        it: {"url": "http://recorded", "model": it, "tasks": list(TASKS), "space_id": "recorded"}
        | ({"price": prices[it]} if prices and it in prices else {})
        for it in {**traffic, **dict.fromkeys(arms)}
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
    run: Run,
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
    return stand_in(
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
