"""Changes of the configuration that no call of the API has made, as records of the audit log: a file that was deployed,
and traffic that an experiment has moved, or the end of a temporary plan.

A record names what has changed, and has values of an endpoint's traffic alone: others may be secrets.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from app.config.schema import Config
from app.experiments.contract.journal import JournalEntry, PlanEntry, plans_by_endpoint
from app.exposures.audit import LONGEST, AuditRecord, new_id

DEPLOY, MOVE, END = "deploy", "move_traffic", "end_temporary_plan"
_EXPERIMENT = "experiment "
_OF_PLANS, _LEVELS = ("traffic", "plan"), 3


def of_plans(known: Sequence[JournalEntry], new: Sequence[JournalEntry], now: float) -> list[AuditRecord]:
    """Records of the `new` entries about plans, which come after those that are `known`. Plans that a caller has made
    are in the audit log already, but for those that were there before the controller began: an endpoint's first plan
    is deployed, and replaces none. `now`: Unix seconds."""
    last, records = plans_by_endpoint(known), []
    for entry in new:
        plan = msgspec.convert(entry.detail, PlanEntry)
        before = last.get(plan.endpoint)
        if (action := _action(before, plan) if before is not None else DEPLOY) is None:
            continue
        experiment = (plan.by or "").removeprefix(_EXPERIMENT) if action == MOVE else ""
        records.append(
            _record(
                now,
                action,
                endpoint=plan.endpoint,
                experiment=experiment,
                caller=plan.by or "",
                reason=plan.reason,
                before=_shown(before) if before is not None else None,
                after=_shown(plan),
            )
        )
    return records


def of_settings(before: Mapping[str, Any], after: Mapping[str, Any], now: float) -> list[AuditRecord]:
    """The record of a deployed file, apart from its plans: which settings have changed. Empty if none has. Both are
    those of `digests_of`, also of another process's: a file that comes with a restart is a change, too."""
    changed = sorted(_changed(before, after))
    return [_record(now, DEPLOY, after={"changed": changed})] if changed else []


def digests_of(config: Config) -> dict[str, Any]:
    """What tells whether a setting is another one, down to the third level: too little of a digest to find a secret
    by. Plans have records of their own."""
    digests: dict[str, Any] = _digests(config.model_dump(mode="json", exclude_defaults=True))
    return digests


def _digests(settings: Any, path: tuple[str, ...] = ()) -> Any:
    if len(path) < _LEVELS and isinstance(settings, Mapping):
        named = {str(name): _digests(value, (*path, str(name))) for name, value in settings.items()}
        return {name: digest for name, digest in named.items() if digest is not None}
    if len(path) == _LEVELS and path[0] == "endpoints" and path[2] in _OF_PLANS:
        return None
    return blake2b(msgspec.json.encode(settings, order="deterministic"), digest_size=4).hexdigest()


def _action(before: PlanEntry, plan: PlanEntry) -> str | None:
    if plan.by is None:
        return DEPLOY
    if before.expires is not None and plan.reason is not None and " was temporary: " in plan.reason:
        return END
    return MOVE if plan.by.startswith(_EXPERIMENT) else None


def _shown(plan: PlanEntry) -> dict[str, Any]:
    return {"generation": plan.generation, "weights": plan.weights, "overrides": plan.overrides}


def _changed(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in before.keys() | after.keys():
            yield from _changed(before.get(name), after.get(name), (*path, str(name)))
    else:
        yield ".".join(path)[:LONGEST]


def _record(now: float, action: str, **fields: Any) -> AuditRecord:
    return AuditRecord(id=new_id(now), at=now, action=action, outcome="accepted", status=200, **fields)
