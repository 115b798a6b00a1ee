"""The shares of running ramps that a file would undo."""

from collections.abc import Iterator

from app.config.experiment_checks import is_active
from app.config.experiments import Experiment
from app.config.schema import Config, Endpoint


def superseded(applied: Config, wanted: Config) -> list[str]:
    """The effects of delivering `wanted` on the experiments that move traffic in `applied`, a line each."""
    return [
        line
        for name, experiment in applied.experiments.items()
        if is_active(experiment) and experiment.mode == "ab"
        for line in _lines(name, experiment, applied, wanted)
    ]


def _lines(name: str, experiment: Experiment, applied: Config, wanted: Config) -> Iterator[str]:
    before, after = applied.endpoints[experiment.endpoint], wanted.endpoints.get(experiment.endpoint)
    has_moved = before.plan.by == f"experiment {name}"
    if not has_moved and experiment.ramp is None:
        return
    follower = wanted.experiments.get(name)
    is_ended = follower is None or not is_active(follower)
    if is_ended:
        yield f"experiments.{name}: it moves traffic, and this file ends its run; keep it `running` if it is to go on"
    if after is None or _arms(before, experiment) == _arms(after, experiment):
        return
    reached = f"'{name}' has brought it to" if has_moved else f"the ramp of '{name}' runs, at"
    pauses = "" if is_ended else " and pauses the experiment"
    yield (
        f"endpoints.{experiment.endpoint}.traffic: {reached} {_words(before, experiment)}; this file says "
        f"{_words(after, experiment)}, which wins{pauses}; to keep the present split, write it into the file"
    )


def _arms(endpoint: Endpoint, experiment: Experiment) -> dict[str, int]:
    return {arm: endpoint.traffic.get(arm, 0) for arm in experiment.arms}


def _words(endpoint: Endpoint, experiment: Experiment) -> str:
    return ", ".join(f"{arm} {share} %" for arm, share in _arms(endpoint, experiment).items())
