"""Shares of arms. Percentages are of the endpoint's traffic; deployments that are not arms keep theirs.

Treatments share a step equally; what cannot be divided goes to the first ones, a percent each. Control gets the rest of
what the arms have together, and at least `holdout`.
"""

from collections.abc import Mapping, Sequence

from app.config.experiments import Experiment, Ramp

Weights = Mapping[str, int]


def of_arms(traffic: Weights, experiment: Experiment) -> dict[str, int]:
    """The arms' part of an endpoint's traffic, control first."""
    return {name: traffic.get(name, 0) for name in experiment.arms}


def treated(arms: Weights, experiment: Experiment) -> int:
    """Percent that treatments have together."""
    return sum(arms[name] for name in experiment.treatments)


def share_at(step: int, arms: Weights, experiment: Experiment) -> int:
    """The share of treatments at a percentage of `ramp.steps`: never more than the arms have, less the holdout."""
    return max(0, min(step, sum(arms.values()) - experiment.holdout))


def position(ramp: Ramp, arms: Weights, experiment: Experiment) -> int | None:
    """The index of the highest step that treatments have reached; None below the first one."""
    share = treated(arms, experiment)
    return max(
        (index for index, step in enumerate(ramp.steps) if share_at(step, arms, experiment) <= share), default=None
    )


def divided(share: int, arms: Weights, experiment: Experiment, among: Sequence[str]) -> dict[str, int]:
    """The arms' weights when the treatments `among` have `share` percent together, and the others none."""
    each, rest = divmod(share, len(among))
    weights = dict.fromkeys(experiment.arms, 0)
    for number, name in enumerate(among):
        weights[name] = each + (number < rest)
    weights[experiment.control] = sum(arms.values()) - share
    return weights


def without(arms: Weights, experiment: Experiment, treatments: Sequence[str]) -> dict[str, int]:
    """The arms' weights when control has those of `treatments`, too."""
    freed = sum(arms[name] for name in treatments)
    return {**arms, **dict.fromkeys(treatments, 0), experiment.control: arms[experiment.control] + freed}
