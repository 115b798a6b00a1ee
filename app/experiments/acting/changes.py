"""Carries out a wanted change of the traffic: by compare-and-set, through the control plane, as often as is needed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from app.config.endpoints import MAX_REASON
from app.config.experiments import Experiment
from app.config.schema import Config
from app.control_plane import Authorship, ControlPlane, Wanted, change_plan
from app.errors import Conflict, SwitchyardError
from app.experiments.acting import shares
from app.experiments.acting.state import Intent
from app.telemetry.logs import event

_log = logging.getLogger("switchyard")
_TEMPORARY = "the present plan is temporary"
_GONE = "the arms are not in the endpoint's traffic any more"


@dataclass(frozen=True, slots=True)
class Change:
    """A change that an experiment wants of its endpoint's traffic."""

    experiment: str
    section: Experiment
    intent: Intent
    generation: int
    """The last known plan of the endpoint."""


async def carry_out(control: ControlPlane, change: Change, now: float) -> str | None:
    """Makes the change if it has not been made, and if the traffic is still that which it is to replace. Returns the
    reason to try again, in words; None if nothing is left to do: the change is applied, or what is applied is something
    else, which the caller reads. `now`: Unix seconds.
    """
    intent, endpoint = change.intent, change.section.endpoint

    def check(config: Config) -> Wanted:
        plan, traffic = config.endpoints[endpoint].plan, config.endpoints[endpoint].traffic
        if not set(change.section.arms) <= set(traffic):
            raise Conflict(_GONE)
        arms = _after(change, traffic)
        if plan.expires is not None and intent.kind != "rollback":
            raise Conflict(_TEMPORARY)
        if arms is None:
            raise _Other
        # A treatment that is rolled back loses running conversations, too, permanently.
        rolled_back = intent.treatments if intent.kind == "rollback" else []
        withdrawn = dict.fromkeys(rolled_back, change.section.control)
        return Wanted({**traffic, **arms}, plan.overrides, reason=intent.reason[:MAX_REASON], withdrawn=withdrawn)

    author = Authorship(intent.by, now, change.generation + 1)
    try:
        before, after = await change_plan(control, endpoint, check=check, author=author)
    except _Other:
        return None
    except SwitchyardError as error:
        waits = event("experiment_waits", experiment=change.experiment, endpoint=endpoint, error=error.message)
        _log.warning("An experiment could not move traffic yet", extra=waits)
        return error.message
    if before is not after:
        traffic = {"before": dict(before.traffic), "after": dict(after.traffic)}
        moved = event("experiment_moved_traffic", experiment=change.experiment, endpoint=endpoint, **traffic)
        _log.info("An experiment has moved traffic", extra=moved)
    return None


class _Other(Exception):
    """The arms' weights are not those that the change is to replace."""


def _after(change: Change, traffic: Mapping[str, int]) -> dict[str, int] | None:
    intent, arms = change.intent, shares.of_arms(traffic, change.section)
    if intent.kind == "rollback":
        return shares.without(arms, change.section, intent.treatments)
    return intent.after if arms in (intent.before, intent.after) else None
